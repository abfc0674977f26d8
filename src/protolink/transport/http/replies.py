"""Sending replies: in the form that is asked for, and for as long as somebody reads them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from protolink.transport.http.limits import HTTPLimits
from protolink.transport.http.listener import ABORT
from protolink.transport.http.problems import Problem

__all__ = ["SECTION_BYTES", "Document", "disconnected", "negotiated", "patient"]

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


def patient(scope: Scope, send: Send, limits: HTTPLimits) -> Send:
    """Sends to a client for as long as it reads; one that does not is dropped."""
    abort: Callable[[], None] = scope.get("state", {}).get(ABORT, lambda: None)

    async def write(message: Message) -> None:
        try:
            async with asyncio.timeout(limits.write_seconds):
                await send(message)
        except TimeoutError:
            _logger.warning("a connection was dropped, because nobody read the answer")
            abort()
            raise ClientDisconnect from None

    return write


class Document(Response):
    """A JSON document that is sent as it is read."""

    media_type = "application/json"

    def __init__(
        self, text: str, limits: HTTPLimits, *, status: int = 200, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text, status, headers)
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        write = patient(scope, send, self._limits)
        await write({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        body = bytes(self.body)
        for start in range(0, max(1, len(body)), SECTION_BYTES):
            more = start + SECTION_BYTES < len(body)
            section = body[start : start + SECTION_BYTES]
            await write({"type": "http.response.body", "body": section, "more_body": more})
