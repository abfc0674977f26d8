"""The soak: any kind of run, in any state that it may be left in, in one process for a long time.

Whatever such a process keeps of what is over adds up. What it holds is measured whenever nothing is at work.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import shutil
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protolink import Agent, RunHandle, UncertainExecutionError
from protolink.durable import RecordLog
from protolink.durable.memory import MemoryRecordLog
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import DurableExecutionError, UnknownRunError
from protolink.llms import MockLLM
from protolink.testing import DyingLog, call, delegate
from tests.reliability.scale import scaled
from tests.reliability.tally import Tally
from tests.reliability.teams import KINDS, ROOT, Operator, Wait, World, acting, task
from tests.support import turns

SEED = 20_268

LANES = 4
"""So many runs are at work at once."""

ROUND = scaled(commit=8, short=20, full=25)
"""Runs of each lane between two measurements."""

WARM_UP = scaled(commit=4, short=10, full=20)
"""Rounds after which everything that is made once has been made, and every cache is full."""

ROUNDS = scaled(commit=6, short=25, full=40)
"""Measurements, at least."""

SECONDS = scaled(commit=0, short=0, full=3_600)
"""The full form measures on until so much time has passed."""


class Held(NamedTuple):
    """What the process holds while nothing is at work."""

    runs: int
    resident: int
    blocks: int
    objects: int
    descriptors: int
    threads: int
    tasks: int


class Bound(NamedTuple):
    """What may be there more than before: what comes and goes, and something for each run."""

    once: int
    each: float

    def allows(self, samples: Sequence[Held], what: str) -> bool:
        """Whether the line through the samples rises by no more than that from its one end to the other."""
        runs = samples[-1].runs - samples[0].runs
        return slope(samples, what) * runs / 1000 <= self.once + self.each * runs


BLOCKS = Bound(once=600, each=0.1)
"""Of memory, and objects among them. The last rows of a store that is open come and go, some hundred blocks of them. A
run that is kept is a thousand blocks, and the least that can be kept of each is one."""

BYTES = Bound(once=4_000_000, each=100)
"""Of the whole process. The allocator gives pages back late and not all of them."""

pytestmark = [
    pytest.mark.fault(name="soak"),
    pytest.mark.skipif(sys.platform != "linux", reason="what the process holds is read from /proc"),
]


def held(runs: int) -> Held:
    """Measure it. What only the collector can free is freed before."""
    for _ in range(3):
        gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Held(
        runs=runs,
        resident=resident,
        blocks=sys.getallocatedblocks(),
        objects=len(gc.get_objects()),
        descriptors=len(os.listdir("/proc/self/fd")),
        threads=threading.active_count(),
        tasks=len(asyncio.all_tasks()),
    )


def slope(samples: Sequence[Held], what: str) -> float:
    """How much more there is after a thousand runs: the line of least squares."""
    points = [(one.runs / 1000, float(getattr(one, what))) for one in samples]
    middle = sum(x for x, _ in points) / len(points)
    level = sum(y for _, y in points) / len(points)
    return sum((x - middle) * (y - level) for x, y in points) / sum((x - middle) ** 2 for x, _ in points)


class LazyWorld(World):
    """A world that lets others have a turn now and then, so that a cancellation meets a run anywhere."""

    def asked(self) -> Wait:
        """A model was called."""
        super().asked()
        return self.pause

    async def pause(self) -> None:
        """Two turns."""
        await turns(2)


class Lane:
    """One run after the other, each of them of another kind and in another store."""

    def __init__(self, folder: Path, seed: str) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._shared = SQLiteRecordLog(folder / "shared.sqlite")
        self.ways: set[object] = set()

    async def work(self, runs: int, tally: Tally) -> None:
        """Do so many of them."""
        for _ in range(runs):
            way = self._chance.choice(WAYS)
            async with asyncio.timeout(600):
                await way(self)
            tally.add("runs")
            self.ways.add(way)

    async def close(self) -> None:
        """Give back what all runs have used."""
        await self._shared.close()

    async def attended(self) -> None:
        """Somebody takes a run of any kind to its end, through approvals, pauses and settlements."""
        kind, log = self._kind(), self._log()
        await Operator(KINDS[kind], world := LazyWorld()).attend(KINDS[kind].build(log, world))
        await self._forget(log)

    async def canceled(self) -> None:
        """A run is canceled anywhere, by id or with whoever awaits it, and then taken to its end."""
        kind, log, world = self._kind(), self._log(), LazyWorld()
        agent = KINDS[kind].build(log, world)
        caller = asyncio.ensure_future(Operator(KINDS[kind], world).attend(agent))
        await turns(self._chance.randrange(150))
        if self._chance.random() < 0.5:
            await agent.cancel_task(ROOT)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        await Operator(KINDS[kind], world).attend(KINDS[kind].build(log, world))
        await self._forget(log)

    async def died(self) -> None:
        """The store takes nothing more from some write on; what another one has of it is taken to its end."""
        kind, world = self._kind(), LazyWorld()
        log = DyingLog(dies_at=self._chance.randint(1, 8))
        operator = Operator(KINDS[kind], world)
        with suppress(DurableExecutionError):
            await operator.attend(KINDS[kind].build(log, world))
        log = log.reopened()
        await operator.attend(KINDS[kind].build(log, world))

    async def read(self) -> None:
        """A reply is streamed to readers that stay, leave, or never read."""
        handle = self._talker().start_run(task())
        readers = [
            asyncio.ensure_future(_read(handle, self._chance.choice([1, 5, 10_000])))
            for _ in range(self._chance.randrange(4))
        ]
        handle.events()
        if self._chance.random() < 0.3:
            await turns(self._chance.randrange(60))
            await handle.cancel("enough")
        await handle.result()
        await asyncio.gather(*readers)

    async def in_threads(self) -> None:
        """Functions that block, one of which fails; some calls are given up while they wait."""

        def work(number: int) -> int:
            return 1 // number

        llm = MockLLM(sequential_responses=[call("work", number=1), call("work", number=0)], default_response="done")
        agent = Agent(name="threads", llm=llm, tools=[work], sync_execution="thread", max_sync_workers=2, verbosity=0)
        handle = agent.start_run(task())
        if self._chance.random() < 0.3:
            await turns(self._chance.randrange(40))
            await handle.cancel("enough")
        await handle.result()

    async def failed(self) -> None:
        """A worker's tool, and then its model, raise."""

        async def act(value: int) -> int:
            raise UncertainExecutionError("nobody knows") if self._chance.random() < 0.5 else ValueError("no")

        world = LazyWorld()
        worker = Agent(
            name="worker", llm=MockLLM(sequential_responses=[call("act", value=1)]), tools=[act], verbosity=0
        )
        llm = MockLLM(sequential_responses=[delegate("worker", "act")], default_response="done")
        agent = Agent(name="parent", llm=llm, tools=[acting(world)], subagents=[worker], verbosity=0)
        await agent.run_task(task())

    def _kind(self) -> str:
        return self._chance.choice(list(KINDS))

    def _log(self) -> RecordLog:
        match self._chance.randrange(3):
            case 0:
                return MemoryRecordLog()
            case 1:
                return self._shared
            case _:
                (self._folder / "own").mkdir()
                return SQLiteRecordLog(self._folder / "own" / "runs.sqlite")

    async def _forget(self, log: RecordLog) -> None:
        with suppress(UnknownRunError):
            await log.delete(ROOT)
        if log is not self._shared:
            await log.close()
            shutil.rmtree(self._folder / "own", ignore_errors=True)

    def _talker(self) -> Agent:
        text = "word " * 50
        script = [call("act", value=1), text]
        llm = MockLLM(sequential_responses=script, default_response=text, fragment_size=3)
        durability = self._chance.choice([None, MemoryRecordLog()])
        return Agent(name="talker", llm=llm, tools=[acting(LazyWorld())], durability=durability, verbosity=0)


WAYS: Sequence[Callable[[Lane], Awaitable[None]]] = [
    Lane.attended,
    Lane.canceled,
    Lane.canceled,
    Lane.died,
    Lane.read,
    Lane.in_threads,
    Lane.failed,
]


async def _read(handle: RunHandle, events: int) -> None:
    """Read so many events, and be gone."""
    reading: Any = handle.events()
    async for _ in reading:
        events -= 1
        if events == 0:
            break


@pytest.mark.time_limit(scaled(commit=120, short=900, full=3 * 3600))
async def test_a_process_that_has_worked_for_long_holds_no_more_than_one_that_has_just_begun(
    memory: Path, tally: Tally
) -> None:
    """Nothing is kept of a run that is over, however it ended and whoever looked on."""
    lanes = []
    for number in range(LANES):
        folder = memory / str(number)
        folder.mkdir()
        lanes.append(Lane(folder, f"{SEED} {number}"))
    samples: list[Held] = []
    began = time.monotonic()

    while len(samples) < WARM_UP + ROUNDS or time.monotonic() - began < SECONDS:
        await asyncio.gather(*(lane.work(ROUND, tally) for lane in lanes))
        await turns(20)
        samples.append(held(tally["runs"]))
    for lane in lanes:
        await lane.close()

    settled = samples[WARM_UP:]
    first, last = settled[0], settled[-1]
    tally.see("MB resident at the end", last.resident / 1e6)
    tally.see("bytes of the process for a thousand runs", slope(settled, "resident"))
    tally.see("blocks of memory for a thousand runs", slope(settled, "blocks"))
    tally.see("objects for a thousand runs", slope(settled, "objects"))
    assert BLOCKS.allows(settled, "blocks"), settled
    assert BLOCKS.allows(settled, "objects"), settled
    assert BYTES.allows(settled, "resident"), settled
    assert (last.descriptors, last.tasks) == (first.descriptors, first.tasks), settled
    assert last.threads <= first.threads, settled
    assert set().union(*(lane.ways for lane in lanes)) == set(WAYS)
