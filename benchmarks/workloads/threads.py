"""Tools that block: 64 runs share eight threads, and the event loop serves others meanwhile."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from benchmarks.floors import ANSWER
from benchmarks.measure import alternate, lag, percentile
from benchmarks.models import Scripted
from benchmarks.scale import Scale
from benchmarks.table import AtMost, AtMostTimes, Row
from protolink import Agent

__all__ = ["blocking_tools"]

RUNS: Final = 64
THREADS: Final = 8
BLOCKED_SECONDS: Final = 0.050

_ELAPSED: Final = AtMostTimes(1.025)
_LAG: Final = AtMost(4.0, scaled=True)


def block() -> str:
    """Block a thread."""
    time.sleep(BLOCKED_SECONDS)
    return "free again"


def _say(step: int) -> str:
    return '{"type":"tool_call","tool":"block","args":{}}' if step == 1 else ANSWER


def blocking_tools(scale: Scale) -> list[Row]:
    """The floor submits the same function to a pool of as many threads."""
    return asyncio.run(_measured(scale))


async def _measured(scale: Scale) -> list[Row]:
    agent = Agent(
        name="researcher", llm=Scripted(_say), tools=[block], sync_execution="thread", max_sync_workers=THREADS
    )
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(THREADS) as pool:

        async def by_hand() -> tuple[float, float]:
            return await _load(lambda: loop.run_in_executor(pool, block))

        async def by_runtime() -> tuple[float, float]:
            return await _load(lambda: agent.invoke("go"))

        await by_runtime()  # both have their threads before the clock starts
        await by_hand()
        floors, ours = await alternate(scale.rounds(7), by_hand, by_runtime)
    name = f"{RUNS} blocking tools on {THREADS} threads"
    return [
        Row(
            workload=f"{name}, elapsed",
            unit="ms",
            floor=statistics.median(elapsed for elapsed, _ in floors) * 1e3,
            protolink=statistics.median(elapsed for elapsed, _ in ours) * 1e3,
            target=_ELAPSED,
        ),
        Row(
            workload=f"{name}, loop lag p99",
            unit="ms",
            floor=statistics.median(late for _, late in floors) * 1e3,
            protolink=statistics.median(late for _, late in ours) * 1e3,
            target=_LAG,
        ),
    ]


async def _load(call: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    async with lag() as late:
        began = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(RUNS)))
        elapsed = time.perf_counter() - began
    return elapsed, percentile(late, 0.99)
