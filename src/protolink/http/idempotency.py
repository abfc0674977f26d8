"""Requests that are sent again: one key of a client's starts one run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from protolink.http.kept import Kept
from protolink.transport.http.problems import Problem

__all__ = ["IdempotencyKeys", "other_request"]


@dataclass(frozen=True, slots=True)
class _Use:
    """What a key was used for."""

    digest: str
    run_id: asyncio.Future[str | None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """None where the request failed before it started a run, so that the key is free again."""


class IdempotencyKeys:
    """The keys that this process remembers."""

    def __init__(self, most: int, most_per_principal: int) -> None:
        self._uses: Kept[_Use] = Kept(most, most_per_principal)

    async def once(self, principal: str, key: str, digest: str, start: Callable[[], Awaitable[str]]) -> str:
        """The run of a key: `start` is called for the first request alone, however many come at once.

        Raises a `Problem` for another request under the same key, and whatever `start` raises.
        """
        while True:
            use = self._uses.get(principal, key)
            if use is None:
                return await self._first(principal, key, _Use(digest), start)
            if use.digest != digest:
                raise other_request()
            run_id = await asyncio.shield(use.run_id)
            if run_id is not None:
                return run_id

    async def _first(self, principal: str, key: str, use: _Use, start: Callable[[], Awaitable[str]]) -> str:
        self._uses.put(principal, key, use)
        run_id: str | None = None
        try:
            run_id = await start()
            return run_id
        finally:
            if run_id is None:
                self._uses.drop(principal, key)
            use.run_id.set_result(run_id)


def other_request() -> Problem:
    """The answer to a key that was used for another request."""
    return Problem(409, "this Idempotency-Key was used for another request")
