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
    """The turns of one event loop."""

    __slots__ = ("_left", "_pumping", "_waiting")

    def __init__(self) -> None:
        self._left = TURNS_A_ROUND
        self._pumping = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def enter(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None] | None:
        """A future to await before going on, or None for a turn at once."""
        if not self._pumping:
            self._pumping = True
            self._left = TURNS_A_ROUND
            loop.call_soon(self._pump, loop)
        if self._left > 0:
            self._left -= 1
            return None
        future = loop.create_future()
        self._waiting.append(future)
        return future

    def _pump(self, loop: asyncio.AbstractEventLoop) -> None:
        self._left = TURNS_A_ROUND
        if not self._waiting:
            self._pumping = False
            return
        while self._waiting and self._left > 0:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(None)
                self._left -= 1
        loop.call_soon(self._pump, loop)


_gates: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gate] = WeakKeyDictionary()


def turn() -> asyncio.Future[None] | None:
    """A future to await before working on, or None where the round has room."""
    loop = asyncio.get_running_loop()
    gate = _gates.get(loop)
    if gate is None:
        gate = _gates[loop] = _Gate()
    return gate.enter(loop)
