"""Many runs at once that mostly wait for their model: how long, how late the event loop gets, how much memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from benchmarks.floors import bare_loop, lookup, script
from benchmarks.measure import alternate, cpu_seconds, lag, percentile, traced_peak
from benchmarks.models import Waiting
from benchmarks.scale import Scale
from benchmarks.table import AtMost, AtMostTimes, Row
from protolink import Agent

__all__ = ["concurrent_runs", "cost_of_company"]

CALLS: Final = 3
MODEL_SECONDS: Final = 0.010

_say: Final = script(CALLS)
_ELAPSED: Final = AtMostTimes(7.1)
_LAG: Final = AtMost(15.0, scaled=True)
_KIB: Final = AtMost(25.0)
_COMPANY: Final = AtMostTimes(1.1)

_Run = Callable[[], Awaitable[object]]


class _Load(NamedTuple):
    elapsed: float
    late: float


def concurrent_runs(scale: Scale) -> list[Row]:
    """1,000 and 5,000 runs of three tool calls, each waiting four times for its model; in a hurry only 1,000."""
    return asyncio.run(_all_sizes(scale))


async def _all_sizes(scale: Scale) -> list[Row]:
    rows = await _at_once(1_000, scale.rounds(7))
    return rows if scale.quick else rows + await _at_once(5_000, 3)


async def _at_once(runs: int, rounds: int) -> list[Row]:
    agent = _agent()
    await _gather(_run_of(agent), 100)
    floors, ours = await alternate(rounds, lambda: _load(_by_hand, runs), lambda: _load(_run_of(agent), runs))
    name = f"{runs:,} runs at once"
    bare = await traced_peak(lambda: _gather(_by_hand, runs))
    peak = await traced_peak(lambda: _gather(_run_of(agent), runs))
    return [
        Row(
            workload=f"{name}, elapsed",
            unit="ms",
            floor=statistics.median(load.elapsed for load in floors) * 1e3,
            protolink=statistics.median(load.elapsed for load in ours) * 1e3,
            target=_ELAPSED,
        ),
        Row(
            workload=f"{name}, loop lag p99",
            unit="ms",
            floor=statistics.median(load.late for load in floors) * 1e3,
            protolink=statistics.median(load.late for load in ours) * 1e3,
            target=_LAG,
        ),
        Row(
            workload=f"{name}, memory a run",
            unit="KiB",
            floor=bare / runs / 1024,
            protolink=peak / runs / 1024,
            target=_KIB,
        ),
    ]


def cost_of_company(scale: Scale) -> list[Row]:
    """CPU of one run among 1,000, with that of one among 10 as the floor: company must not make it dearer.

    Here the model yields to the event loop and does not wait: a core that slept in between is slow to start with.
    """
    return asyncio.run(_company(scale))


async def _company(scale: Scale) -> list[Row]:
    run = _run_of(_agent(seconds=0.0))
    few, many = 10, 1_000

    async def among_few() -> float:
        return await cpu_seconds(20, lambda: _gather(run, few)) / few

    async def among_many() -> float:
        return await cpu_seconds(1, lambda: _gather(run, many)) / many

    await among_few()
    floors, ours = await alternate(scale.rounds(7), among_few, among_many)
    return [
        Row(
            workload="CPU of a run among 1,000, against among 10",
            unit="us",
            floor=statistics.median(floors) * 1e6,
            protolink=statistics.median(ours) * 1e6,
            target=_COMPANY,
        )
    ]


def _agent(seconds: float = MODEL_SECONDS) -> Agent:
    return Agent(name="researcher", llm=Waiting(_say, seconds), tools=[lookup])


def _run_of(agent: Agent) -> _Run:
    return lambda: agent.invoke("go")


async def _bare_model(step: int) -> str:
    await asyncio.sleep(MODEL_SECONDS)
    return _say(step)


async def _by_hand() -> object:
    return await bare_loop(_bare_model, CALLS)


async def _gather(run: _Run, runs: int) -> None:
    await asyncio.gather(*(run() for _ in range(runs)))


async def _load(run: _Run, runs: int) -> _Load:
    async with lag() as late:
        began = time.perf_counter()
        await _gather(run, runs)
        elapsed = time.perf_counter() - began
    return _Load(elapsed, percentile(late, 0.99))
