"""Sending replies: in the form that is asked for, and for as long as somebody reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from protolink.transport.http.limits import HTTPLimits
from protolink.transport.http.listener import ABORT
from protolink.transport.http.problems import Problem

__all__ = ["SECTION_BYTES", "Document", "Write", "disconnected", "negotiated", "patient", "sections"]

SECTION_BYTES: Final = 64 * 1024
"""What is sent at a time: a reader that stalls leaves no more than that behind a server's own buffer."""

_logger: Final = logging.getLogger("protolink")


def negotiated(accept: str | None, offered: Sequence[str]) -> str:
    """The first form that `Accept` names and that is offered; the first one that is offered where any will do.

    Raises a `Problem` where there is none.
    """
    if accept is None:
        return offered[0]
    for entry in accept.split(","):
        media, *parameters = (part.strip().lower() for part in entry.split(";"))
        if any(parameter.replace(" ", "") in ("q=0", "q=0.0") for parameter in parameters):
            continue
        if media in offered:
            return media
        if media in ("*/*", ""):
            return offered[0]
        family, _, kind = media.partition("/")
        if kind == "*":
            for form in offered:
                if form.startswith(f"{family}/"):
                    return form
    raise Problem(406, f"answers are {' or '.join(offered)}")


async def disconnected(receive: Receive) -> None:
    """Wait until the client has gone, or was told everything."""
    while (await receive())["type"] != "http.disconnect":
        pass


Write: TypeAlias = Callable[..., Awaitable[None]]
"""Sends messages, one after the other."""


def patient(scope: Scope, send: Send, limits: HTTPLimits) -> Write:
    """Sends to a client for as long as it reads; one that does not is dropped."""
    abort: Callable[[], None] = scope.get("state", {}).get(ABORT, lambda: None)

    async def write(*messages: Message) -> None:
        try:
            async with asyncio.timeout(limits.write_seconds):
                for message in messages:
                    await send(message)
                    # A connection that is gone takes everything at once, and that it is gone has to be noticed.
                    await asyncio.sleep(0)
        except TimeoutError:
            _logger.warning("a connection was dropped, because nobody read the answer")
            abort()
            raise ClientDisconnect from None

    return write


class Document:
    """A JSON document that is sent as it is read."""

    __slots__ = ("_body", "_limits", "_start")

    def __init__(
        self, text: str, limits: HTTPLimits, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        self._body = text.encode()
        self._limits = limits
        raw = [(b"content-type", b"application/json"), (b"content-length", str(len(self._body)).encode())]
        raw += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self._start: Message = {"type": "http.response.start", "status": status, "headers": raw}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = patient(scope, send, self._limits)
        first, *others = sections(self._body, more_body=False)
        await write(self._start, first)
        for section in others:
            await write(section)


def sections(data: bytes, *, more_body: bool) -> list[Message]:
    """Messages that carry the data, a section each; `more_body` for whether something comes after them."""
    starts = range(0, max(1, len(data)), SECTION_BYTES)
    return [
        {
            "type": "http.response.body",
            "body": data[start : start + SECTION_BYTES],
            "more_body": more_body or start + SECTION_BYTES < len(data),
        }
        for start in starts
    ]
