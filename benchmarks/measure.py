"""How things are measured: in turns with their floor, repeated, with the garbage collector as users have it.

A machine is never equally fast twice. A floor that is measured in the same process, in turns with what it
is the floor of, gets slower and faster together with it, so their ratio holds where seconds would not.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

__all__ = ["alternate", "alternate_sizes", "cpu_seconds", "growth", "lag", "percentile", "traced_peak"]

T = TypeVar("T")

BEAT_SECONDS: Final = 0.001


async def alternate(
    rounds: int, floor: Callable[[], Awaitable[T]], subject: Callable[[], Awaitable[T]]
) -> tuple[list[T], list[T]]:
    """Measure both, one after the other, so many times. What one leaves behind is not charged to the next."""
    floors: list[T] = []
    subjects: list[T] = []
    for _ in range(rounds):
        for measured, into in ((floor, floors), (subject, subjects)):
            gc.collect()
            into.append(await measured())
    return floors, subjects


async def alternate_sizes(
    rounds: int,
    sizes: Sequence[int],
    floor: Callable[[int], Awaitable[float]],
    subject: Callable[[int], Awaitable[float]],
) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """The same for each of several sizes, by size, behind a round that warms up.

    Every round measures every size, so that growth does not show what else the machine did in between.
    """
    floors: dict[int, list[float]] = {size: [] for size in sizes}
    subjects: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(1 + rounds):
        for size in sizes:
            of_floor, of_subject = await alternate(1, partial(floor, size), partial(subject, size))
            if number:
                floors[size] += of_floor
                subjects[size] += of_subject
    return floors, subjects


async def cpu_seconds(times: int, call: Callable[[], Awaitable[object]]) -> float:
    """CPU seconds of one call, over so many calls in a row."""
    began = time.process_time()
    for _ in range(times):
        await call()
    return (time.process_time() - began) / times


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def growth(points: Sequence[tuple[int, float]]) -> float:
    """The exponent with which the cost grows: the slope of its logarithm over that of the size."""
    xs = [math.log(size) for size, _ in points]
    ys = [math.log(cost) for _, cost in points]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


@asynccontextmanager
async def lag() -> AsyncGenerator[list[float]]:
    """How much later than asked a sleeping coroutine wakes up, in seconds, many times while the block runs."""
    late: list[float] = []

    async def beat() -> None:
        while True:
            asleep = time.perf_counter()
            await asyncio.sleep(BEAT_SECONDS)
            late.append(max(0.0, time.perf_counter() - asleep - BEAT_SECONDS))

    heart = asyncio.create_task(beat())
    await asyncio.sleep(0)  # the first beat has to be under way before there is load
    try:
        yield late
        await asyncio.sleep(2 * BEAT_SECONDS)  # the beat that slept through the end of the load counts as well
    finally:
        heart.cancel()
        await asyncio.gather(heart, return_exceptions=True)


async def traced_peak(call: Callable[[], Awaitable[object]]) -> int:
    """The most memory that Python objects took at any moment of the call, in bytes. It runs much slower so."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await call()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return peak - before
