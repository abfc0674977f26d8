"""What a request has to pass before anybody reads it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from protolink.transport import HTTPTransport, TransportStartError
from protolink.transport.http import APIKeyAuthenticator, HTTPLimits
from protolink.transport.http.routes import ROUTES
from protolink.transport.port import Frame
from tests.http.servers import (
    Reply,
    connected,
    exchange,
    free_url,
    get,
    hung_up,
    listens,
    port_of,
    post,
    request_bytes,
    served,
)

ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789ab"
KEYS = APIKeyAuthenticator({ALICE: "alice", BOB: "bob"})


class Calls:
    """A handler that counts."""

    def __init__(self) -> None:
        self.number = 0

    async def __call__(self, operation: str, payload: Any) -> Any:
        self.number += 1
        return payload


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
async def test_c01_other_machines_are_served_only_with_authentication(host: str) -> None:
    """Or where it was said by name that nobody is asked."""
    port = port_of(free_url())
    transport = HTTPTransport(f"http://{host}:{port}")
    transport.serve(Calls())
    with pytest.raises(TransportStartError, match="authenticator="):
        await transport.start()
    assert not listens(f"http://127.0.0.1:{port}")

    either: list[dict[str, Any]] = [{"authenticator": KEYS}, {"allow_unauthenticated": True}]
    for options in either:
        made = HTTPTransport(free_url(), bind=f"0.0.0.0:{port}", **options)
        made.serve(Calls())
        await made.start()
        assert listens(f"http://127.0.0.1:{port}")
        await made.stop()


async def test_c01_binding_elsewhere_needs_authentication_too() -> None:
    """What counts is who can reach the port, and not what the URL says."""
    transport = HTTPTransport(free_url(), bind=f"0.0.0.0:{port_of(free_url())}")
    transport.serve(Calls())
    with pytest.raises(TransportStartError, match="authenticator="):
        await transport.start()


def requests_of_every_route(url: str, **headers: Any) -> Iterator[bytes]:
    for route in ROUTES:
        path = route.path.replace("{task_id}", "t")
        yield request_bytes(url, path, b"{}" if route.method == "POST" else None, **headers)


async def test_c01_every_route_asks_who_is_there() -> None:
    """Generated from the table of routes; the health check alone says nothing that anybody could use."""
    calls = Calls()
    async with served(calls, authenticator=KEYS) as transport:
        url = str(transport.url)
        wrong = "wrong-key-0123456789"
        for headers in ({}, {"Authorization": f"Bearer {wrong}"}, {"X_API_Key": wrong}, {"Authorization": ALICE}):
            for request in requests_of_every_route(url, **headers):
                reply = await exchange(url, request)
                assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert calls.number == 0
        for headers in ({"Authorization": f"Bearer {ALICE}"}, {"X_API_Key": BOB}):
            for request in requests_of_every_route(url, **headers):
                assert (await exchange(url, request)).status == 200
        assert calls.number == 2 * len(ROUTES)
        assert (await get(url, "/health")).json == {"status": "ok"}
        assert (await get(url, "/nowhere")).status == 401


FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:{port}",
    "127.0.0.1:1",
    "127.0.0.1",
    "localhost.evil.example:{port}",
    "127.0.0.1.evil.example:{port}",
    "127.0.0.1:{port}:{port}",
    "127.0.0.1:{port}@evil.example",
    "user@127.0.0.1:{port}",
    "[::ffff:127.0.0.1]:{port}",
    "169.254.169.254",
    "",
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
async def test_c03_a_foreign_host_is_refused(host: str) -> None:
    """A web page that has its name point to this machine reaches nothing."""
    calls = Calls()
    async with served(calls) as transport:
        url = str(transport.url)
        for request in requests_of_every_route(url, Host=host.format(port=port_of(url))):
            assert (await exchange(url, request)).status == 403

    assert calls.number == 0


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "https://127.0.0.1",
        "http://127.0.0.1:{port}",
        "http://localhost:{port}",
        "null",
        "",
        "file://",
        "https://allowed.example.evil",
        "https://allowed.example:444",
    ],
)
async def test_c03_a_foreign_origin_is_refused(origin: str) -> None:
    """Also one that claims to be this server's: it serves no pages."""
    calls = Calls()
    async with served(calls, allowed_origins=["https://allowed.example"]) as transport:
        url = str(transport.url)
        for request in requests_of_every_route(url, Origin=origin.format(port=port_of(url))):
            reply = await exchange(url, request)
            assert (reply.status, "access-control-allow-origin" in reply.headers) == (403, False)
        assert calls.number == 0
        assert (await post(url, "/tasks", Origin="https://allowed.example")).status == 200


async def test_c03_a_preflight_is_answered_by_nobody() -> None:
    """There is no cross-origin sharing to be had."""
    async with served(Calls(), allowed_origins=["https://allowed.example"]) as transport:
        url = str(transport.url)
        reply = await exchange(url, request_bytes(url, "/tasks", method="OPTIONS", Origin="https://allowed.example"))

    assert reply.status == 405
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "media",
    [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json"],
)
async def test_c03_what_a_form_can_send_is_refused(media: str | None) -> None:
    """A page can send those without being asked for permission first."""
    calls = Calls()
    async with served(calls) as transport:
        assert (await post(str(transport.url), "/tasks", Content_Type=media)).status == 415

    assert calls.number == 0


async def test_c03_this_machines_own_names_are_known() -> None:
    """And those that the application lists, with a port or with any."""
    async with served(Calls()) as transport:
        url = str(transport.url)
        for host in ("localhost", "LOCALHOST", "127.0.0.1", "[::1]"):
            assert (await post(url, "/tasks", Host=f"{host}:{port_of(url)}")).status == 200
    async with served(Calls(), allowed_hosts=["agents.example", "other.example:8"]) as transport:
        url = str(transport.url)
        hosts = ("agents.example", "Agents.Example:1", "other.example:8", "other.example", url.removeprefix("http://"))
        assert [(await post(url, "/tasks", Host=host)).status for host in hosts] == [200, 200, 200, 403, 403]


async def test_c04_a_large_body_is_refused_unread() -> None:
    """Whether its length was told or not; the answer arrives although the sender had not finished."""
    calls = Calls()
    async with served(calls, limits=HTTPLimits(max_body_bytes=1000)) as transport:
        url = str(transport.url)
        large = json.dumps("x" * 2000).encode()
        told = await exchange(url, request_bytes(url, "/tasks", large))
        only_told = await exchange(url, request_bytes(url, "/tasks", b"", Content_Length="10000000"))
        chunked = request_bytes(url, "/tasks", b"", Content_Length=None, Transfer_Encoding="chunked")
        untold = await exchange(url, chunked + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n")
        waiting = await exchange(url, request_bytes(url, "/tasks", b"", Content_Length="5000", Expect="100-continue"))

        assert [reply.status for reply in (told, only_told, untold, waiting)] == [413] * 4
        assert (await post(url, "/tasks", "x" * 900)).status == 200
    assert calls.number == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"a":1,"a":2}',
        b"NaN",
        b"1e999",
        b"\xff\xfe",
        b'"\\ud800"',
        b"[" * 65 + b"]" * 65,
        b"[" * 500_000,
        b"1" * 5000,
    ],
)
async def test_c04_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    """Or is none that every reader understands the same way, or is nested too deeply."""
    calls = Calls()
    async with served(calls) as transport:
        reply = await exchange(str(transport.url), request_bytes(str(transport.url), "/tasks", body))
        assert (await post(str(transport.url), "/tasks", [[[[]]]])).status == 200

    assert (reply.status, reply.headers["content-type"], calls.number) == (400, "application/problem+json", 1)


async def test_c04_a_compressed_body_is_refused() -> None:
    """Nothing is unpacked before it is known how large it gets."""
    async with served(Calls()) as transport:
        assert (await post(str(transport.url), "/tasks", Content_Encoding="gzip")).status == 415


async def test_c04_a_large_header_is_refused() -> None:
    """By its size and by the number of its fields."""
    async with served(Calls(), limits=HTTPLimits(max_header_bytes=2000, max_header_fields=20)) as transport:
        url = str(transport.url)
        assert (await get(url, "/health", X_Large="x" * 2000)).status == 431
        assert (await get(url, "/health", **dict[str, Any]((f"X_{number}", "") for number in range(20)))).status == 431
        # A header without an end is not waited for.
        assert (await exchange(url, b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000)).status == 400
        assert (await get(url, "/health")).status == 200


@pytest.mark.parametrize("name", ["Host", "Origin", "Authorization", "Content-Type"])
async def test_c04_a_field_that_decides_stands_once(name: str) -> None:
    """Two readers might believe different ones."""
    async with served(Calls(), allowed_origins=["https://a.example"]) as transport:
        url = str(transport.url)
        value = url.removeprefix("http://") if name == "Host" else "https://a.example"
        request = request_bytes(url, "/health", **{name.replace("-", "_"): value})
        doubled = request.replace(b"\r\n\r\n", f"\r\n{name}: {value}\r\n\r\n".encode())
        assert (await exchange(url, doubled)).status == 400


async def test_c04_a_slow_sender_is_given_up() -> None:
    """With its header, and with its body; who opens a connection and says nothing, too."""
    limits = HTTPLimits(header_seconds=0.05, body_seconds=0.05)
    async with served(Calls(), limits=limits) as transport:
        url = str(transport.url)
        assert (await exchange(url, request_bytes(url, "/tasks", b"", Content_Length="10"))).status == 408
        for beginning in (b"", b"POST /ta", b"POST /tasks HTTP/1.1\r\nHost: x\r\n"):
            async with connected(url) as (reader, writer):
                writer.write(beginning)
                assert await hung_up(reader)


async def test_c04_no_more_is_done_at_a_time_than_allowed() -> None:
    """For one principal, whose excess is nobody else's trouble, and for all; a place that was left is free again."""
    begun, go = asyncio.Queue[str](), asyncio.Event()

    async def wait(operation: str, payload: Any) -> Any:
        begun.put_nowait(operation)
        await go.wait()

    limits = HTTPLimits(max_requests=3, max_requests_per_principal=2)
    async with served(wait, authenticator=KEYS, limits=limits) as transport:
        url, first, refused = str(transport.url), list[asyncio.Task[Reply]](), list[Reply]()
        for key, places in ((ALICE, 2), (BOB, 1)):
            for _ in range(places):
                first.append(asyncio.create_task(post(url, "/tasks", Authorization=f"Bearer {key}")))
                await begun.get()
            refused.append(await post(url, "/tasks", Authorization=f"Bearer {key}"))
        assert (await get(url, "/health")).status == 200
        go.set()
        assert [(await task).status for task in first] == [200] * 3
        assert (await post(url, "/tasks", Authorization=f"Bearer {ALICE}")).status == 200

    assert [(reply.status, reply.headers["retry-after"]) for reply in refused] == [(429, "1")] * 2


async def test_c04_connections_are_counted() -> None:
    """One too many is closed at once."""
    async with served(Calls(), limits=HTTPLimits(max_connections=2)) as transport:
        url = str(transport.url)
        async with connected(url), connected(url), connected(url) as (reader, _):
            assert await hung_up(reader)
        assert (await get(url, "/health")).status == 200


async def test_c04_a_reply_that_nobody_reads_gives_its_place_back() -> None:
    """It is dropped, and others are answered."""
    limits = HTTPLimits(max_requests=1, write_seconds=0.5)

    async def much(operation: str, payload: Any) -> Any:
        return "x" * payload

    async with served(much, limits=limits) as transport:
        url = str(transport.url)
        async with connected(url) as (_, writer):
            writer.write(request_bytes(url, "/tasks", b"15000000"))
            while (await post(url, "/tasks", 1)).status == 200:
                pass  # until the large one has the only place
            while (await post(url, "/tasks", 1)).status == 429:
                pass


async def test_c04_a_sender_that_stops_half_way_holds_up_no_stop() -> None:
    """A body that never comes is not waited for when the server stops."""
    transport = HTTPTransport(free_url(), limits=HTTPLimits(body_seconds=1000, header_seconds=1000))
    transport.serve(Calls())
    await transport.start()
    url = str(transport.url)
    async with connected(url) as (first, writer), connected(url) as (second, other):
        writer.write(request_bytes(url, "/tasks", b"", Content_Length="10", Expect="100-continue"))
        await first.readuntil(b"100 Continue")
        other.write(b"POST /ta")
        await transport.stop()
        assert await hung_up(second)


async def test_c04_a_reader_that_reads_nothing_is_dropped() -> None:
    """What it asked for is given up, and the server stops in spite of it."""
    left = asyncio.Event()

    async def frames(operation: str, payload: Any) -> AsyncGenerator[Frame]:
        try:
            while True:
                yield Frame("event", "x" * 100_000, 1)
        finally:
            left.set()

    transport = HTTPTransport(free_url(), limits=HTTPLimits(write_seconds=0.05))
    transport.serve_network(Calls(), acting_as=lambda principal: nullcontext(), stream=frames)
    await transport.start()
    async with connected(str(transport.url)) as (_, writer):
        writer.write(request_bytes(str(transport.url), "/tasks", b"{}", Accept="application/x-ndjson"))
        await left.wait()
    await transport.stop()


@pytest.mark.parametrize(
    ("accept", "status", "media"),
    [
        ("*/*", 200, "application/json"),
        ("application/json", 200, "application/json"),
        ("text/event-stream", 200, "text/event-stream; charset=utf-8"),
        ("application/x-ndjson, application/json", 200, "application/x-ndjson"),
        ("text/html, application/json;q=0.9", 200, "application/json"),
        ("text/event-stream;q=0, */*", 200, "application/json"),
        ("text/html", 406, "application/problem+json"),
    ],
)
async def test_an_answer_has_the_form_that_is_asked_for(accept: str, status: int, media: str) -> None:
    """A stream only for who can read one."""

    async def frames(operation: str, payload: Any) -> AsyncGenerator[Frame]:
        yield Frame("task", payload)

    transport = HTTPTransport(free_url())
    transport.serve_network(Calls(), acting_as=lambda principal: nullcontext(), stream=frames)
    await transport.start()
    reply = await post(str(transport.url), "/tasks", Accept=accept)
    await transport.stop()

    assert (reply.status, reply.headers["content-type"]) == (status, media)


async def test_c17_refusals_tell_nothing_of_the_inside() -> None:
    """No path, no version, no name of a class; and none of it is to be kept or taken for something else."""
    async with served(Calls(), authenticator=KEYS) as transport:
        url = str(transport.url)
        key = {"Authorization": f"Bearer {ALICE}"}
        replies = [
            await get(url, "/health"),
            await get(url, "/tasks"),
            await get(url, "/nowhere", **key),
            await get(url, "/tasks", **key),
            await get(url, "/tasks/", **key),
            await get(url, "/health", Host="evil"),
            await exchange(url, request_bytes(url, "/tasks", b"{", **key)),
            await exchange(url, request_bytes(url, "/tasks/t/cancel", b"[]", **key)),
            await post(url, "/tasks/%2e%2e/cancel/x", **key),
        ]

    assert [reply.status for reply in replies] == [200, 401, 404, 405, 404, 403, 400, 422, 404]
    for reply in replies:
        assert (reply.headers["x-content-type-options"], reply.headers["cache-control"]) == ("nosniff", "no-store")
        assert not {"server", "x-powered-by"} & set(reply.headers)
        text = reply.body.decode().lower()
        assert not [word for word in ("protolink", "starlette", "uvicorn", "python", ".py", "error") if word in text]
    assert replies[2].body == replies[4].body == replies[8].body
