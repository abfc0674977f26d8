"""A process that measures one library in the environment that it is started with, and prints what came out as JSON.

`python -m benchmarks.compare.measured LIBRARY`, where the library has an adapter in `benchmarks.compare.adapters`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.compare.subject import STORED_AS_IT_COMES, STORED_FIRST, Run, Stream, Subject, load
from benchmarks.floors import ANSWER, bare_commits, bare_loop, bare_turn, script
from benchmarks.measure import alternate, alternate_sizes, cpu_seconds, growth, traced_peak
from benchmarks.scale import Scale
from benchmarks.table import number

__all__ = ["WORKLOADS", "Measured"]

LENGTHS: Final = (1, 10, 50, 200)
STORED_LENGTHS: Final = (10, 50)
COMPANY_CALLS: Final = 3
MODEL_SECONDS: Final = 0.010
FRAGMENTS: Final = 2_000

_FLOOR_START: Final = """
import asyncio, json
async def lookup(number: int) -> str:
    "Look up a number."
    return f"entry {number}"
"""
_STATM: Final = Path("/proc/self/statm")
"""What the kernel says of a process's memory, where it does."""

_MEMORY: Final = f"""
with open("{_STATM}") as statm:
    print(int(statm.read().split()[1]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One number of one library, and what the floor took in the same process."""

    workload: str
    unit: str
    value: float
    floor: float | None = None
    more_is_better: bool = False
    """True for a rate. The ratio of a rate says how many times slower it is."""

    def cells(self) -> list[str]:
        """The number and its ratio, as they are shown."""
        shown = f"{number(self.value)} {self.unit}".rstrip()
        if self.floor is None:
            return [shown, "-"]
        return [shown, number(self.floor / self.value if self.more_is_better else self.value / self.floor)]


async def lookup(number: int) -> str:
    """Look up a number."""
    return f"entry {number}"


async def _checked(run: Run) -> None:
    """One run; a library that did less than it was asked for would look fast."""
    answer = await run()
    if answer != ANSWER:
        raise RuntimeError(f"the answer is {answer!r} instead of {ANSWER!r}")


async def _prove(make: Callable[..., Run], calls: int) -> None:
    """The agent calls the tool as often as its model says, with the arguments of the model."""
    seen: list[int] = []

    async def lookup(number: int) -> str:
        """Look up a number."""
        seen.append(number)
        return f"entry {number}"

    await _checked(make(lookup, calls))
    if seen != list(range(1, calls + 1)):
        raise RuntimeError(f"the tool was called with {seen} instead of 1 to {calls}")


async def _start(subject: Subject, scale: Scale) -> list[Measured]:
    """The best of several fresh processes that import, and make one agent with one tool."""
    program = _FLOOR_START + subject.start
    _process(program)  # compiles what was never imported before

    async def elapsed(program: str) -> float:
        began = time.perf_counter()
        _process(program)
        return time.perf_counter() - began

    floors, subjects = await alternate(scale.rounds(9), partial(elapsed, _FLOOR_START), partial(elapsed, program))
    rows = [
        Measured(
            workload="import and one agent with one tool",
            unit="ms",
            value=min(subjects) * 1e3,
            floor=min(floors) * 1e3,
        )
    ]
    if _STATM.exists():
        rows.append(
            Measured(
                workload="memory of that process",
                unit="MiB",
                value=_pages(program),
                floor=_pages(_FLOOR_START),
            )
        )
    return rows


def _process(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


def _pages(program: str) -> float:
    import resource  # not on every system

    return int(_process(program + _MEMORY)) * resource.getpagesize() / 2**20


async def _turn(subject: Subject, scale: Scale) -> list[Measured]:
    """CPU of one question and one answer."""
    turn = subject.agent(lookup, 0)
    await _checked(turn)
    times = await _times(turn)
    floors, subjects = await alternate(
        scale.rounds(9), partial(cpu_seconds, 2_000, bare_turn), partial(cpu_seconds, times, turn)
    )
    return [Measured(workload="one turn", unit="us", value=min(subjects) * 1e6, floor=min(floors) * 1e6)]


async def _times(run: Run) -> int:
    """How many runs take some tenth of a second."""
    await run()
    return max(1, round(0.1 / max(await cpu_seconds(5, run), 1e-6)))


async def _steps(subject: Subject, scale: Scale) -> list[Measured]:
    """CPU of whole runs of K tool calls, divided by K: the best of several rounds, each of which has every length."""
    await _prove(subject.agent, LENGTHS[1])
    runs = {calls: subject.agent(lookup, calls) for calls in LENGTHS}
    times = {calls: await _times(runs[calls]) if calls <= 10 else 1 for calls in LENGTHS}
    by_hand, by_subject = await alternate_sizes(
        scale.rounds(7),
        LENGTHS,
        lambda calls: cpu_seconds(max(1, 1_000 // calls), partial(bare_loop, _model(calls), calls)),
        lambda calls: cpu_seconds(times[calls], runs[calls]),
    )
    rows = [
        Measured(
            workload=f"one tool step, K={calls}",
            unit="us",
            value=min(by_subject[calls]) / calls * 1e6,
            floor=min(by_hand[calls]) / calls * 1e6,
        )
        for calls in LENGTHS
    ]
    exponent = growth([(calls, min(by_subject[calls])) for calls in LENGTHS if calls >= 50])
    return [*rows, Measured(workload="one tool step, growth exponent", unit="", value=exponent)]


def _model(calls: int, seconds: float | None = None) -> Callable[[int], Awaitable[str]]:
    say = script(calls)

    async def model(step: int) -> str:
        if seconds is not None:
            await asyncio.sleep(seconds)
        return say(step)

    return model


async def _company(subject: Subject, scale: Scale) -> list[Measured]:
    """Runs of three calls that start together, each waiting four times for its model: elapsed, and peak memory."""
    run = subject.agent(lookup, COMPANY_CALLS, MODEL_SECONDS)
    bare = partial(bare_loop, _model(COMPANY_CALLS, MODEL_SECONDS), COMPANY_CALLS)
    await _checked(run)
    rows: list[Measured] = []
    for runs in (100,) if scale.quick else (100, 1_000):

        async def together(one: Callable[[], Awaitable[object]], runs: int = runs) -> float:
            began = time.perf_counter()
            await asyncio.gather(*(one() for _ in range(runs)))
            return time.perf_counter() - began

        rounds = scale.rounds(5) if runs == 100 else 3
        floors, subjects = await alternate(rounds, partial(together, bare), partial(together, run))
        rows.append(
            Measured(
                workload=f"{runs:,} runs at once, elapsed",
                unit="ms",
                value=statistics.median(subjects) * 1e3,
                floor=statistics.median(floors) * 1e3,
            )
        )
        rows.append(
            Measured(
                workload=f"{runs:,} runs at once, memory a run",
                unit="KiB",
                value=await traced_peak(partial(together, run)) / runs / 1024,
                floor=await traced_peak(partial(together, bare)) / runs / 1024,
            )
        )
    return rows


async def _stream(subject: Subject, scale: Scale) -> list[Measured]:
    """From the call to the first fragment of a short reply, and the fragments of a long one that arrive per second."""
    fragments = [f"word {number} " for number in range(FRAGMENTS)]
    rows: list[Measured] = []
    for name, said, times in (("first", fragments[:1], 100), ("rate", fragments, 1)):
        floors, subjects = await alternate(
            scale.rounds(7),
            partial(_read, _bare_stream(said), said, times),
            partial(_read, subject.streaming(said), said, times),
        )
        if name == "first":
            floor, value = (min(first for first, _ in rounds) * 1e6 for rounds in (floors, subjects))
            rows.append(Measured(workload="time to the first fragment", unit="us", value=value, floor=floor))
        else:
            floor, value = (FRAGMENTS / min(whole for _, whole in rounds) for rounds in (floors, subjects))
            row = Measured(workload="fragments to a reader", unit="/s", value=value, floor=floor, more_is_better=True)
            rows.append(row)
    return rows


async def _read(stream: Stream, fragments: Sequence[str], times: int) -> tuple[float, float]:
    """Seconds to the first fragment, and to the end: the least of so many runs."""
    first = whole = float("inf")
    for _ in range(times):
        seen: list[str] = []
        began = time.perf_counter()
        async for fragment in stream():
            if not seen:
                first = min(first, time.perf_counter() - began)
            seen.append(fragment)
        whole = min(whole, time.perf_counter() - began)
        if seen != list(fragments):
            raise RuntimeError(f"{len(seen)} fragments arrived of {len(fragments)}")
    return first, whole


def _bare_stream(fragments: Sequence[str]) -> Stream:
    """A queue between two coroutines."""

    async def stream() -> AsyncIterator[str]:
        queue: asyncio.Queue[str | None] = asyncio.Queue()

        async def write() -> None:
            for fragment in fragments:
                queue.put_nowait(fragment)
                await asyncio.sleep(0)
            queue.put_nowait(None)

        writing = asyncio.create_task(write())
        while (fragment := await queue.get()) is not None:
            yield fragment
        await writing

    return stream


async def _stored(subject: Subject, scale: Scale) -> list[Measured]:
    """Elapsed time of a tool step that SQLite keeps on disk: two synced commits are the floor."""
    rows: list[Measured] = []
    for calls in STORED_LENGTHS:
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            path = Path(folder)
            async with subject.durable(lookup, calls, path) as runs:
                rows += await _stored_ways(runs, calls, path, scale)
    return rows


async def _stored_ways(runs: Mapping[str, Run], calls: int, folder: Path, scale: Scale) -> list[Measured]:
    async def bare() -> str:
        bare_commits(folder / "plain.sqlite", calls)
        return ANSWER

    async def elapsed(run: Run) -> float:
        began = time.perf_counter()
        await _checked(run)
        return (time.perf_counter() - began) / calls

    rows: list[Measured] = []
    for way in (STORED_AS_IT_COMES, STORED_FIRST):
        if way in runs:
            await elapsed(runs[way])
            floors, subjects = await alternate(scale.rounds(7), partial(elapsed, bare), partial(elapsed, runs[way]))
            name = f"one stored step, K={calls}, {way}"
            rows.append(Measured(workload=name, unit="us", value=min(subjects) * 1e6, floor=min(floors) * 1e6))
    return rows


WORKLOADS: Final[Mapping[str, Callable[[Subject, Scale], Awaitable[list[Measured]]]]] = {
    "import": _start,
    "one turn": _turn,
    "one tool step": _steps,
    "runs at once": _company,
    "stream": _stream,
    "stored step": _stored,
}
"""Every workload by the name that `--only` takes, in the order in which they are printed."""


async def _all(subject: Subject, only: str | None, scale: Scale) -> list[Measured]:
    """Everything that the library can do."""
    return [
        row for name, workload in WORKLOADS.items() if only in (None, name) for row in await workload(subject, scale)
    ]


def main() -> None:
    """Print what came out."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare.measured", description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--only", choices=list(WORKLOADS))
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    subject = load(chosen.library)
    report = {
        "python": platform.python_version(),
        "versions": {package: version(package) for package in subject.packages},
        "configuration": subject.configuration,
        "rows": [asdict(row) for row in asyncio.run(_all(subject, chosen.only, Scale(quick=chosen.quick)))],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
