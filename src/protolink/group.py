"""A team of agents that an application starts, runs work on and shuts down as one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from protolink._runtime.lifecycle import Lifecycle, starting, within
from protolink.agent import Agent
from protolink.client import AgentClient
from protolink.discovery.presence import registered
from protolink.discovery.registry import Registry
from protolink.errors import ConfigurationError
from protolink.handle import RunHandle
from protolink.message import Message
from protolink.task import Task

if TYPE_CHECKING:
    from protolink._options import ResumeOptions, RunOptions

__all__ = ["AgentGroup"]


class AgentGroup:
    """Agents that are ready when the group is entered and stopped when it is left.

    Start: the registry if the group owns it, then each agent, registered as soon as it serves. Whatever
    fails, takes longer than `startup_timeout` seconds altogether or is canceled meanwhile, everything that
    was started is stopped again; the failure is one `TransportStartError`, and the group can be started anew.
    Leaving cancels and awaits the runs that the group has started, then stops everything in reverse.

    Parameters
    ----------
    agents
        Started and stopped by the group. One without a transport takes part locally and is not registered.
    external_agents
        Agents that the group can run work on and leaves alone otherwise.
    registry
        Where the agents are registered.
    own_registry
        Whether the group starts and stops the registry as well.
    client
        A client of the application's own that shares the group's lifetime in name only: the group hands it
        out and never closes it.
    """

    def __init__(
        self,
        agents: Iterable[Agent],
        *,
        external_agents: Iterable[Agent] = (),
        registry: Registry | None = None,
        own_registry: bool = False,
        client: AgentClient | None = None,
        startup_timeout: float = 10.0,
    ) -> None:
        self._own = tuple(agents)
        self._members: dict[str, Agent] = {}
        for agent in (*self._own, *external_agents):
            if not isinstance(agent, Agent):
                raise ConfigurationError(f"a group has agents, not {type(agent).__name__}")
            if agent.name in self._members:
                raise ConfigurationError(f"two members of the group are named {agent.name!r}")
            self._members[agent.name] = agent
        if registry is not None and not isinstance(registry, Registry):
            raise ConfigurationError(f"registry is a Registry, not {type(registry).__name__}")
        if own_registry and registry is None:
            raise ConfigurationError("own_registry=True needs a registry")
        if isinstance(startup_timeout, bool) or not 0 < startup_timeout < float("inf"):
            raise ConfigurationError("startup_timeout must be positive and finite")
        self.registry = registry
        self.client = client
        self._own_registry = own_registry
        self._startup_timeout = startup_timeout
        self._runs: dict[RunHandle, None] = {}
        self._lifecycle = Lifecycle(self._enter)

    @property
    def agents(self) -> Mapping[str, Agent]:
        """Every agent that the group can run work on, by name."""
        return MappingProxyType(self._members)

    @property
    def running(self) -> bool:
        """Whether the group was started and not closed."""
        return self._lifecycle.running

    async def start(self) -> Self:
        """Start everything and give the group. Raises `TransportStartError`; starting again changes nothing."""
        await self._lifecycle.start()
        return self

    async def close(self) -> None:
        """Cancel and await the group's runs, then stop everything in reverse. Closing again changes nothing."""
        await self._lifecycle.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def run(self, agent: Agent | str, task: Task | Message | str, **options: Unpack[RunOptions]) -> RunHandle:
        """Start a run on a member; the options are those of `Agent.start_run`. The group awaits its end.

        Raises `RuntimeError` where the group is not running, and `ConfigurationError` for no member of it.
        """
        return self._watched(self._running_member(agent).start_run(task, **options))

    async def resume_run(self, agent: Agent | str, run_id: str, **response: Unpack[ResumeOptions]) -> RunHandle | Task:
        """`Agent.resume_run` of a member. The group awaits the end of the attempt.

        Raises as `run` and `Agent.resume_run` do.
        """
        resumed = await self._running_member(agent).resume_run(run_id, **response)
        if isinstance(resumed, Task):
            return resumed
        if not self.running:
            await resumed.cancel("the group is closing")
            raise RuntimeError("the group was closed while the run was taken up")
        return self._watched(resumed)

    def _watched(self, handle: RunHandle) -> RunHandle:
        self._runs[handle] = None
        handle.add_done_callback(self._forget)
        return handle

    def _forget(self, handle: RunHandle) -> None:
        self._runs.pop(handle, None)

    def _running_member(self, agent: Agent | str) -> Agent:
        if not self.running:
            raise RuntimeError("the group is not running; enter it with `async with` or await start()")
        return self._member(agent)

    def _member(self, agent: Agent | str) -> Agent:
        name = agent if isinstance(agent, str) else agent.name
        member = self._members.get(name)
        if member is None or (not isinstance(agent, str) and member is not agent):
            known = ", ".join(map(repr, self._members)) or "none"
            raise ConfigurationError(f"{name!r} is no member of the group; its members are {known}")
        return member

    async def _enter(self, stack: AsyncExitStack) -> None:
        async with within(self._startup_timeout, "the group"):
            if self.registry is not None and self._own_registry:
                await self.registry.start()
                stack.push_async_callback(self.registry.stop)
            for agent in self._own:
                await agent.start()
                stack.push_async_callback(agent.stop)
                await self._register(agent, stack)
        stack.push_async_callback(self._drain)

    async def _register(self, agent: Agent, stack: AsyncExitStack) -> None:
        """Enter an agent in the group's registry, unless nobody could reach it or it is there by itself."""
        if self.registry is None or agent.transport is None or agent.registry is self.registry:
            return
        async with starting(f"the registration of agent {agent.name!r}"):
            await stack.enter_async_context(registered(self.registry, agent.public_card()))

    async def _drain(self) -> None:
        runs = tuple(self._runs)
        await asyncio.gather(*(handle.cancel("the group is closing") for handle in runs), return_exceptions=True)

    def __repr__(self) -> str:
        state = f"running, {len(self._runs)} runs" if self.running else "not running"
        return f"<AgentGroup of {len(self._members)} agents, {state}>"
