"""A run's events as a response: those that are there, then those that come, for as long as somebody reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from protolink._runtime.tailing import Tail
from protolink._runtime.views import Views
from protolink.errors import DurableExecutionError
from protolink.events import RunEvent
from protolink.http.problems import left_unfinished
from protolink.transport.http.encoding import (
    NDJSON,
    NDJSON_SIGN_OF_LIFE,
    SSE,
    SSE_SIGN_OF_LIFE,
    ndjson_line,
    ndjson_message,
    sse_frame,
)
from protolink.transport.http.limits import HTTPLimits
from protolink.transport.http.replies import SECTION_BYTES, disconnected, patient
from protolink.transport.port import Frame

__all__ = ["EventStream"]


def _sse(event: RunEvent) -> bytes:
    return sse_frame(Frame("event", event.to_dict(), event.sequence))


def _ndjson(event: RunEvent) -> bytes:
    return ndjson_line(event.to_dict())


_ENCODINGS: Final[Mapping[str, tuple[Callable[[RunEvent], bytes], Callable[[Frame], bytes], bytes]]] = {
    SSE: (_sse, sse_frame, SSE_SIGN_OF_LIFE),
    NDJSON: (_ndjson, ndjson_message, NDJSON_SIGN_OF_LIFE),
}


class EventStream:
    """Sends the events behind a place until the run's attempt has ended, or the client has gone.

    The list of the run is read along, so a client that is slow, or stops reading, holds what was encoded for it
    last and nothing else. `abandoned` is awaited where the client left before the end.
    """

    def __init__(
        self,
        views: Views,
        after: int,
        media: str,
        limits: HTTPLimits,
        headers: Mapping[str, str],
        *,
        tail: Tail | None = None,
        abandoned: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._views = views
        self._reading = views.reading(after)
        self._events: Iterator[RunEvent] = iter(())
        self._encode, self._encode_frame, self._sign = _ENCODINGS[media]
        self._limits = limits
        self._headers = {"content-type": media, **headers}
        self._tail = tail
        self._abandoned = abandoned
        self._gone = False
        self._waiting: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = patient(scope, send, self._limits)
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        helpers = [asyncio.create_task(disconnected(receive))]
        helpers[0].add_done_callback(self._leave)
        if self._tail is not None:
            helpers.append(asyncio.create_task(self._tail.follow()))
        try:
            await write({"type": "http.response.start", "status": 200, "headers": raw})

            async def write_bytes(data: bytes, more: bool = True) -> None:
                await write({"type": "http.response.body", "body": data, "more_body": more})

            await self._pump(write_bytes)
            if not self._gone:
                await write_bytes(b"", more=False)
        except ClientDisconnect:
            self._gone = True
            raise
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            if self._gone and self._abandoned is not None:
                await self._abandoned()

    def _leave(self, watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled():
            self._gone = True
            _rouse(self._waiting)

    async def _pump(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        try:
            while not self._gone:
                data = self._ready()
                if data:
                    for start in range(0, len(data), SECTION_BYTES):
                        await write(data[start : start + SECTION_BYTES])
                elif self._reading.at_end:
                    break
                elif not await self._more():
                    await write(self._sign)
            failure = self._views.failure
        except DurableExecutionError as error:
            failure = error
        if failure is not None and not self._gone:
            await write(self._encode_frame(Frame("error", left_unfinished(failure).document)))

    def _ready(self) -> bytes:
        """What can be sent at once, about a section of it."""
        messages: list[bytes] = []
        size = 0
        for _ in range(2):  # what was left the last time, then what has come since
            for event in self._events:
                message = self._encode(event)
                messages.append(message)
                size += len(message)
                if size >= SECTION_BYTES:
                    return b"".join(messages)
            self._events = self._reading.ready()
        return b"".join(messages)

    async def _more(self) -> bool:
        """Wait for more, the end, or the client's leaving; False where there was nothing for a while."""
        self._waiting = waiting = self._reading.more()
        silent = False

        def over() -> None:
            nonlocal silent
            silent = True
            _rouse(waiting)

        timer = asyncio.get_running_loop().call_later(self._limits.keep_alive_seconds, over)
        try:
            await waiting
        finally:
            timer.cancel()
        return not silent


def _rouse(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
