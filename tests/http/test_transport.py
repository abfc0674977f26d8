"""Over HTTP, requests and replies cross as over `runtime://`, between loops, processes and machines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator
from contextvars import ContextVar
from typing import Any

import pytest

from protolink import ConfigurationError, ProtolinkError, current_request_context, request_context
from protolink._environment import current_environment
from protolink.testing import ManualClock, use_environment
from protolink.transport import (
    HTTPTransport,
    PeerNotFoundError,
    PeerRefusedError,
    PeerUnavailableError,
    Transport,
    TransportError,
    TransportStartError,
    create_transport,
)
from protolink.transport.http import HTTPLimits
from protolink.transport.port import Frame, NetworkTransport
from tests.conftest import Interpreter
from tests.http.servers import Waiting, connected, exchange, free_url, listens, port_of, request_bytes, served


async def echo(operation: str, payload: Any) -> Any:
    return [operation, payload]


async def ask(url: str | None, payload: Any = None, operation: str = "task") -> Any:
    assert url is not None
    return await HTTPTransport().call(url, operation, payload)


async def test_a_request_is_answered() -> None:
    """Every text of JSON crosses both ways."""
    async with served(echo) as transport:
        sent = {"a": [1, None, "Grüße\u2028\x00\x7f"]}
        assert await ask(transport.url, sent) == ["task", sent]


async def test_every_operation_has_its_own_place() -> None:
    """What stands in the path comes back with the payload."""
    async with served(echo) as transport:
        cancellation = {"task_id": "a b?ü", "reason": "r"}
        assert await ask(transport.url, cancellation, "cancel") == ["cancel", cancellation]
        with pytest.raises(PeerNotFoundError):
            await ask(transport.url, {"task_id": "../card"}, "cancel")
        assert await ask(transport.url, None, "card") == ["card", None]
        assert await ask(transport.url, {"url": "u"}, "register") == ["register", {"url": "u"}]
        with pytest.raises(ConfigurationError, match="no operation 'drop'"):
            await ask(transport.url, None, "drop")


async def test_what_json_cannot_carry_does_not_cross() -> None:
    """Nothing was delivered."""
    async with served(echo) as transport:
        with pytest.raises(TypeError, match="the request"):
            await ask(transport.url, {"live": object()})


async def test_context_variables_do_not_cross() -> None:
    """Neither the caller's nor those of whoever started the server reach a request."""
    variable: ContextVar[str] = ContextVar("variable", default="none")
    seen: list[Any] = []

    async def look(operation: str, payload: Any) -> Any:
        seen.append((dict(current_request_context()), variable.get()))
        return None

    variable.set("the starter's")
    with request_context({"token": "t"}, inherit=("token",)):
        async with served(look) as transport:
            await ask(transport.url)

    assert seen == [({}, "none")]


async def test_the_peer_has_the_environment_that_it_was_started_in() -> None:
    """A simulation's clock governs the agents that it has started."""
    clock = ManualClock()
    found: list[object] = []

    async def look(operation: str, payload: Any) -> Any:
        found.append(current_environment())
        return None

    transport = HTTPTransport(free_url())
    transport.serve(look)
    with use_environment(clock):
        await transport.start()
    await ask(transport.url)
    await transport.stop()

    assert found == [clock]


async def test_a_taken_port_is_refused_and_the_program_lives() -> None:
    """The second to come gets an ordinary error; its stop does not evict the first."""
    async with served(echo) as first:
        second = HTTPTransport(first.url)
        second.serve(echo)
        with pytest.raises(TransportStartError, match="cannot listen"):
            await second.start()
        await second.stop()

        assert await ask(first.url) == ["task", None]


async def test_a_transport_starts_again_on_the_same_port() -> None:
    """Starting and stopping can be repeated, each without effect where it is done already."""
    transport = HTTPTransport(free_url())
    transport.serve(echo)
    for _ in range(2):
        await transport.start()
        await transport.start()
        assert await ask(transport.url) == ["task", None]
        await transport.stop()
        await transport.stop()
        with pytest.raises(PeerUnavailableError) as caught:
            await ask(transport.url)
        assert not caught.value.delivered


def test_an_event_loop_that_was_closed_holds_no_address() -> None:
    """A program that forgot to stop an agent in one loop can start it in the next."""
    transport = HTTPTransport(free_url())
    transport.serve(echo)

    async def start_again() -> Any:
        await transport.start()
        answer = await ask(transport.url)
        await transport.stop()
        return answer

    asyncio.run(transport.start())
    assert asyncio.run(start_again()) == ["task", None]
    asyncio.run(transport.start())
    asyncio.run(transport.stop())
    assert not listens(str(transport.url))


async def test_a_stop_leaves_nothing() -> None:
    """No task, no listening socket, no connection, also of a client that keeps one open."""
    before = asyncio.all_tasks()
    async with served(echo) as transport, served(echo) as other:
        assert transport.url is not None
        assert other.url is not None
        await transport.call(other.url, "task", None)
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(transport.url))
        writer.write(request_bytes(transport.url, "/health", Connection=None))
        await reader.readuntil(b"}")

    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert (listens(transport.url), listens(other.url)) == (False, False)
    assert asyncio.all_tasks() == before


async def test_connections_are_used_again_while_started() -> None:
    """And by a transport that only calls inside `async with`; each call has its own otherwise."""
    opened: list[Any] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(writer)
        while await reader.read(65536):
            writer.write(reply_bytes("200 OK", b"null"))
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with HTTPTransport() as transport:
        for _ in range(3):
            await transport.call(url, "card", None)
    assert len(opened) == 1
    for _ in range(3):
        await transport.call(url, "card", None)
    server.close()
    await server.wait_closed()

    assert len(opened) == 4


async def test_signals_and_loggers_of_the_application_stay() -> None:
    """A server inside an application takes over nothing of it."""
    import signal

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    access = logging.getLogger("uvicorn.access")
    settings = (access.level, list(access.handlers), access.propagate)
    async with served(echo) as transport:
        await ask(transport.url)
        assert {number: signal.getsignal(number) for number in handlers} == handlers
        assert (access.level, access.handlers, access.propagate) == settings


@pytest.mark.parametrize("error", [ValueError("no such thing"), ProtolinkError("no such thing")])
async def test_a_refusal_explains_itself(error: Exception) -> None:
    """The caller can mend its request; nothing was done."""

    async def refuse(operation: str, payload: Any) -> Any:
        raise error

    async with served(refuse) as transport:
        with pytest.raises(PeerRefusedError, match="no such thing") as caught:
            await ask(transport.url)

    assert not caught.value.delivered


async def test_what_is_not_there_is_told_as_that() -> None:
    """Also where the path is none of ours."""

    async def nothing(operation: str, payload: Any) -> Any:
        raise PeerNotFoundError("internal detail")

    async with served(nothing) as transport:
        with pytest.raises(PeerNotFoundError, match="nothing here") as caught:
            await ask(transport.url)
        with pytest.raises(PeerNotFoundError):
            await ask(f"{transport.url}/below")

    assert "internal detail" not in str(caught.value)


async def test_c17_a_peers_own_bug_is_told_to_its_operator_only(caplog: pytest.LogCaptureFixture) -> None:
    """The caller learns that it failed, with an id that the log explains."""

    async def fail(operation: str, payload: Any) -> Any:
        raise KeyError("internal detail")

    async with served(fail) as transport:
        assert transport.url is not None
        with pytest.raises(TransportError) as caught:
            await ask(transport.url)
        reply = await exchange(transport.url, request_bytes(transport.url, "/tasks", b"{}"))

    assert caught.value.delivered
    assert (reply.status, b"internal detail" in reply.body, b"/" in reply.body) == (500, False, False)
    assert reply.json["id"] in caplog.text
    assert "internal detail" in caplog.text


async def test_canceling_a_call_cancels_the_work() -> None:
    """Nobody would read the answer."""
    waiting = Waiting()
    async with served(waiting) as transport:
        asking = asyncio.create_task(ask(transport.url))
        await waiting.entered.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await waiting.canceled.wait()


async def test_stopping_ends_what_is_being_answered() -> None:
    """The caller is told that its request was on the way, and is not canceled itself."""
    waiting = Waiting()
    async with served(waiting) as transport:
        asking = asyncio.create_task(ask(transport.url))
        await waiting.entered.wait()
        await transport.stop()
        with pytest.raises(PeerUnavailableError) as caught:
            await asking

    assert caught.value.delivered
    assert waiting.canceled.is_set()


@contextlib.asynccontextmanager
async def wild_server(answer: bytes) -> AsyncGenerator[str]:
    """Somebody who reads a request, says `answer` and hangs up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await asyncio.gather(writer.drain(), return_exceptions=True)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await server.wait_closed()


def reply_bytes(status: str, body: bytes, *fields: str, media: str = "application/json") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {media}", f"Content-Length: {len(body)}", *fields, "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{",
        reply_bytes("200 OK", b"{"),
        reply_bytes("200 OK", b"\xff"),
        reply_bytes("200 OK", b"NaN"),
        reply_bytes("200 OK", b"null", media="text/html"),
        reply_bytes("200 OK", b"null", "Content-Encoding: gzip"),
        reply_bytes("302 Found", b"", "Location: /elsewhere"),
        reply_bytes("500 Internal Server Error", b""),
        reply_bytes("503 Service Unavailable", b"busy", media="text/plain"),
        reply_bytes("200 OK", b'"' + b"x" * 3000 + b'"'),
    ],
)
async def test_a_reply_that_is_none_leaves_the_outcome_unknown(answer: bytes) -> None:
    """The request was sent: what became of it has to be looked up, and a second attempt is not known to be safe."""
    limits = HTTPLimits(max_reply_bytes=2000)
    async with wild_server(answer) as url:
        with pytest.raises(TransportError) as caught:
            await HTTPTransport(limits=limits).call(url, "task", None)

    assert caught.value.delivered


async def test_a_peer_that_is_silent_is_given_up() -> None:
    """Each wait has an end."""
    waiting = Waiting()
    async with served(waiting) as transport:
        assert transport.url is not None
        with pytest.raises(PeerUnavailableError, match="in time") as caught:
            await HTTPTransport(limits=HTTPLimits(task_seconds=0.05)).call(transport.url, "task", None)

    assert caught.value.delivered


async def test_a_stream_is_read_as_it_comes() -> None:
    """Each frame arrives before the next is made; a transport whose peer does not stream gives the answer alone."""
    more = asyncio.Event()

    async def frames(operation: str, payload: Any) -> AsyncGenerator[Frame]:
        yield Frame("event", {"n": 1}, 1)
        await more.wait()
        yield Frame("task", payload)

    transport = HTTPTransport(free_url())
    transport.serve_network(echo, acting_as=lambda principal: contextlib.nullcontext(), stream=frames)
    await transport.start()
    assert transport.url is not None
    got: list[Frame] = []
    async for frame in HTTPTransport().stream(transport.url, "task", "p"):
        got.append(frame)
        more.set()
    await transport.stop()
    async with served(echo) as plain:
        assert plain.url is not None
        alone = [frame async for frame in HTTPTransport().stream(plain.url, "task", "p")]

    assert got == [Frame("event", {"n": 1}), Frame("task", "p")]
    assert alone == [Frame("task", ["task", "p"])]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"event":{}}\n', "ended before"),
        (b'{"receipt":{}}\n', "no stream"),
        (b"[]\n", "no stream"),
        (b"{\n", "no stream"),
        (b'{"event":"' + b"x" * 3000 + b'"}\n', "no stream"),
        (b'{"event":1}\n' * 500, "too long"),
        (b'{"error":{"status":500}}\n', "failed while"),
        (b'{"error":"?"}\n', "failed while"),
    ],
)
async def test_a_stream_without_its_end_leaves_the_outcome_unknown(body: bytes, message: str) -> None:
    """A peer can stop talking, talk nonsense or talk for ever."""
    limits = HTTPLimits(max_reply_bytes=2000, max_stream_bytes=5000)
    async with wild_server(reply_bytes("200 OK", body, media="application/x-ndjson")) as url:
        with pytest.raises(TransportError, match=message) as caught:
            async for _ in HTTPTransport(limits=limits).stream(url, "task", None):
                pass

    assert caught.value.delivered


async def test_a_silent_stream_shows_signs_of_life() -> None:
    """A reader can tell a peer that thinks from one that is gone."""

    async def frames(operation: str, payload: Any) -> AsyncGenerator[Frame]:
        yield Frame("event", {}, 1)
        await asyncio.Event().wait()

    transport = HTTPTransport(free_url(), limits=HTTPLimits(keep_alive_seconds=0.01))
    transport.serve_network(echo, acting_as=lambda principal: contextlib.nullcontext(), stream=frames)
    await transport.start()
    assert transport.url is not None
    async with connected(transport.url) as (reader, writer):
        writer.write(request_bytes(transport.url, "/tasks", b"{}", Accept="text/event-stream"))
        await reader.readuntil(b"data: {}\n\n")
        await reader.readuntil(b": \n\n")
        await reader.readuntil(b": \n\n")
    await transport.stop()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:1",
        "runtime://name",
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:0",
        "http://127.0.0.1:x",
        "http://127.0.0.1:99999",
        "http://user@127.0.0.1:1",
        "http://127.0.0.1:1?q",
        "http://127.0.0.1:1#f",
        "http://127.0.0.1:1\r\nX: y",
        "http://[::1",
        "http://a b",
        "http://ü",
        "http://127.0.0.1:1\\@other",
        7,
    ],
)
async def test_an_address_of_another_kind_is_refused(url: Any) -> None:
    """A misspelt address is not a peer that happens to be down."""
    with pytest.raises(ConfigurationError):
        HTTPTransport(url)
    with pytest.raises(ConfigurationError):
        await HTTPTransport().call(url, "task", None)


@pytest.mark.parametrize(
    "options",
    [
        {"url": "https://127.0.0.1:1"},
        {"url": "http://127.0.0.1:1/path"},
        {"bind": "127.0.0.1"},
        {"bind": "127.0.0.1:0"},
        {"authenticator": "key"},
        {"allowed_hosts": "localhost"},
        {"allowed_hosts": ["*"]},
        {"allowed_origins": "https://example.org"},
        {"allowed_origins": ["*"]},
        {"allowed_origins": ["example.org"]},
        {"credentials": {"http://127.0.0.1:1/path": "t"}},
        {"credentials": {"http://127.0.0.1:1": ""}},
        {"credentials": {"http://127.0.0.1:1": "a\r\nb"}},
        {"credentials": {"http://127.0.0.1:1": 7}},
        {"peers": "http://127.0.0.1:1"},
    ],
)
def test_wiring_that_cannot_work_is_refused(options: Any) -> None:
    """Where the transport is built."""
    settings: dict[str, Any] = {"url": "http://127.0.0.1:1", **options}
    with pytest.raises(ConfigurationError):
        HTTPTransport(**settings)


async def test_a_transport_needs_an_address_and_a_handler_to_start() -> None:
    """And serves one handler."""
    with pytest.raises(TransportStartError, match="address"):
        await HTTPTransport().start()
    transport = HTTPTransport(free_url())
    with pytest.raises(TransportStartError, match="nobody"):
        await transport.start()
    transport.serve(echo)
    with pytest.raises(ConfigurationError, match="already"):
        transport.serve(echo)


def test_the_transport_is_made_by_its_name() -> None:
    """With its options, which belong to no other transport and to no object that was made already."""
    made = create_transport("http", "http://127.0.0.1:1", credentials={})
    assert isinstance(made, HTTPTransport)
    assert isinstance(made, NetworkTransport)
    assert isinstance(made, Transport)
    with pytest.raises(ConfigurationError, match="no credentials"):
        create_transport("runtime", "runtime://x", credentials={})
    with pytest.raises(ConfigurationError, match="give credentials to the transport"):
        create_transport(made, credentials={})


def test_a_missing_extra_says_what_to_install(interpreter: Interpreter) -> None:
    """And concerns nobody who does not use HTTP."""
    program = """
import sys
sys.modules["{package}"] = None
from protolink import Agent, AgentGroup, ConfigurationError
from protolink.discovery import Registry
import protolink.transport
try:
    Agent(name="a", transport="http", url="http://127.0.0.1:1")
except ConfigurationError as error:
    print("protolink[http]" in str(error), "{package}" in str(error))
"""
    for package in ("starlette", "uvicorn", "httpx2"):
        assert interpreter(program.format(package=package)) == "True True\n"


def test_using_agents_loads_no_web_server(interpreter: Interpreter) -> None:
    """Importing stays cheap for those who embed agents without HTTP."""
    program = """
import sys
from protolink import Agent, AgentGroup
from protolink.transport import RuntimeTransport
print([name for name in ("starlette", "uvicorn", "httpx2", "h11") if name in sys.modules])
"""
    assert interpreter(program) == "[]\n"


async def test_a_port_that_somebody_else_has_is_no_peer_of_ours() -> None:
    """A program that accepts and says nothing is given up in time."""
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        url = f"http://127.0.0.1:{squatter.getsockname()[1]}"
        with pytest.raises(PeerUnavailableError):
            await HTTPTransport(limits=HTTPLimits(call_seconds=0.05)).call(url, "card", None)
