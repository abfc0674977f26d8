"""A run's events as a response: those that are there, then those that come, for as long as somebody reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

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
from protolink.transport.http.replies import SECTION_BYTES, Write, disconnected, patient, sections
from protolink.transport.port import Frame

__all__ = ["EventStream"]

FIRST_ROUNDS: Final = 16
"""Rounds of the event loop, a tenth of a millisecond in all, in which a run whose model does not wait takes a turn."""

FIRST_SECONDS: Final = 0.005
"""How long they may last where the loop is busy; later, the first event has waited long enough."""

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
        named = {"content-type": media, **headers}
        self._headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]
        self._helpers: list[asyncio.Task[None]] = []
        self._receive: Receive
        self._tail = tail
        self._abandoned = abandoned
        self._gone = False
        self._has_rest = False
        self._sent_at = 0.0
        self._failure: DurableExecutionError | None = None
        self._waiting: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = patient(scope, send, self._limits)
        self._receive = receive
        try:
            await self._first_steps()
            await self._pump(write)
        except ClientDisconnect:
            self._gone = True
            raise
        finally:
            for helper in self._helpers:
                helper.cancel()
            await asyncio.gather(*self._helpers, return_exceptions=True)
            if self._gone and self._abandoned is not None:
                await self._abandoned()

    async def _first_steps(self) -> None:
        """Let a run that has just begun go as far as it can without waiting: what is there by then is sent at once."""
        if self._reading.is_complete:
            return
        loop, waiting, left = asyncio.get_running_loop(), self._reading.over(), FIRST_ROUNDS
        deadline = loop.time() + FIRST_SECONDS

        def next_round() -> None:
            nonlocal left
            left -= 1
            if left and loop.time() < deadline and not waiting.done():
                loop.call_soon(next_round)
            elif not waiting.done():
                waiting.set_result(None)

        loop.call_soon(next_round)
        await waiting

    def _attend(self) -> None:
        """Notice that the client leaves, and bring what somebody else appends. Only who has to wait needs that."""
        if self._helpers:
            return
        watcher = asyncio.create_task(disconnected(self._receive))
        watcher.add_done_callback(self._leave)
        self._helpers.append(watcher)
        if self._tail is not None:
            self._helpers.append(asyncio.create_task(self._tail.follow()))

    def _leave(self, watcher: asyncio.Task[None]) -> None:
        if not watcher.cancelled():
            self._gone = True
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(None)

    async def _pump(self, write: Write) -> None:
        begun: list[Message] = [{"type": "http.response.start", "status": 200, "headers": self._headers}]
        while not self._gone:
            data = self._ready()
            over = self._is_over()
            if over and self._failure is not None:
                data += self._encode_frame(Frame("error", left_unfinished(self._failure).document))
            if begun and over:
                # What is complete needs no chunks around it, and one write less.
                self._headers.append((b"content-length", str(len(data)).encode()))
            if data or over or begun:
                first, *others = sections(data, more_body=not over)
                await write(*begun, first)
                begun = []
                for section in others:
                    await write(section)
                self._sent_at = asyncio.get_running_loop().time()
            elif not await self._more():
                await write({"type": "http.response.body", "body": self._sign, "more_body": True})
            if over:
                return

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
        self._attend()
        if await self._time_is_up(self._reading.more(), self._limits.keep_alive_seconds):
            return False
        left = self._sent_at + GATHERING_SECONDS - asyncio.get_running_loop().time()
        if left > 0 and not (self._gone or self._reading.is_complete):
            await self._time_is_up(self._reading.over(), left)
        return True

    async def _time_is_up(self, waiting: asyncio.Future[None], seconds: float) -> bool:
        """Wait for something, or for the client's leaving; True where neither has come in time."""
        self._waiting = waiting
        is_up = False

        def over() -> None:
            nonlocal is_up
            if not waiting.done():
                is_up = True
                waiting.set_result(None)

        timer = asyncio.get_running_loop().call_later(seconds, over)
        try:
            await waiting
        finally:
            timer.cancel()
        return is_up
