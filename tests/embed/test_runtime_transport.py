"""`runtime://` behaves as a wire would: text crosses, nothing else does."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from protolink import ConfigurationError, ProtolinkError, current_request_context, request_context
from protolink._environment import current_environment
from protolink.testing import ManualClock, use_environment
from protolink.transport import (
    PeerRefusedError,
    PeerUnavailableError,
    RuntimeTransport,
    Transport,
    TransportError,
    TransportStartError,
    create_transport,
)

URL = "runtime://transport-test"


@asynccontextmanager
async def served(handler: Callable[[str, Any], Awaitable[Any]]) -> AsyncGenerator[RuntimeTransport]:
    """A started transport, stopped at the end."""
    transport = RuntimeTransport(URL)
    transport.serve(handler)
    await transport.start()
    try:
        yield transport
    finally:
        await transport.stop()


async def echo(operation: str, payload: Any) -> Any:
    return [operation, payload]


def ask(payload: Any = None) -> Any:
    return RuntimeTransport().call(URL, "ask", payload)


async def test_a_request_is_answered() -> None:
    """A transport without an address of its own can call."""
    async with served(echo):
        assert await ask({"a": [1, None, "Grüße"]}) == ["ask", {"a": [1, None, "Grüße"]}]


async def test_both_sides_have_values_of_their_own() -> None:
    """Neither can change what the other holds, as if they were on two machines."""
    kept: list[Any] = []

    async def keep(operation: str, payload: Any) -> Any:
        kept.append(payload)
        return payload

    async with served(keep):
        sent = {"list": [1]}
        received = await ask(sent)
        received["list"].append(2)
        kept[0]["list"].append(3)

    assert (sent, received, kept) == ({"list": [1]}, {"list": [1, 2]}, [{"list": [1, 3]}])


async def test_what_json_cannot_carry_does_not_cross() -> None:
    """It would not cross a wire either; nothing was delivered."""
    async with served(echo):
        with pytest.raises(TypeError, match="the request"):
            await ask({"live": object()})


async def test_context_variables_do_not_cross() -> None:
    """Private request values stay with the request that has them, and so does everything like them."""
    variable: ContextVar[str] = ContextVar("variable", default="none")
    seen: list[Any] = []

    async def look(operation: str, payload: Any) -> Any:
        seen.append((dict(current_request_context()), variable.get()))
        variable.set("the peer's")
        return None

    async with served(look):
        variable.set("the caller's")
        with request_context({"token": "t"}, inherit=("token",)):
            await ask()
            assert dict(current_request_context()) == {"token": "t"}

    assert (seen, variable.get()) == ([({}, "none")], "the caller's")


async def test_the_peer_has_the_environment_that_it_was_started_in() -> None:
    """A simulation's clock governs the agents that it has started, whoever calls them."""
    clock = ManualClock()
    found: list[object] = []

    async def look(operation: str, payload: Any) -> Any:
        found.append(current_environment())
        return None

    with use_environment(clock):
        transport = RuntimeTransport(URL)
        transport.serve(look)
        await transport.start()
    await ask()
    await transport.stop()

    assert found == [clock]


async def test_a_taken_address_is_refused_and_stays_taken() -> None:
    """The second to come gets the error; its stop does not evict the first."""
    async with served(echo):
        second = RuntimeTransport(URL)
        second.serve(echo)
        with pytest.raises(TransportStartError, match="taken"):
            await second.start()
        await second.stop()

        assert await ask() == ["ask", None]


async def test_an_address_is_free_after_a_stop() -> None:
    """Starting and stopping can be repeated, each without effect where it is done already."""
    for _ in range(2):
        async with served(echo) as transport:
            await transport.start()
            assert await ask() == ["ask", None]
        await transport.stop()
        with pytest.raises(PeerUnavailableError) as caught:
            await ask()
        assert not caught.value.delivered


def test_an_event_loop_that_was_closed_holds_no_address() -> None:
    """A program that forgot to stop an agent in one loop can start it in the next."""

    async def start(transport: RuntimeTransport) -> Any:
        await transport.start()
        return await ask()

    forgotten, other = RuntimeTransport(URL), RuntimeTransport(URL)
    forgotten.serve(echo)
    other.serve(echo)
    asyncio.run(start(forgotten))
    assert asyncio.run(start(forgotten)) == ["ask", None]
    with pytest.raises(PeerUnavailableError):
        asyncio.run(ask())

    async def take_over() -> Any:
        await other.start()
        await forgotten.stop()
        return await ask()

    assert asyncio.run(take_over()) == ["ask", None]


async def test_a_call_from_another_event_loop_is_answered() -> None:
    """Threads with loops of their own share the process's agents; the handler stays on its loop."""
    loops: list[Any] = []

    async def where(operation: str, payload: Any) -> Any:
        loops.append(asyncio.get_running_loop())
        return payload

    async with served(where):
        assert await asyncio.to_thread(lambda: asyncio.run(ask("hello"))) == "hello"

    assert loops == [asyncio.get_running_loop()]


@pytest.mark.parametrize("error", [ValueError("no such thing"), ProtolinkError("no such thing")])
async def test_a_refusal_explains_itself(error: Exception) -> None:
    """The caller can mend its request; nothing was done."""

    async def refuse(operation: str, payload: Any) -> Any:
        raise error

    async with served(refuse):
        with pytest.raises(PeerRefusedError, match="no such thing") as caught:
            await ask()

    assert not caught.value.delivered


async def test_a_peers_own_bug_is_told_to_its_operator_only(caplog: pytest.LogCaptureFixture) -> None:
    """The caller learns that it failed, and not what the peer looks like inside."""

    async def fail(operation: str, payload: Any) -> Any:
        raise KeyError("internal detail")

    async with served(fail):
        with pytest.raises(TransportError) as caught:
            await ask()

    assert caught.value.delivered
    assert "internal detail" not in str(caught.value)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "internal detail" in caplog.text


class Waiting:
    """A handler that waits until it is canceled."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.canceled = asyncio.Event()

    async def __call__(self, operation: str, payload: Any) -> Any:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.canceled.set()
            raise


async def test_canceling_a_call_cancels_the_work() -> None:
    """Nobody would read the answer."""
    waiting = Waiting()
    async with served(waiting):
        asking = asyncio.create_task(ask())
        await waiting.entered.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        assert waiting.canceled.is_set()


async def test_stopping_ends_what_is_being_answered() -> None:
    """The caller is told that its request was on the way, and is not canceled itself."""
    waiting = Waiting()
    async with served(waiting) as transport:
        asking = asyncio.create_task(ask())
        await waiting.entered.wait()
        await transport.stop()
        with pytest.raises(PeerUnavailableError) as caught:
            await asking

    assert caught.value.delivered
    assert waiting.canceled.is_set()


@pytest.mark.parametrize("url", ["", "runtime://", "runtime:// ", "http://name", "name", 7])
async def test_an_address_of_another_kind_is_refused(url: Any) -> None:
    """A misspelt address is not a peer that happens to be down."""
    with pytest.raises(ConfigurationError, match="runtime://"):
        RuntimeTransport(url)
    with pytest.raises(ConfigurationError, match="runtime://"):
        await RuntimeTransport().call(url, "ask", None)


async def test_a_transport_needs_an_address_and_a_handler_to_start() -> None:
    """And serves one handler: two agents with one transport would answer for each other."""
    with pytest.raises(TransportStartError, match="address"):
        await RuntimeTransport().start()
    transport = RuntimeTransport(URL)
    with pytest.raises(TransportStartError, match="nobody"):
        await transport.start()
    transport.serve(echo)
    with pytest.raises(ConfigurationError, match="already"):
        transport.serve(echo)


def test_transports_are_made_by_name() -> None:
    """An object is taken as it is, and an unknown name says what is known."""
    transport = RuntimeTransport(URL)
    assert create_transport(transport) is transport
    assert create_transport("runtime", URL).url == URL
    assert isinstance(transport, Transport)
    with pytest.raises(ConfigurationError, match="'pigeon' is not known here, only 'http', 'runtime'"):
        create_transport("pigeon", "http://127.0.0.1:1")
    with pytest.raises(ConfigurationError, match="not int"):
        create_transport(7)
    with pytest.raises(ConfigurationError, match="runtime://other"):
        create_transport(transport, "runtime://other")
