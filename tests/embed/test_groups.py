"""A group starts completely or not at all, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest

from protolink import Agent, AgentGroup, ConfigurationError, Task
from protolink.client import AgentClient
from protolink.discovery import Registry
from protolink.testing import ManualClock, call, use_environment
from protolink.transport import PeerUnavailableError, RuntimeTransport, TransportStartError
from tests.support import model, turns


class Log:
    """Makes transports that record their starts and stops."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def transport(self, name: str, before: Any = None, after: Any = None) -> RuntimeTransport:
        """A transport that calls `before` and `after` its address is taken."""
        log = self

        class Recorded(RuntimeTransport):
            async def start(self) -> None:
                """Start, with what the test has in mind."""
                if before is not None:
                    await before()
                await super().start()
                log.entries.append(f"+{name}")
                if after is not None:
                    await after()

            async def stop(self) -> None:
                """Stop."""
                if f"+{name}" in log.entries:
                    log.entries.append(f"-{name}")
                await super().stop()

        return Recorded(f"runtime://groups-test-{name}")

    def agent(self, name: str, *responses: Any, before: Any = None, after: Any = None, **options: Any) -> Agent:
        return Agent(name=name, llm=model(*responses), transport=self.transport(name, before, after), **options)

    def named(self, sign: str) -> list[str]:
        """Whose entries begin with `sign`."""
        return sorted(entry[1:] for entry in self.entries if entry[0] == sign)

    def registry(self, before: Any = None) -> Registry:
        return Registry(self.transport("registry", before))


async def ask(name: str) -> Any:
    return await AgentClient().peer(f"runtime://groups-test-{name}").invoke("go")


async def forever() -> None:
    await asyncio.Event().wait()


async def test_everything_starts_in_order_and_stops_in_reverse() -> None:
    """The registry first and last, so that members find it when they come and when they go."""
    log = Log()
    registry = log.registry()
    async with AgentGroup([log.agent("a"), log.agent("b")], registry=registry, own_registry=True) as group:
        assert [card.name for card in await registry.discover()] == ["a", "b"]
        assert log.entries == ["+registry", "+a", "+b"]
        assert list(group.agents) == ["a", "b"]

    assert log.entries == ["+registry", "+a", "+b", "-b", "-a", "-registry"]


async def fails() -> None:
    raise OSError("the port is taken")


async def exits() -> None:
    sys.exit(1)


async def cancels_itself() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("problem", [fails, exits, cancels_itself])
async def test_a_member_that_cannot_start_rolls_everything_back(problem: Any, when: str) -> None:
    """One typed error that names the member, also for a server that exits; the group can be started again."""
    log = Log()
    broken = log.agent("broken", **{when: problem})
    members = [log.agent("a"), broken, log.agent("never")]
    group = AgentGroup(members, registry=log.registry(), own_registry=True)
    with pytest.raises(TransportStartError, match="'broken'"):
        await group.start()

    assert log.named("-") == log.named("+")
    assert "never" not in log.named("+")
    for name in ("a", "broken"):
        with pytest.raises(PeerUnavailableError):
            await ask(name)
    async with AgentGroup([log.agent("a"), log.agent("broken")], registry=log.registry(), own_registry=True):
        assert await ask("broken") == "done"


async def test_a_group_can_be_started_again_after_it_failed() -> None:
    """What was wrong may have been mended meanwhile."""
    squatter = Agent(name="squatter", llm=model(), transport="runtime", url="runtime://groups-test-b")
    await squatter.start()
    log = Log()
    group = AgentGroup([log.agent("a"), log.agent("b")], registry=log.registry(), own_registry=True)
    with pytest.raises(TransportStartError, match="taken"):
        await group.start()
    await squatter.stop()
    async with group:
        assert (await ask("a"), await ask("b")) == ("done", "done")
    async with group:
        assert await ask("a") == "done"


async def test_a_start_that_takes_too_long_is_rolled_back() -> None:
    """The time is counted for the whole group, by the clock of the environment."""
    clock = ManualClock()
    log = Log()
    group = AgentGroup([log.agent("a"), log.agent("slow", before=forever)], startup_timeout=5)
    with use_environment(clock):
        starting = asyncio.create_task(group.start())
        while "+a" not in log.entries:
            await turns(1)
        clock.advance(4.9)
        await turns(5)
        assert not starting.done()
        clock.advance(0.2)
        with pytest.raises(TransportStartError, match="within 5 seconds"):
            await starting

    assert log.entries == ["+a", "-a"]
    assert clock.waiting == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_start_that_is_canceled_is_rolled_back(when: str) -> None:
    """The caller is canceled as it asked, after everything was stopped again."""
    log = Log()
    slow = log.agent("slow", **{when: forever})
    group = AgentGroup([log.agent("a"), slow], registry=log.registry(), own_registry=True)
    starting = asyncio.create_task(group.start())
    while not starting.done() and "+a" not in log.entries:
        await turns(1)
    await turns(5)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    assert log.named("-") == log.named("+")
    for name in ("a", "slow"):
        with pytest.raises(PeerUnavailableError):
            await ask(name)


async def test_a_second_cancellation_does_not_leave_a_half_stopped_group() -> None:
    """Someone who is impatient gets the error, and a port that is free."""
    stopping, last = asyncio.Event(), asyncio.Event()

    class Slow(RuntimeTransport):
        async def start(self) -> None:
            """Take the address; the last member is never ready."""
            await super().start()
            if self.url == "runtime://groups-test-last":
                last.set()
                await forever()

        async def stop(self) -> None:
            """Take some turns of the loop to stop."""
            stopping.set()
            await turns(20)
            await super().stop()

    names = ("first", "second", "last")
    group = AgentGroup(
        [Agent(name=name, llm=model(), transport=Slow(f"runtime://groups-test-{name}")) for name in names]
    )
    starting = asyncio.create_task(group.start())
    await last.wait()
    starting.cancel()
    await stopping.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

    for name in names:
        with pytest.raises(PeerUnavailableError):
            await ask(name)


async def test_a_foreign_registry_is_entered_and_left_alone() -> None:
    """Members come and go; the registry stays, and a registry that is down keeps the group from starting."""
    log = Log()
    registry = log.registry()
    group = AgentGroup([log.agent("a")], registry=registry)
    with pytest.raises(TransportStartError, match="registration of agent 'a'"):
        await group.start()
    assert log.entries == ["+a", "-a"]
    await registry.start()
    async with group:
        assert [card.name for card in await registry.discover()] == ["a"]
    assert await registry.discover() == []
    await registry.stop()


async def test_an_agent_that_registers_itself_is_entered_once() -> None:
    """The group leaves an entry to whoever made it."""
    registry = Registry("runtime", "runtime://groups-test-registry", entry_ttl_seconds=30)
    clock = ManualClock()
    with use_environment(clock):
        agent = Agent(name="a", transport="runtime", url="runtime://groups-test-a", registry=registry)
        async with AgentGroup([agent, Agent(name="local")], registry=registry, own_registry=True):
            assert [card.name for card in await registry.discover()] == ["a"]
            await turns(5)
            assert clock.waiting == 1


async def test_a_run_that_the_group_started_ends_with_it() -> None:
    """It is canceled and awaited before its agent stops; runs started elsewhere go on."""
    entered, release = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait until released."""
        entered.set()
        await release.wait()
        return "released"

    agent = Agent(name="a", llm=model(call("wait")), tools=[wait])
    async with AgentGroup([agent]) as group:
        own = agent.start_run(Task.create_tool_call("wait"))
        handle = group.run(agent, Task.create_tool_call("wait"))
        await entered.wait()
        await turns(5)
    result = await handle.result()
    release.set()

    assert (result.status, result.task.metadata["cancel_reason"]) == ("canceled", "the group is closing")
    assert (await own.result()).output == "released"


async def test_a_group_keeps_nothing_of_a_run_that_has_ended() -> None:
    """A service runs for months."""
    async with AgentGroup([Agent(name="a", llm=model())]) as group:
        for _ in range(3):
            await group.run("a", "go").result()
        await turns(3)

        assert repr(group) == "<AgentGroup of 1 agents, running, 0 runs>"


async def test_starting_again_starts_nothing_again() -> None:
    """A member that is served already stays as it is."""
    log = Log()
    group = AgentGroup([log.agent("a")])
    await asyncio.gather(group.start(), group.start())
    await group.agents["a"].start()
    await group.close()
    await group.close()

    assert log.entries == ["+a", "-a"]


async def test_work_is_refused_outside_the_groups_lifetime() -> None:
    """Nobody would drain it."""
    group = AgentGroup([Agent(name="a", llm=model())])
    with pytest.raises(RuntimeError, match="not running"):
        group.run("a", "go")
    await group.start()
    await group.start()
    await group.close()
    await group.close()
    with pytest.raises(RuntimeError, match="not running"):
        group.run("a", "go")


async def test_work_is_refused_while_the_group_is_closing() -> None:
    """A run that came after the draining would be left behind."""
    refused: list[str] = []

    async def wait() -> None:
        """Wait, and when canceled try to start more work."""
        try:
            await asyncio.Event().wait()
        finally:
            try:
                group.run("a", "go")
            except RuntimeError as error:
                refused.append(str(error))

    agent = Agent(name="a", tools=[wait])
    async with AgentGroup([agent]) as group:
        handle = group.run("a", Task.create_tool_call("wait"))
        async for event in handle.events():
            if event.type == "action.started":
                break
        await turns(2)

    assert len(refused) == 1


async def test_only_members_take_work() -> None:
    """By name or as the very agent; another agent of the same name is none."""
    external = Agent(name="external", llm=model("from outside"))
    async with AgentGroup([Agent(name="a", llm=model())], external_agents=[external]) as group:
        assert (await group.run(external, "go").result()).output == "from outside"
        for stranger in ("nobody", Agent(name="a", llm=model())):
            with pytest.raises(ConfigurationError, match="is no member"):
                group.run(stranger, "go")


async def test_external_agents_are_neither_started_nor_stopped() -> None:
    """They belong to whoever made them."""
    log = Log()
    external = log.agent("external")
    async with AgentGroup([], external_agents=[external]):
        assert log.entries == []
    await external.start()
    async with AgentGroup([log.agent("a")], external_agents=[external]):
        pass

    assert await ask("external") == "done"
    await external.stop()


async def test_the_client_is_handed_out_as_it_is() -> None:
    """The application keeps it when the group ends."""
    client = AgentClient()
    async with AgentGroup([Agent(name="a")], client=client) as group:
        assert group.client is client


@pytest.mark.parametrize(
    "options",
    [
        {"agents": [Agent(name="a"), Agent(name="a")]},
        {"agents": [Agent(name="a")], "external_agents": [Agent(name="a")]},
        {"agents": ["a"]},
        {"agents": [], "own_registry": True},
        {"agents": [], "registry": "runtime"},
        {"agents": [], "startup_timeout": 0},
        {"agents": [], "startup_timeout": float("nan")},
        {"agents": [], "startup_timeout": True},
    ],
)
def test_a_group_that_cannot_work_is_refused(options: Any) -> None:
    """Where it is built."""
    with pytest.raises(ConfigurationError):
        AgentGroup(**options)


async def test_an_error_of_the_application_comes_out_as_it_is() -> None:
    """The group has shut down by then."""
    log = Log()
    with pytest.raises(LookupError):
        async with AgentGroup([log.agent("a")]):
            raise LookupError

    assert log.entries == ["+a", "-a"]
