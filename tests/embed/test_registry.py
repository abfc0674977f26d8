"""A registry knows who can be reached where, and forgets who has gone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from protolink import Agent, AgentCard, ConfigurationError
from protolink._runtime.principal import acting_as
from protolink.discovery import Directory, Registry, RegistryClient
from protolink.discovery.registry import MAX_CARD_CHARACTERS, MAX_ENTRIES_OF_ONE
from protolink.storage import InMemoryStorage, Storage
from protolink.testing import ManualClock, use_environment
from protolink.transport import (
    PeerRefusedError,
    PeerUnavailableError,
    RuntimeTransport,
    TransportError,
    TransportStartError,
)
from tests.embed.stores import BrokenStorage
from tests.support import model, turns

URL = "runtime://registry-test"


@asynccontextmanager
async def running(**options: Any) -> AsyncGenerator[Registry]:
    """A started registry, stopped at the end."""
    registry = Registry("runtime", URL, **options)
    await registry.start()
    try:
        yield registry
    finally:
        await registry.stop()


def card(name: str, **fields: Any) -> AgentCard:
    return AgentCard(name, url=f"runtime://registry-test-{name}", **fields)


async def names(directory: Directory, filter_by: Any = None) -> list[str]:
    return [found.name for found in await directory.discover(filter_by)]


@pytest.mark.parametrize("remote", [False, True])
async def test_cards_are_kept_in_order_until_they_leave(remote: bool) -> None:
    """The same answers in this process and over the transport."""
    async with running() as registry:
        directory: Directory = RegistryClient("runtime", URL) if remote else registry
        assert await directory.register(card("a")) is None
        await directory.register(card("b"))

        assert await names(directory) == ["a", "b"]
        assert await directory.unregister(card("a").url or "")
        assert not await directory.unregister(card("a").url or "")
        assert await names(directory) == ["b"]


async def test_an_entry_is_known_by_its_address() -> None:
    """Registering again replaces the card; a name proves nothing and may repeat."""
    async with running() as registry:
        await registry.register(card("a"))
        await registry.register(card("a", description="newer"))
        await registry.register(AgentCard("a", url="runtime://elsewhere"))

        assert [found.description for found in await registry.discover()] == ["newer", ""]


@pytest.mark.parametrize("remote", [False, True])
async def test_cards_can_be_filtered(remote: bool) -> None:
    """By what they say of themselves, all conditions at once."""
    async with running() as registry:
        directory: Directory = RegistryClient("runtime", URL) if remote else registry
        await directory.register(card("a", skills=[{"name": "lookup"}], version="2"))
        await directory.register(card("b", skills=[{"name": "lookup"}]))

        assert await names(directory, {"skill": "lookup"}) == ["a", "b"]
        assert await names(directory, {"skill": "lookup", "version": "2"}) == ["a"]
        assert await names(directory, {"name": "c"}) == []
        with pytest.raises((ValueError, PeerRefusedError), match="not by 'nmae'"):
            await directory.discover({"nmae": "a"})


async def test_changing_a_card_changes_no_entry() -> None:
    """Whoever asked or registered has a card of its own."""
    mine = card("a")
    async with running() as registry:
        await registry.register(mine)
        mine.description = "changed"
        (await registry.discover())[0].description = "changed"

        assert [found.description for found in await registry.discover()] == [""]


async def test_a_card_without_an_address_is_refused() -> None:
    """Nobody could reach that agent."""
    async with running() as registry:
        with pytest.raises(ValueError, match="no address"):
            await registry.register(AgentCard("a"))


async def test_a_silent_entry_is_forgotten() -> None:
    """Time to live is measured by the monotonic clock, from the last heartbeat."""
    clock = ManualClock()
    with use_environment(clock):
        async with running(entry_ttl_seconds=30) as registry:
            assert await registry.register(card("a")) == 30
            await registry.register(card("b"))
            clock.advance(20)
            assert await registry.heartbeat(card("a").url or "")
            clock.advance(20)

            assert await names(registry) == ["a"]
            assert not await registry.heartbeat(card("b").url or "")


async def test_an_agent_is_heard_as_long_as_it_serves() -> None:
    """It sends its heartbeats by itself, and registers again where it was forgotten."""
    clock = ManualClock()
    with use_environment(clock):
        async with running(entry_ttl_seconds=30) as registry:
            agent = Agent(name="a", transport="runtime", url=card("a").url, registry=registry)
            await agent.start()
            for _ in range(12):
                clock.advance(10)
                await turns(5)
            assert await names(registry) == ["a"]
            await registry.unregister(card("a").url or "")
            clock.advance(10)
            await turns(5)
            assert await names(registry) == ["a"]
            await agent.stop()

            assert await names(registry) == []
            assert clock.waiting == 0


async def test_entries_survive_a_restart_in_a_storage() -> None:
    """Each has its whole time to live before it again, for clocks do not survive."""
    storage = InMemoryStorage()
    clock = ManualClock()
    with use_environment(clock):
        async with running(storage=storage, entry_ttl_seconds=30) as registry:
            await registry.register(card("a"))
            await registry.register(card("b"))
            await registry.unregister(card("b").url or "")
            clock.advance(29)
        async with running(storage=storage, entry_ttl_seconds=30) as registry:
            clock.advance(29)
            assert await names(registry) == ["a"]
            clock.advance(2)
            assert await names(registry) == []


async def test_a_registry_that_does_not_run_answers_nobody() -> None:
    """Neither directly nor over the transport; the caller can tell it from an empty one."""
    registry = Registry("runtime", URL)
    for directory in (registry, RegistryClient("runtime", URL)):
        with pytest.raises(PeerUnavailableError):
            await directory.discover()
        with pytest.raises(PeerUnavailableError):
            await directory.register(card("a"))


async def test_starting_and_stopping_can_be_repeated() -> None:
    """Without a storage a stopped registry has forgotten everything."""
    registry = Registry("runtime", URL)
    for _ in range(2):
        await registry.start()
        await registry.start()
        assert await names(registry) == []
        await registry.register(card("a"))
        await registry.stop()
        await registry.stop()


async def test_a_registry_whose_address_is_taken_does_not_start() -> None:
    """One typed error, and the one that runs is not disturbed."""
    async with running() as registry:
        with pytest.raises(TransportStartError, match="taken"):
            await Registry("runtime", URL).start()
        assert await names(registry) == []


class Unreadable(InMemoryStorage):
    """A storage that cannot be read."""

    def load(self) -> dict[str, Any] | None:
        """Fail."""
        raise OSError("the disk is gone")


@pytest.mark.parametrize("storage", [Unreadable()])
async def test_a_registry_whose_storage_fails_does_not_start(storage: Storage) -> None:
    """An empty registry would look like a team that has gone."""
    registry = Registry("runtime", URL, storage=storage)
    with pytest.raises(TransportStartError, match="the disk is gone"):
        await registry.start()
    async with running():
        pass


async def test_an_unknown_operation_is_refused() -> None:
    """Whatever is sent, the answer is a refusal and not a crash."""
    async with running():
        for operation, payload in (("drop", {}), ("register", {}), ("register", []), ("heartbeat", {"url": 7})):
            with pytest.raises(PeerRefusedError):
                await RuntimeTransport().call(URL, operation, payload)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"transport": "runtime"},
        {"transport": "pigeon", "url": "http://127.0.0.1:1"},
        {"transport": "runtime", "url": "http://127.0.0.1:1"},
        {"transport": "runtime", "url": URL, "entry_ttl_seconds": 0},
        {"transport": "runtime", "url": URL, "entry_ttl_seconds": float("inf")},
        {"transport": "runtime", "url": URL, "storage": "storage.db"},
    ],
)
def test_a_registry_that_cannot_work_is_refused(options: Any) -> None:
    """Where it is built."""
    with pytest.raises(ConfigurationError):
        Registry(**options)


async def test_a_registry_that_goes_down_disturbs_no_agent(caplog: pytest.LogCaptureFixture) -> None:
    """A member that cannot leave its registry stops all the same, and the operator is told."""
    async with running() as registry:
        agent = Agent(name="a", transport="runtime", url=card("a").url, registry="runtime", registry_url=URL)
        await agent.start()
        assert await names(registry) == ["a"]
    await agent.stop()

    assert "could not leave its registry" in caplog.text


async def passing(clock: ManualClock, seconds: float) -> None:
    """Let time pass second by second, with turns of the loop for whoever is woken up."""
    for _ in range(round(seconds)):
        clock.advance(1)
        await turns(10)


async def test_an_agent_is_entered_again_by_a_registry_that_has_forgotten_everything() -> None:
    """Also where entries live for ever: a registry without a storage knows nobody after its restart."""
    clock = ManualClock()
    with use_environment(clock):
        agent = Agent(name="a", transport="runtime", url=card("a").url, registry="runtime", registry_url=URL)
        async with running():
            await agent.start()
        async with running() as restarted:
            assert await names(restarted) == []
            await passing(clock, 31)
            assert await names(restarted) == ["a"]
            await agent.stop()


async def test_a_registry_that_is_down_is_asked_again_ever_more_rarely(caplog: pytest.LogCaptureFixture) -> None:
    """The agent works on, the operator is told once, and the registry has the agent soon after it is back."""
    asked: list[float] = []
    clock = ManualClock()

    class Flaky(Registry):
        down = False

        async def heartbeat(self, url: str) -> bool:
            """Note the time, and fail while the registry is down."""
            asked.append(clock.monotonic())
            if self.down:
                raise PeerUnavailableError("nobody answers")
            return await super().heartbeat(url)

    with use_environment(clock):
        registry = Flaky("runtime", URL, entry_ttl_seconds=60)
        await registry.start()
        agent = Agent(name="a", llm=model("answer"), transport="runtime", url=card("a").url, registry=registry)
        await agent.start()
        registry.down = True
        await passing(clock, 60)
        waits = [later - earlier for earlier, later in pairwise(asked)]
        assert await agent.invoke("go") == "answer"
        registry.down = False
        await passing(clock, 21)
        assert await names(registry) == ["a"]
        await agent.stop()
        await registry.stop()

    assert waits[:5] == [1, 1, 2, 4, 8]
    assert [record.getMessage() for record in caplog.records] == [
        "runtime://registry-test-a was not heard by its registry: PeerUnavailableError: nobody answers",
        "runtime://registry-test-a is heard by its registry again",
    ]


async def test_a_card_that_cannot_be_kept_leaves_the_one_before() -> None:
    """Whoever is registered stays so when its newer card is refused by the storage."""

    class Full(InMemoryStorage):
        full = False

        def save(self, data: Any) -> None:
            """Save, until the disk is full."""
            if self.full:
                raise OSError("the disk is full")
            super().save(data)

    storage = Full()
    async with running(storage=storage) as registry:
        await registry.register(card("a"))
        storage.full = True
        with pytest.raises(OSError, match="full"):
            await registry.register(card("a", description="newer"))

        assert [found.description for found in await registry.discover()] == [""]


async def test_c04_a_registry_keeps_so_much_and_no_more() -> None:
    """Of one principal who is not of this process, and of one card; whoever is in it can still change its card."""
    async with running() as registry:
        with acting_as("alice"):
            for number in range(MAX_ENTRIES_OF_ONE):
                await registry.register(AgentCard("a", url=f"http://a:{number + 1}"))
            with pytest.raises(ValueError, match=f"{MAX_ENTRIES_OF_ONE} of one principal"):
                await registry.register(AgentCard("a", url="http://a:9000"))
            await registry.register(AgentCard("newer", url="http://a:1"))
            with pytest.raises(ValueError, match="a card has at most"):
                await registry.register(AgentCard("a", url="http://a:1", description="x" * MAX_CARD_CHARACTERS))
        with acting_as("bob"):
            await registry.register(AgentCard("b", url="http://b:1"))

        assert len(await registry.discover()) == MAX_ENTRIES_OF_ONE + 1
        assert len(await registry.discover({"name": "newer"})) == 1


async def test_an_agent_that_cannot_register_does_not_start() -> None:
    """Its address is given back."""
    agent = Agent(name="a", llm=model(), transport="runtime", url=card("a").url, registry="runtime", registry_url=URL)
    with pytest.raises(TransportStartError, match="agent 'a' could not be started"):
        await agent.start()
    with pytest.raises(TransportError):
        await agent.peer(card("a").url or "").invoke("go")
    async with running() as registry:
        await agent.start()
        assert await names(registry) == ["a"]
        await agent.stop()


async def test_a_storage_that_cannot_be_written_fails_the_registration() -> None:
    """An entry that would not survive is not promised."""

    class Full(BrokenStorage):
        def save(self, data: Any) -> None:
            """Fail."""
            raise OSError("the disk is full")

    async with running(storage=Full()) as registry:
        with pytest.raises(OSError, match="full"):
            await registry.register(card("a"))
        assert await names(registry) == []
