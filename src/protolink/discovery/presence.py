"""An agent's presence: the address that it serves and its entry in a registry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from protolink._environment import Environment, current_environment
from protolink._json import JSON
from protolink._runtime.lifecycle import Lifecycle, starting
from protolink._text import describe_error, visible
from protolink.card import AgentCard
from protolink.discovery.port import Directory
from protolink.errors import ConfigurationError, ProtolinkError
from protolink.task import Task
from protolink.tools.tool import BaseTool
from protolink.transport.create import create_transport
from protolink.transport.port import Transport

__all__ = ["Presence", "described", "registered", "transport_of"]

_BEATS_PER_LIFE: Final = 3
_logger: Final = logging.getLogger("protolink")


class Presence:
    """What `Agent.start` starts. An agent without a transport has nothing to serve and nothing to register."""

    def __init__(
        self,
        describe: Callable[[], AgentCard],
        run_task: Callable[[Task], Awaitable[Task]],
        transport: Transport | None,
        directory: Directory | None,
    ) -> None:
        self._describe = describe
        self._run_task = run_task
        self.transport = transport
        self.directory = directory
        self._lifecycle = Lifecycle(self._enter)
        if transport is not None:
            transport.serve(self._answer)

    async def start(self) -> None:
        """Serve and register; ready when it returns. Raises `TransportStartError`."""
        await self._lifecycle.start()

    async def stop(self) -> None:
        """Leave the registry and stop serving."""
        await self._lifecycle.stop()

    async def _enter(self, stack: AsyncExitStack) -> None:
        if self.transport is None:
            return
        card = self._describe()
        async with starting(f"agent {card.name!r}"):
            # On the stack first: a start that fails or is canceled half-way may have taken the address.
            stack.push_async_callback(self.transport.stop)
            await self.transport.start()
            if self.directory is not None:
                await stack.enter_async_context(registered(self.directory, card))

    async def _answer(self, operation: str, payload: JSON) -> JSON:
        if operation != "task":
            raise ValueError(f"an agent has no operation {operation!r}")
        return (await self._run_task(_task(payload))).to_dict()


def _task(payload: JSON) -> Task:
    if not isinstance(payload, dict):
        raise ValueError("a task is sent as a dictionary")
    return Task.from_dict(payload)


def transport_of(card: AgentCard, transport: str | Transport | None) -> Transport | None:
    """The transport that serves a card's address. A transport that has an address gives it to a card without one."""
    if transport is None:
        return None
    made = create_transport(transport, card.url)
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
    """Keep a card in a registry, with heartbeats where the registry expects them.

    Failing to enter raises; failing to beat or to leave is logged, because the agent itself is well.
    """
    url = card.url or ""
    lifetime = await directory.register(card)
    beating: asyncio.Task[None] | None = None
    if lifetime is not None:
        beating = asyncio.create_task(
            _beat(directory, card, lifetime / _BEATS_PER_LIFE, current_environment()),
            name=f"protolink heartbeat of {url}",
        )
    try:
        yield
    finally:
        if beating is not None:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        try:
            await directory.unregister(url)
        except Exception as error:  # the registry is somebody else's
            _logger.warning("%s could not leave its registry: %s", visible(url), visible(describe_error(error)))


async def _beat(directory: Directory, card: AgentCard, interval: float, environment: Environment) -> None:
    url = card.url or ""
    while True:
        await _pause(environment, interval)
        try:
            if not await directory.heartbeat(url):
                await directory.register(card)
        except (ProtolinkError, ValueError) as error:
            _logger.warning("%s was not heard by its registry: %s", visible(url), visible(describe_error(error)))


async def _pause(environment: Environment, seconds: float) -> None:
    over = asyncio.Event()
    timer = environment.call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()
