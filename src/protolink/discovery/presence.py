"""An agent's presence: the address that it serves and its entry in a registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from protolink._environment import Environment, backoff, current_environment, pause
from protolink._json import JSON
from protolink._runtime.lifecycle import Lifecycle, starting
from protolink._runtime.peers import MAX_AGENTS_IN_CHAIN
from protolink._runtime.principal import acting_as
from protolink._text import describe_error, type_name, visible
from protolink._values import Reader
from protolink.card import AgentCard
from protolink.discovery.port import Directory
from protolink.discovery.submissions import Submissions, Work
from protolink.errors import ConfigurationError, DurableExecutionError
from protolink.task import Task
from protolink.tools.tool import BaseTool
from protolink.transport.create import create_transport
from protolink.transport.errors import PeerNotFoundError, TransportError
from protolink.transport.outgoing import Outgoing
from protolink.transport.port import Frame, Handler, NetworkTransport, StreamHandler, Transport

__all__ = ["Presence", "answer_on", "described", "registered", "transport_of"]

_BEATS_PER_LIFE: Final = 3
# Where entries are kept for ever: the registry may have been restarted, and then knows nobody.
_BEAT_SECONDS: Final = 30.0
_FIRST_RETRY_SECONDS: Final = 0.5
_logger: Final = logging.getLogger("protolink")


class Presence:
    """What `Agent.start` starts. An agent without a transport has nothing to serve and nothing to register."""

    def __init__(
        self,
        name: str,
        describe: Callable[[], AgentCard],
        submit: Callable[[Task], Awaitable[Work | Task]],
        transport: Transport | None,
        directory: Directory | None,
        outgoing: Outgoing,
    ) -> None:
        self._name = name
        self._describe = describe
        self._submissions = Submissions(submit)
        self.transport = transport
        self.directory = directory
        self.outgoing = outgoing
        """How this agent calls others."""

        self._lifecycle = Lifecycle(self._enter)
        if transport is not None:
            answer_on(transport, self._answer, self._stream)

    async def start(self) -> None:
        """Serve and register; ready when it returns. Raises `TransportStartError`."""
        await self._lifecycle.start()

    async def stop(self) -> None:
        """Leave the registry and stop serving."""
        await self._lifecycle.stop()

    async def _enter(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.outgoing)
        if self.transport is None:
            return
        card = self._describe()
        async with starting(f"agent {card.name!r}"):
            # What others have asked for ends when nobody can ask for it any more.
            stack.push_async_callback(self._submissions.close)
            # On the stack first: a start that fails or is canceled half-way may have taken the address.
            stack.push_async_callback(self.transport.stop)
            await self.transport.start()
            if self.directory is not None:
                await stack.enter_async_context(registered(self.directory, card))

    async def _answer(self, operation: str, payload: JSON) -> JSON:
        match operation:
            case "task":
                async with self._submissions.begun(_task(payload, self._name), streamed=False) as work:
                    return (await _outcome(work)).to_dict()
            case "status":
                return (await self._submissions.status(Reader(payload, "a question").text("task_id"))).to_dict()
            case "cancel":
                asked = Reader(payload, "a cancellation")
                reason = asked.text("reason", "canceled by whoever asked for it")
                return (await self._submissions.cancel(asked.text("task_id"), reason)).to_dict()
            case "card":
                return self._describe().to_dict()
            case _:
                raise PeerNotFoundError(f"an agent has no operation {operation!r}")

    async def _stream(self, operation: str, payload: JSON) -> AsyncGenerator[Frame]:
        match operation:
            case "task":
                reading, after = self._submissions.begun(_task(payload, self._name), streamed=True), 0
            case "events":
                asked = Reader(payload, "a reconnection")
                reading, after = self._submissions.again(asked.text("task_id")), asked.integer("after", 0)
            case _:
                raise PeerNotFoundError(f"an agent has no stream {operation!r}")
        async with reading as work:
            if not isinstance(work, Task):
                async for event in work.events(after):
                    yield Frame("event", event.to_dict(), event.sequence)
            yield Frame("task", (await _outcome(work)).to_dict())


def answer_on(transport: Transport, handler: Handler, stream: StreamHandler | None = None) -> None:
    """Have a handler answer on a transport, for whoever the transport says that it is done for."""
    if isinstance(transport, NetworkTransport):
        transport.serve_network(handler, acting_as=acting_as, stream=stream)
    else:
        transport.serve(handler)


async def _outcome(work: Work | Task) -> Task:
    """The task of a run that has ended. One that was left by its store has begun, and nobody here knows its end."""
    if isinstance(work, Task):
        return work
    try:
        return (await work.result()).task
    except DurableExecutionError as error:
        raise TransportError(f"the run was left unfinished: {type_name(error)}", delivered=True) from error


def _task(payload: JSON, name: str) -> Task:
    """A task that was sent. Raises `ValueError` for none, and for one that has gone round or too far."""
    if not isinstance(payload, dict):
        raise ValueError("a task is sent as a dictionary")
    task = Task.from_dict(payload)
    above = Reader(task.metadata.get("run_context") or {}, "a task's context").texts("agent_chain")
    if name in above:
        raise ValueError(f"agent {name!r} is at work above this task and cannot be asked by it")
    if len(above) > MAX_AGENTS_IN_CHAIN:
        raise ValueError(f"more than {MAX_AGENTS_IN_CHAIN} agents have passed this task on")
    return task


def transport_of(card: AgentCard, transport: str | Transport | None, **options: Any) -> Transport | None:
    """The transport that serves a card's address. A transport that has an address gives it to a card without one."""
    if transport is None:
        return None
    made = create_transport(transport, card.url, **options)
    if made.url is None:
        raise ConfigurationError(f"agent {card.name!r} has a transport and no address; pass url=")
    card.url = made.url
    return made


def described(card: AgentCard, tools: Iterable[BaseTool]) -> AgentCard:
    """The card as others see it: with the declared tools as skills, where it lists none itself."""
    public = AgentCard.from_dict(card.to_dict())
    if not public.skills:
        public.skills = [{"name": tool.name, "description": tool.description} for tool in tools]
    return public


@asynccontextmanager
async def registered(directory: Directory, card: AgentCard) -> AsyncGenerator[None]:
    """Keep a card in a registry by heartbeats, also one that was restarted and has forgotten everything.

    Failing to enter raises; failing to beat or to leave is logged, because the agent itself is well.
    """
    url = card.url or ""
    lifetime = await directory.register(card)
    beating = asyncio.create_task(
        _beat(directory, card, lifetime, current_environment()), name=f"protolink heartbeat of {url}"
    )
    try:
        yield
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        try:
            await directory.unregister(url)
        except Exception as error:  # the registry is somebody else's
            _logger.warning("%s could not leave its registry: %s", visible(url), visible(describe_error(error)))


async def _beat(directory: Directory, card: AgentCard, lifetime: float | None, environment: Environment) -> None:
    """Say again and again that an address is served. A registry that does not answer is asked again after a while,
    at first soon; it is logged once when it is lost and once when it is found again."""
    url, failures = card.url or "", 0
    while True:
        interval = _BEAT_SECONDS if lifetime is None else lifetime / _BEATS_PER_LIFE
        if failures:
            await pause(environment, backoff(environment, failures - 1, first=_FIRST_RETRY_SECONDS, most=interval))
        else:
            await pause(environment, interval * (0.9 + environment.jitter() / 10))
        try:
            if not await directory.heartbeat(url):
                lifetime = await directory.register(card)
        except Exception as error:  # the registry is somebody else's, and the agent goes on without it
            failures += 1
            if failures == 1:
                _logger.warning("%s was not heard by its registry: %s", visible(url), visible(describe_error(error)))
        else:
            if failures:
                _logger.warning("%s is heard by its registry again", visible(url))
            failures = 0
