"""A server in a process of its own, and a client that costs little beside it."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Connection", "Server", "connected", "request", "serving"]

_ROOT: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Server:
    """A process that listens."""

    port: int
    pid: int

    @property
    def resident_bytes(self) -> int:
        """Its memory."""
        pages = Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def serving(factory: str) -> AsyncGenerator[Server]:
    """An application of `benchmarks.applications` behind uvicorn, until the block ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["-m", "uvicorn", f"benchmarks.applications:{factory}", "--factory", "--port", str(port)]
    quiet = ["--no-access-log", "--log-level", "error"]
    process = await asyncio.create_subprocess_exec(sys.executable, *command, *quiet, cwd=_ROOT)
    try:
        async with connected(port, patience=400) as connection:
            await connection.ask(request("GET", "/ready"))
        yield Server(port, process.pid)
    finally:
        process.kill()
        await process.wait()


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """A request as it goes over the wire."""
    fields = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body


@asynccontextmanager
async def connected(port: int, patience: int = 1) -> AsyncGenerator[Connection]:
    """A connection that is kept, tried so many times."""
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
            break
        except ConnectionRefusedError:
            patience -= 1
            if patience <= 0:
                raise
            await asyncio.sleep(0.05)
    try:
        yield Connection(reader, writer)
    finally:
        writer.close()


class Connection:
    """Sends requests and reads whole answers, or their parts as they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        """Send a request."""
        self._writer.write(data)

    async def ask(self, data: bytes) -> bytes:
        """Send a request and give the body of its answer."""
        self.send(data)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            return b"".join([part async for part in self.parts()])
        _, found, rest = head.partition(b"content-length: ")
        return await self._reader.readexactly(int(rest.partition(b"\r\n")[0]) if found else 0)

    async def until(self, text: bytes) -> None:
        """Read until a text has come."""
        await self._reader.readuntil(text)

    async def parts(self) -> AsyncIterator[bytes]:
        """The chunks of an answer that comes in chunks."""
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readexactly(2)
