"""Sending work to agents over a transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

from protolink._environment import backoff, current_environment, pause
from protolink._json import JSON
from protolink.card import AgentCard
from protolink.context import RunBudget, RunContext
from protolink.discovery.port import Directory
from protolink.errors import ConfigurationError
from protolink.events import RunEvent
from protolink.task import Task
from protolink.transport.create import create_transport
from protolink.transport.errors import PeerRefusedError, PeerUnavailableError, TransportError
from protolink.transport.outgoing import Outgoing
from protolink.transport.port import Frame, NetworkTransport, Transport

__all__ = ["AgentClient", "AgentPeer"]

_RECONNECTS: Final = 4
"""How often a broken stream is taken up again without a new event, and how often altogether."""

_MOST_RECONNECTS: Final = 100
_RECONNECT_SECONDS: Final = 0.1
_CALL_OFF_SECONDS: Final = 2.0


class AgentClient:
    """Sends tasks to agents at their addresses.

    Only the task crosses, as JSON: private request values stay with the caller. Canceling the await cancels
    the peer's run.

    Parameters
    ----------
    transport
        The name of a transport or a transport, for every address; or an `Outgoing`, which chooses by the scheme.
    """

    def __init__(self, transport: str | Transport | Outgoing = "runtime") -> None:
        self._transport = transport if isinstance(transport, Outgoing) else create_transport(transport)

    async def _to(self, url: str) -> Transport:
        transport = self._transport
        return await transport.to(url) if isinstance(transport, Outgoing) else transport

    async def send_task(self, url: str, task: Task) -> Task:
        """Have the agent at `url` run a task and give the final task; a failed run gives a failed task.

        Raises `PeerUnavailableError` where nobody answers, `PeerRefusedError` for a task that cannot be run,
        or another `TransportError`; `delivered` says whether the run may have begun.
        """
        return _task_of(await (await self._to(url)).call(url, "task", task.to_dict()), url)

    async def stream_task(self, url: str, task: Task) -> AsyncGenerator[RunEvent | Task]:
        """Have the agent at `url` run a task; gives its events as they come, and last the final task.

        Where the transport or the peer does not stream, the task comes alone, with its receipts. The events are
        the peer's words: nothing of them enters a run of this process. A connection that breaks is made again a
        few times, and the stream goes on behind the last event that arrived; the task itself is sent once. Closing
        the generator cancels the peer's run. Raises as `send_task` does.
        """
        transport = await self._to(url)
        if not isinstance(transport, NetworkTransport):
            yield await self.send_task(url, task)
            return
        ended = False
        try:
            async with aclosing(_frames(transport, url, task)) as frames:
                async for frame in frames:
                    given = _given(frame, url)
                    ended = ended or isinstance(given, Task)
                    yield given
        except (GeneratorExit, asyncio.CancelledError):
            if not ended:
                await self._call_off(url, task.id)
            raise

    async def _call_off(self, url: str, task_id: str) -> None:
        """Tell a peer that nobody wants its work any more. Where it is not reached, it finds out by itself."""
        with suppress(TransportError, TimeoutError):
            async with asyncio.timeout(_CALL_OFF_SECONDS):
                await self.cancel_task(url, task_id, "whoever asked for it has gone")

    async def task_status(self, url: str, task_id: str) -> Task:
        """A task that this client's principal has sent, as it stands; for a minute after its end too.

        Raises `PeerNotFoundError` where the peer knows no such task of theirs.
        """
        reply = await (await self._to(url)).call(url, "status", {"task_id": task_id})
        return _task_of(reply, url)

    async def cancel_task(self, url: str, task_id: str, reason: str = "canceled by whoever asked for it") -> Task:
        """Cancel a task that this client's principal has sent, and give the final task.

        Raises `PeerNotFoundError` where the peer is not at work on such a task of theirs.
        """
        reply = await (await self._to(url)).call(url, "cancel", {"task_id": task_id, "reason": reason})
        return _task_of(reply, url)

    async def card(self, url: str) -> AgentCard:
        """How the agent at `url` describes itself."""
        reply = await (await self._to(url)).call(url, "card", None)
        try:
            return AgentCard.from_dict(reply)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        except ValueError as error:
            raise TransportError(f"the reply of {url!r} is no card: {error}") from error

    def peer(self, target: str | AgentCard, *, directory: Directory | None = None) -> AgentPeer:
        """One agent, by its address, its card, or its name in a registry."""
        return AgentPeer(target, client=self, directory=directory)

    def __repr__(self) -> str:
        return f"<AgentClient over {self._transport!r}>"


class AgentPeer:
    """Another agent, with the verbs that cross a transport. Made by `Agent.peer` or `AgentClient.peer`."""

    def __init__(self, target: str | AgentCard, *, client: AgentClient, directory: Directory | None = None) -> None:
        self._target = target
        self._client = client
        self._directory = directory

    async def url(self) -> str:
        """The address. A name is looked up each time, so a peer that moved is found again.

        Raises `PeerUnavailableError` for a name that the registry does not know, or knows several of.
        """
        target = self._target
        if isinstance(target, AgentCard):
            if not target.url:
                raise ConfigurationError(f"the card of {target.name!r} has no address")
            return target.url
        if "://" in target:
            return target
        if self._directory is None:
            raise ConfigurationError(f"{target!r} is no address, and there is no registry to look the name up in")
        found = await self._directory.discover({"name": target})
        if len(found) != 1 or not found[0].url:
            raise PeerUnavailableError(f"the registry knows {len(found)} agents named {target!r}")
        return found[0].url

    async def send_task(self, task: Task) -> Task:
        """Have the peer run a task and give the final task."""
        return await self._client.send_task(await self.url(), task)

    async def stream_task(self, task: Task) -> AsyncGenerator[RunEvent | Task]:
        """Have the peer run a task; gives its events where it streams, and last the final task."""
        async with aclosing(self._client.stream_task(await self.url(), task)) as given:
            async for item in given:
                yield item

    async def invoke(
        self,
        prompt: str,
        *,
        session_id: str | None = None,
        budget: RunBudget | None = None,
        context: RunContext | None = None,
    ) -> Any:
        """Have the peer answer a prompt. Raises `TaskExecutionError` where its run fails."""
        task = Task.create_infer(prompt, session_id=session_id, budget=budget, context=context)
        return (await self.send_task(task)).raise_for_status().get_output()

    async def call_tool(self, name: str, /, **arguments: Any) -> Any:
        """Have the peer run one of its tools. Raises `TaskExecutionError` where its run fails."""
        return (await self.send_task(Task.create_tool_call(name, arguments))).raise_for_status().get_output()

    def __repr__(self) -> str:
        target = self._target
        return f"<AgentPeer {target.name if isinstance(target, AgentCard) else target}>"


async def _frames(transport: NetworkTransport, url: str, task: Task) -> AsyncGenerator[Frame]:
    """The frames of a task's stream, each event once, over as many connections as it takes."""
    environment = current_environment()
    operation = "task"
    payload: JSON = task.to_dict()
    lost: PeerUnavailableError | None = None
    seen = failures = lost_connections = 0
    while True:
        try:
            async with aclosing(transport.stream(url, operation, payload)) as frames:
                async for frame in frames:
                    number = frame.data.get("sequence") if isinstance(frame.data, dict) else None
                    if frame.kind == "event" and isinstance(number, int):
                        if number <= seen:
                            continue
                        seen, failures = number, 0
                    yield frame
            return
        except PeerUnavailableError as error:
            if lost is None and not error.delivered:
                raise  # nothing has begun
            lost = lost or error
        except PeerRefusedError:
            if lost is None:
                raise
            raise lost from None  # the peer has no streams to come back to, or has forgotten this one
        lost_connections += 1
        if failures == _RECONNECTS or lost_connections == _MOST_RECONNECTS:
            raise lost
        operation = "events"
        payload = {"task_id": task.id, "after": seen}
        await pause(environment, backoff(environment, failures, first=_RECONNECT_SECONDS, most=2.0))
        failures += 1


def _task_of(reply: JSON, url: str) -> Task:
    try:
        return _task(reply)
    except ValueError as error:
        raise TransportError(f"the reply of {url!r} is no task: {error}", delivered=True) from error


def _given(frame: Frame, url: str) -> RunEvent | Task:
    try:
        return _event(frame.data) if frame.kind == "event" else _task(frame.data)
    except ValueError as error:
        raise TransportError(f"the stream of {url!r} is not a task's: {error}", delivered=True) from error


def _task(data: JSON) -> Task:
    return Task.from_dict(data)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def _event(data: JSON) -> RunEvent:
    return RunEvent.from_dict(data)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
