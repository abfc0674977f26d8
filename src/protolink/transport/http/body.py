"""Reading a request's body: bounded before it is parsed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from starlette.requests import ClientDisconnect, Request

from protolink._json import JSON, JSONError, parse
from protolink.transport.http.guard import HEADERS
from protolink.transport.http.limits import HTTPLimits
from protolink.transport.http.problems import Problem

__all__ = ["read_json"]

_DRAIN_SECONDS: Final = 0.5
_DRAIN_FACTOR: Final = 8


async def read_json(request: Request, limits: HTTPLimits, *, may_be_absent: bool = False) -> JSON:
    """The body as JSON, or None where there may be none and is none.

    Raises a `Problem` for one that is no JSON, is too large, or takes too long to arrive.
    """
    headers: Mapping[str, str] = request.scope[HEADERS]
    if may_be_absent and "content-type" not in headers and not await _received(request, limits):
        return None
    media, _, parameters = headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if media.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Problem(415, "the body has to be application/json", close=True)
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Problem(415, "the body has to be sent as it is, without a content encoding", close=True)
    body = await _received(request, limits)
    try:
        return parse(body.decode(), max_bytes=limits.max_body_bytes, max_depth=limits.max_json_depth)
    except JSONError as error:
        raise Problem(400, f"the body is not the JSON that is expected: {error}") from None
    except UnicodeDecodeError:
        raise Problem(400, "the body is no UTF-8") from None


async def _received(request: Request, limits: HTTPLimits) -> bytes:
    try:
        async with asyncio.timeout(limits.body_seconds):
            return await _read(request, limits.max_body_bytes)
    except TimeoutError:
        raise Problem(408, "the body took too long to arrive", close=True) from None


async def _read(request: Request, limit: int) -> bytes:
    headers: Mapping[str, str] = request.scope[HEADERS]
    length = headers.get("content-length", "0")
    if not length.isdecimal() or len(length) > 18 or int(length) > limit:
        if "expect" not in headers:
            await _drain(request.stream(), _DRAIN_FACTOR * limit)
        raise _too_large(limit)
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > limit:
            if more:
                await _drain(request.stream(), _DRAIN_FACTOR * limit)
            raise _too_large(limit)
        if not more:
            return bytes(body)


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body has more than {limit} bytes", close=True)


async def _drain(chunks: AsyncIterator[bytes], limit: int) -> None:
    """Read on for a moment: a connection that is closed over unread bytes is reset, and takes the answer along."""
    size = 0
    try:
        async with asyncio.timeout(_DRAIN_SECONDS):
            async for chunk in chunks:
                size += len(chunk)
                if size > limit:
                    return
    except TimeoutError:
        return
