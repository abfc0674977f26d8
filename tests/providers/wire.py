"""An HTTP server on a real loopback socket that plays written answers, byte for byte, to whoever connects."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self

WAIT_SECONDS = 20.0
"""How long a test waits for something that happens at once."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the server sends, and how the connection goes on."""

    chunks: Sequence[bytes] = ()
    status: int = 200
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    ending: Literal["whole", "dropped", "held", "silent"] = "whole"
    """`dropped` resets the connection behind the last chunk, `held` keeps it open, `silent` sends not even a head."""

    left: threading.Event = field(default_factory=threading.Event)
    """Set once the client of a held answer has closed the connection."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a client sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: Any


class WireServer:
    """Plays its answers in order, or what `answering` makes of a request; runs in a thread with a loop of its own."""

    def __init__(self, answering: Callable[[Request], Answer] | None = None) -> None:
        self.requests: list[Request] = []
        self.connections = 0
        self.standing: dict[str, Answer] = {}
        """Answers of paths that are no part of the script."""

        self._answering = answering
        self._answers: deque[Answer] = deque()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: asyncio.Server | None = None
        self._served: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def play(self, *answers: Answer) -> None:
        self._answers.extend(answers)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._in_loop(asyncio.start_server(self._serve, "127.0.0.1", 0))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in_loop(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _in_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_SECONDS)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._served:
            task.cancel()
        await asyncio.gather(*self._served, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._served.add(task)
        self.connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while True:
                    request = await _read(reader)
                    self.requests.append(request)
                    if not await self._send(self._next(request), reader, writer):
                        break
        finally:
            self._served.discard(task)
            writer.transport.abort()

    def _next(self, request: Request) -> Answer:
        if self._answering is not None:
            return self._answering(request)
        if request.path in self.standing:
            return self.standing[request.path]
        if self._answers:
            return self._answers.popleft()
        return Answer(status=418, chunks=[b'{"error": "the script is over"}'])

    async def _send(self, answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection goes on."""
        try:
            if answer.ending != "silent":
                writer.write(_head(answer))
                for chunk in answer.chunks:
                    writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                    await writer.drain()
            if answer.ending == "whole":
                writer.write(b"0\r\n\r\n")
                await writer.drain()
                return True
            if answer.ending in ("held", "silent"):
                await reader.read()
        except ConnectionError:  # the client did not wait for all of it
            answer.left.set()
            return False
        if answer.ending in ("held", "silent"):
            answer.left.set()
        return False


def _head(answer: Answer) -> bytes:
    headers = {"content-type": answer.content_type, "transfer-encoding": "chunked", **answer.headers}
    lines = [f"HTTP/1.1 {answer.status} Status", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Request(method=method, path=path, headers=headers, body=json.loads(body) if body else None)
