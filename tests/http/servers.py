"""What the tests of HTTP share: free ports, served agents and handlers, and requests written by hand."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from protolink import Agent
from protolink.transport import HTTPTransport
from tests.support import model

# Below the ports that the system gives to outgoing connections, one of which could come first; each is given once.
_ports = itertools.cycle(range(20_000, 32_000))
for _ in range(os.getpid() % 12_000):
    next(_ports)


def free_url() -> str:
    """An address of this machine where nobody listens at the moment."""
    for port in _ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return f"http://127.0.0.1:{port}"
    raise AssertionError("every port is taken")


def port_of(url: str) -> int:
    """The port of such an address."""
    return int(url.rpartition(":")[2])


def listens(url: str) -> bool:
    """Whether anybody listens there."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port_of(url))) == 0


@asynccontextmanager
async def served(handler: Callable[[str, Any], Awaitable[Any]], **options: Any) -> AsyncGenerator[HTTPTransport]:
    """A started transport, stopped at the end."""
    transport = HTTPTransport(free_url(), **options)
    transport.serve(handler)
    await transport.start()
    try:
        yield transport
    finally:
        await transport.stop()


@asynccontextmanager
async def agent_at(url: str, *responses: Any, transport: Any = "http", **options: Any) -> AsyncGenerator[Agent]:
    """A started agent, stopped at the end."""
    settings: dict[str, Any] = {"name": "server", "llm": model(*responses), **options}
    agent = Agent(transport=transport, url=url, **settings)
    await agent.start()
    try:
        yield agent
    finally:
        await agent.stop()


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back on a connection."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def request_bytes(
    url: str, path: str, body: bytes | None = None, /, *, method: str | None = None, **headers: Any
) -> bytes:
    """A request as it goes over the wire; a header field of None is left out."""
    fields: dict[str, str | None] = {"Host": url.removeprefix("http://"), "Connection": "close"}
    if body is not None:
        fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method or ('GET' if body is None else 'POST')} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port_of(url))
    try:
        yield reader, writer
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


async def hung_up(reader: asyncio.StreamReader) -> bool:
    """Wait until the other side closes without a word."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


async def exchange(url: str, data: bytes) -> Reply:
    """Send bytes, and read until the server closes."""
    async with connected(url) as (reader, writer):
        writer.write(data)
        received = await reader.read()
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = _joined(body)
    return Reply(int(first.split(" ")[1]), headers, body)


def _joined(chunks: bytes) -> bytes:
    whole = b""
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        whole += rest[: int(size, 16)]
        chunks = rest[int(size, 16) + 2 :]
    return whole


async def post(url: str, path: str, value: Any = None, /, **headers: Any) -> Reply:
    """Send a value as JSON."""
    return await exchange(url, request_bytes(url, path, json.dumps(value).encode(), **headers))


async def get(url: str, path: str, /, **headers: Any) -> Reply:
    """Ask for a path."""
    return await exchange(url, request_bytes(url, path, **headers))


class Waiting:
    """A handler that waits until it is canceled, or let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.canceled = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, operation: str, payload: Any) -> Any:
        self.entered.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.canceled.set()
            raise
        return "let go"
