"""Fair turns: how many runs may work in one round of the event loop.

asyncio runs everything that is ready in one round. When the models of a thousand runs answer in the same
moment, that round lasts as long as a thousand steps, and everybody else waits for it. A run therefore asks
for a turn when it starts and when an answer has arrived; beyond a few per round it waits for the next one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final
from weakref import WeakKeyDictionary

__all__ = ["turn"]

TURNS_A_ROUND: Final = 16


class _Gate:
    """The turns of one event loop. A round is counted in turns, so that one run alone pays next to nothing for it."""

    __slots__ = ("_left", "_waiting")

    def __init__(self) -> None:
        self._left = TURNS_A_ROUND
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        """A future to await before going on, or None for a turn at once."""
        if self._left > 0:
            self._left -= 1
            if self._left == 0:
                loop.call_soon(self._next_round, loop)
            return None
        future = loop.create_future()
        self._waiting.append(future)
        return future

    def _next_round(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = TURNS_A_ROUND
        while self._waiting and self._left > 0:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._left -= 1
        if self._left == 0:
            loop.call_soon(self._next_round, loop)


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gate] = WeakKeyDictionary()


def turn() -> asyncio.Future[None] | None:
    """A future to await before working on, or None where the round has room."""
    loop = asyncio.get_running_loop()
    gate = _gates.get(loop)
    if gate is None:
        gate = _gates[loop] = _Gate()
    return gate.enter(loop)
