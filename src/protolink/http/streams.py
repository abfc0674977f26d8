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

GATHERING_SECONDS: Final = 0.01
"""How far apart the writes of a stream are, but for the first and the last."""


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
        self._has_rest = False
        self._sent_at = 0.0
        self._failure: DurableExecutionError | None = None
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
            await self._pump(write)
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

    async def _pump(self, write: Send) -> None:
        while not self._gone:
            data = self._ready()
            over = self._is_over()
            if over and self._failure is not None:
                data += self._encode_frame(Frame("error", left_unfinished(self._failure).document))
            if data or over:
                await self._write(write, data, over)
            elif not await self._more():
                await self._write(write, self._sign, False)
            if over:
                return

    async def _write(self, write: Send, data: bytes, over: bool) -> None:
        for start in range(0, max(1, len(data)), SECTION_BYTES):
            section = data[start : start + SECTION_BYTES]
            more = not over or start + SECTION_BYTES < len(data)
            await write({"type": "http.response.body", "body": section, "more_body": more})
        self._sent_at = asyncio.get_running_loop().time()

    def _ready(self) -> bytes:
        """What can be sent at once, about a section of it."""
        messages: list[bytes] = []
        size = 0
        self._has_rest = True
        for _ in range(2):  # what was left the last time, then what has come since
            for event in self._events:
                message = self._encode(event)
                messages.append(message)
                size += len(message)
                if size >= SECTION_BYTES:
                    return b"".join(messages)
            self._events = self._reading.ready()
        self._has_rest = False
        return b"".join(messages)

    def _is_over(self) -> bool:
        """Whether everything was read and nothing more comes."""
        if self._has_rest:
            return False
        try:
            over = self._reading.at_end
        except DurableExecutionError as error:
            self._failure = error
            return True
        if over:
            self._failure = self._views.failure
        return over

    async def _more(self) -> bool:
        """Wait for more, the end, or the client's leaving; False where there was nothing for a while.

        What follows closely upon something that was sent waits a moment for company: a message of its own for
        every fragment of a fast model would cost more than the model's run.
        """
        if await self._time_is_up(self._limits.keep_alive_seconds):
            return False
        loop = asyncio.get_running_loop()
        while not (self._gone or self._reading.is_complete):
            left = self._sent_at + GATHERING_SECONDS - loop.time()
            if left <= 0 or await self._time_is_up(left):
                break
        return True

    async def _time_is_up(self, seconds: float) -> bool:
        """Wait until something happens; True where nothing has."""
        self._waiting = waiting = self._reading.more()
        is_up = False

        def over() -> None:
            nonlocal is_up
            is_up = True
            _rouse(waiting)

        timer = asyncio.get_running_loop().call_later(seconds, over)
        try:
            await waiting
        finally:
            timer.cancel()
        return is_up


def _rouse(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)
