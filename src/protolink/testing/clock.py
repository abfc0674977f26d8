"""A clock that stands still until it is told to go on."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Final

from protolink._environment import Environment

__all__ = ["ManualClock"]

START: Final = 1_767_225_600.0
"""The first of January 2026, at midnight in UTC."""


class _ManualTimer:
    """A callback that waits for its moment."""

    __slots__ = ("callback", "canceled")

    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] = callback
        self.canceled: bool = False

    def cancel(self) -> None:
        """Call it off; harmless when it has already happened."""
        self.canceled = True


class ManualClock(Environment):
    """An environment in which time passes only by `advance`, and identifiers are counted.

    Two runs of the same program see the same times and the same ids. Runs that start inside
    `use_environment(clock)` keep the clock until their end; deadlines, timeouts and the grace period of a
    cancellation wait for it. A run sets up its deadline when it begins to work, so advance the clock after
    the run has shown that it is under way.

    It belongs to one thread, that of the event loop; only `new_id` and reading the time work from others.
    """

    def __init__(self, start: float = START) -> None:
        self._start = start
        self._elapsed = 0.0
        self._ids = itertools.count(1)
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _ManualTimer]] = []

    def now(self) -> float:
        """The start plus what was advanced, in seconds since the epoch."""
        return self._start + self._elapsed

    def monotonic(self) -> float:
        """The seconds that were advanced."""
        return self._elapsed

    def new_id(self) -> str:
        """The next identifier: 32 digits, counted from one."""
        return f"{next(self._ids):032x}"

    def jitter(self) -> float:
        """Always one, so that a wait takes its whole time."""
        return 1.0

    def call_later(self, seconds: float, callback: Callable[[], object]) -> _ManualTimer:
        """Run `callback` inside the `advance` that reaches its moment, never before that."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._elapsed + max(0.0, seconds), next(self._order), timer))
        return timer

    @property
    def waiting(self) -> int:
        """How many timers wait for their moment."""
        return sum(not timer.canceled for _, _, timer in self._timers)

    def advance(self, seconds: float) -> None:
        """Let time pass. Timers that fall due run in the order of their moments, each at its own moment.

        A timer that another one sets within the span runs as well. What a timer wakes up runs when the
        event loop gets to it, so await something afterwards. An exception of a timer stops the clock at
        its moment. Raises `ValueError` for a span that is negative or not finite.
        """
        if not math.isfinite(seconds) or seconds < 0:
            raise ValueError("time advances by a finite number of seconds that is not negative")
        end = self._elapsed + seconds
        while self._timers and self._timers[0][0] <= end:
            moment, _, timer = heapq.heappop(self._timers)
            if not timer.canceled:
                self._elapsed = max(self._elapsed, moment)
                timer.callback()
        self._elapsed = end

    def __repr__(self) -> str:
        return f"<ManualClock at {self._elapsed:g} s, {self.waiting} timers waiting>"
