"""What durability costs: a tool step that survives the process, and taking a long run up again."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.floors import bare_commits, lookup, script
from benchmarks.measure import alternate, growth
from benchmarks.models import Scripted
from benchmarks.scale import Scale
from benchmarks.table import AtMost, AtMostTimes, Row
from protolink import Agent, RunBudget, RunContext, Task
from protolink.durable import Lease, RunStatus
from protolink.durable import Row as LogRow
from protolink.durable.sqlite import SQLiteRecordLog

__all__ = ["durable"]

_STEP_CPU: Final = AtMostTimes(250 / 36)
_STEP_WALL: Final = AtMostTimes(1.6)
_EXPONENT: Final = AtMost(1.05)
_RESUME: Final = AtMost(20, scaled=True)
_COMMITS: Final = AtMost(3)
_BYTES: Final = AtMostTimes(2)
_GROWTH: Final = AtMost(1_500)
_TOGETHER: Final = AtMostTimes(1 / 5)

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
        rows += asyncio.run(_written(scale, Path(folder)))
        rows.append(asyncio.run(_together(scale, Path(folder))))
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
    bare_commits(folder / f"{name}-plain.sqlite", calls)


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


async def _written(scale: Scale, folder: Path) -> list[Row]:
    """What a step writes: commits, each of which is one sync, bytes, and what of them stays in the file."""
    calls = 100 if scale.quick else 500
    rows: list[Row] = []
    if _PROCESS_IO.exists():
        floor = await _bytes_of(partial(_plain, folder, calls, "bytes")) / calls
        ours = await _bytes_of(partial(_run, folder, calls, "bytes")) / calls
        rows.append(
            Row(workload="bytes of one durable tool step", unit="B", floor=floor, protolink=ours, target=_BYTES)
        )
    log = _CountingLog(folder / "commits.sqlite")
    agent = Agent(name="scribe", llm=Scripted(script(calls)), tools=[lookup], durability=log, verbosity=0)
    sizes: list[int] = []
    for _ in range(2):
        await agent.invoke("go", budget=RunBudget(max_steps=calls + 1))
        await log.settled()
        sizes.append(os.stat(log.path).st_size)
    await log.close()
    return [
        *rows,
        Row(
            workload="commits of one durable tool step",
            unit="",
            protolink=log.commits / (2 * calls),
            target=_COMMITS,
        ),
        Row(
            workload="file growth of one durable tool step",
            unit="B",
            protolink=(sizes[1] - sizes[0]) / calls,
            target=_GROWTH,
        ),
    ]


_PROCESS_IO: Final = Path("/proc/self/io")
"""What the kernel counts of this process, where it does."""


async def _bytes_of(work: Callable[[], Awaitable[None]]) -> float:
    before = _bytes_written()
    await work()
    return _bytes_written() - before


def _bytes_written() -> float:
    lines = (line.partition(":") for line in _PROCESS_IO.read_text().splitlines())
    return next(float(value) for name, _, value in lines if name == "wchar")


class _CountingLog(SQLiteRecordLog):
    """Counts its commits."""

    commits = 0

    async def append(
        self,
        lease: Lease,
        expected: int,
        rows: Sequence[LogRow],
        *,
        status: RunStatus,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Store rows."""
        self.commits += 1
        await super().append(lease, expected, rows, status=status, summary=summary)

    async def settled(self) -> None:
        """Have everything in the file itself, from where the write-ahead log can be begun anew."""
        await self.list()
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


async def _together(scale: Scale, folder: Path) -> Row:
    """Many runs at once share their syncs; one after the other each waits for its own."""
    runs, calls = (40 if scale.quick else 200), 3
    agent = _agent(folder / "together.sqlite", calls)

    async def one() -> None:
        await agent.invoke("go", budget=RunBudget(max_steps=calls + 1))

    async def in_turn() -> None:
        for _ in range(runs):
            await one()

    async def at_once() -> None:
        await asyncio.gather(*(one() for _ in range(runs)))

    await one()
    turns, once = await alternate(
        scale.rounds(3),
        partial(_timed, "wall", in_turn, runs),
        partial(_timed, "wall", at_once, runs),
    )
    return Row(
        workload=f"a durable run among {runs}, against one after the other",
        unit="us",
        floor=min(turns) * 1e6,
        protolink=min(once) * 1e6,
        target=_TOGETHER,
    )
