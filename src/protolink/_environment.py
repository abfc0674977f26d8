"""The one object that reaches for clocks, randomness, identifiers and timers.

Nothing else in the package calls them, so a test or a simulation that replaces this object decides
what time it is, in which order identifiers come and when a deadline passes.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import lru_cache
from typing import Protocol

__all__ = ["Environment", "Timer", "backoff", "current_environment", "iso", "pause", "use_environment"]


class Timer(Protocol):
    """Something that was scheduled and can be called off."""

    def cancel(self) -> None:
        """Call it off; harmless when it has already happened."""


class Environment:
    """The real world: the system's clocks, its random bits and the running loop's timers."""

    def now(self) -> float:
        """Wall-clock seconds since the epoch. Data only: nothing is ever ordered or timed by it."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back, for durations and deadlines."""
        return time.monotonic()

    def new_id(self) -> str:
        """A fresh identifier of 128 random bits from the operating system, as 32 hexadecimal digits."""
        return secrets.token_hex(16)

    def jitter(self) -> float:
        """A random part of one, so that many who wait for the same thing do not come back at the same moment."""
        return random.random()

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Timer:
        """Run `callback` on the running event loop after `seconds`."""
        return asyncio.get_running_loop().call_later(seconds, callback)


_REAL = Environment()
_current: ContextVar[Environment] = ContextVar("protolink_environment", default=_REAL)


def current_environment() -> Environment:
    """The environment that new runs and values take their time and identifiers from."""
    return _current.get()


@contextmanager
def use_environment(environment: Environment) -> Generator[Environment]:
    """Let everything that starts inside the block use `environment`; runs keep it until their end."""
    token = _current.set(environment)
    try:
        yield environment
    finally:
        _current.reset(token)


async def pause(environment: Environment, seconds: float) -> None:
    """Let time pass, by the clock of an environment."""
    over = asyncio.Event()
    timer = environment.call_later(seconds, over.set)
    try:
        await over.wait()
    finally:
        timer.cancel()


def backoff(environment: Environment, attempt: int, *, first: float, most: float) -> float:
    """Seconds to wait after the failed attempt number `attempt`, from 0: doubled each time, at least half of it."""
    return min(most, first * 2.0 ** min(attempt, 30)) * (0.5 + environment.jitter() / 2)


def iso(seconds: float) -> str:
    """Epoch seconds as ISO-8601 text in UTC, to the microsecond."""
    whole, micro = divmod(round(seconds * 1_000_000), 1_000_000)
    return f"{_second(whole)}.{micro:06d}+00:00"


@lru_cache(maxsize=8)
def _second(whole: int) -> str:
    """The text of a whole second, which whatever happens in that second shares."""
    return datetime.fromtimestamp(whole, UTC).isoformat()[: len("2000-01-01T00:00:00")]
