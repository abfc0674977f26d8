"""What durability costs: a tool step that survives the process, and taking a long run up again."""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.floors import lookup, script
from benchmarks.measure import alternate, growth
from benchmarks.models import Scripted
from benchmarks.scale import Scale
from benchmarks.table import AtMost, AtMostTimes, Row
from protolink import Agent, RunBudget, RunContext, Task

__all__ = ["durable"]

_STEP_CPU: Final = AtMostTimes(250 / 36)
_STEP_WALL: Final = AtMostTimes(1.6)
_EXPONENT: Final = AtMost(1.05)
_RESUME: Final = AtMost(20, scaled=True)

LENGTHS: Final = (10, 50, 200)


def durable(scale: Scale) -> list[Row]:
    """Steps against plain sqlite3 that does two synced commits for each, in memory-backed files and on disk."""
    rows: list[Row] = []
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        rows += asyncio.run(_steps(scale, Path(folder)))
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        rows += asyncio.run(_on_disk(scale, Path(folder)))
        rows += asyncio.run(_resume(scale, Path(folder)))
    return rows


def _agent(path: Path, calls: int, *, slice_steps: int | None = None) -> Agent:
    return Agent(
        name="scribe",
        llm=Scripted(script(calls)),
        tools=[lookup],
        durability=path,
        yield_after_steps=slice_steps,
        verbosity=0,
    )


async def _run(folder: Path, calls: int, name: str) -> None:
    agent = _agent(folder / f"{name}.sqlite", calls)
    await agent.invoke("go", budget=RunBudget(max_steps=calls + 1))


async def _plain(folder: Path, calls: int, name: str) -> None:
    """Two synced commits of a small row for each call."""
    connection = sqlite3.connect(folder / f"{name}-plain.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS steps (number INTEGER PRIMARY KEY, body TEXT)")
    for _ in range(2 * calls):
        connection.execute("INSERT INTO steps (body) VALUES (?)", ("x" * 300,))
    connection.close()


async def _timed(clock: str, work: Callable[[], Awaitable[None]], calls: int) -> float:
    read = time.process_time if clock == "cpu" else time.perf_counter
    began = read()
    await work()
    return (read() - began) / calls


async def _steps(scale: Scale, folder: Path) -> list[Row]:
    calls = 50 if scale.quick else 200
    await _run(folder, 5, "steps")
    floors, ours = await alternate(
        scale.rounds(7),
        partial(_timed, "cpu", partial(_plain, folder, calls, "steps"), calls),
        partial(_timed, "cpu", partial(_run, folder, calls, "steps"), calls),
    )
    totals = [min([await _timed("cpu", partial(_run, folder, n, "growth"), 1) for _ in range(3)]) for n in LENGTHS]
    return [
        Row(
            workload="one durable tool step, CPU",
            unit="us",
            floor=min(floors) * 1e6,
            protolink=min(ours) * 1e6,
            target=_STEP_CPU,
        ),
        Row(
            workload="durable tool steps, growth exponent",
            unit="",
            protolink=growth(list(zip(LENGTHS, totals, strict=True))),
            target=_EXPONENT,
        ),
    ]


async def _on_disk(scale: Scale, folder: Path) -> list[Row]:
    calls = 20 if scale.quick else 100
    await _run(folder, 5, "disk")
    floors, ours = await alternate(
        scale.rounds(5),
        partial(_timed, "wall", partial(_plain, folder, calls, "disk"), calls),
        partial(_timed, "wall", partial(_run, folder, calls, "disk"), calls),
    )
    return [
        Row(
            workload="one durable tool step on disk, elapsed",
            unit="us",
            floor=min(floors) * 1e6,
            protolink=min(ours) * 1e6,
            target=_STEP_WALL,
        )
    ]


async def _resume(scale: Scale, folder: Path) -> list[Row]:
    """Take a run of many steps up again, and give its last answer."""
    calls = 200 if scale.quick else 1_000
    elapsed: list[float] = []
    for number in range(3):
        path = folder / f"resume{number}.sqlite"
        context = RunContext(budget=RunBudget(max_steps=calls + 2))
        await _agent(path, calls, slice_steps=calls).run_task(Task.create_infer("go", context=context))
        again = _agent(path, calls, slice_steps=calls)
        began = time.perf_counter()
        await again.resume_task(context.run_id)
        elapsed.append(time.perf_counter() - began)
    return [Row(workload=f"resume after {calls:,} steps", unit="ms", protolink=min(elapsed) * 1e3, target=_RESUME)]
