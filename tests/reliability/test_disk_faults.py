"""F5 and F6: a death in the middle of a write, and a disk that is full or fails, at the n-th call, once or for good."""

from __future__ import annotations

import errno
import random
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.disks import Change, Mode, read_trace
from tests.reliability.host import Host, Process
from tests.reliability.programs import DISK
from tests.reliability.scale import scaled
from tests.reliability.sites import Site
from tests.reliability.tally import Tally
from tests.reliability.trials import Trial, last_word

SEED = 20_262

DEATHS = scaled(commit=10, short=20, full=334)
"""Of each kind of run. Where it has fewer writes than that, a process dies in each of them more than once."""

PLACES = scaled(commit=2, short=4, full=1_000)
"""Of each kind of run, for each kind of fault; every call of it where there are no more."""

KINDS_OF_RUN = ["tool", "approval", "worker's worker", "yield", "two workers", "parallel read-only tools"]


def attend(site: Site, kind: str, changes: Sequence[Change] = (), place: int = 0, **options: int) -> Process:
    """Let a process take the run to its end on a disk where the n-th of some changes fails."""
    site.path.parent.mkdir(parents=True, exist_ok=True)
    arguments: dict[str, Any] = {"mode": Mode.ONCE, "number": errno.EIO, **options}
    chosen = [int(change) for change in changes]
    return site.host.start("beset", folder=str(site.folder), kind=kind, changes=chosen, place=place, **arguments)


@dataclass
class Clean:
    """A run that nothing happens to."""

    answer: object
    effects: int
    changes: Counter[Change]

    async def follows(self, trial: Trial) -> None:
        """On a disk that is well again the run comes to the same end."""
        await trial.look()
        told = attend(trial.site, trial.kind).end()
        await trial.conclude(told["outcome"], self.answer, self.effects)
        await trial.removed()


def undisturbed(folder: Path, kind: str, host: Host) -> Clean:
    """How the run goes otherwise, and how many changes of each kind it makes."""
    site = Site(folder, host, DISK)
    told = attend(site, kind).end()
    steps = read_trace(folder / "trace")
    changes = Counter(step.change for step in steps if step.change is not Change.OPEN or step.is_new)
    return Clean(told["outcome"]["output"], len(set(site.world.effects)), changes)


def places(count: int, wanted: int, chance: random.Random) -> list[int]:
    """Some numbers from 1 on, or all of them where there are no more than wanted.

    The last tenth of `count` is left out: what waits for the writer shares a commit, so that one process makes a
    few calls more than another.
    """
    reached = count - count // 10
    return sorted(chance.sample(range(1, reached + 1), min(reached, wanted)))


@pytest.mark.fault(name="F5")
@pytest.mark.parametrize("kind", KINDS_OF_RUN)
async def test_a_process_that_dies_in_the_middle_of_a_write_is_followed_by_one_that_ends_the_run(
    kind: str, memory: Path, watching_host: Host, tally: Tally
) -> None:
    """Half of the write is in the file: of a page, of the log, of its header."""
    clean = undisturbed(memory / "clean", kind, watching_host)
    chance = random.Random(f"{SEED} {kind}")

    while tally["deaths"] < DEATHS:
        for place in places(clean.changes[Change.WRITE], DEATHS - tally["deaths"], chance):
            trial = Trial(Site(memory / str(place), watching_host, DISK), kind)
            process = attend(trial.site, kind, [Change.WRITE], place, mode=Mode.HALF_THEN_DIE)
            assert last_word(process) is None, f"the process did not die at write {place}"
            assert process.wait() == -signal.SIGKILL
            tally.add("deaths")
            await clean.follows(trial)


@dataclass(frozen=True)
class Fault:
    """What fails, with which number, and what the store makes of it."""

    changes: tuple[Change, ...]
    number: int
    error: str
    other: str = "StoreError"
    """What SQLite makes of the same fault in some places: its index is a device, and a file that it cannot make
    one that it cannot open."""


FAULTS = {
    "full": Fault((Change.WRITE,), errno.ENOSPC, "StoreFullError"),
    "failing writes": Fault((Change.WRITE,), errno.EIO, "StoreError"),
    "failing syncs": Fault((Change.SYNC,), errno.EIO, "StoreError"),
    "no new files": Fault((Change.OPEN,), errno.ENOSPC, "StoreFullError", "StoreReadOnlyError"),
}


@pytest.mark.fault(name="F6")
@pytest.mark.parametrize("mode", [Mode.ONCE, Mode.FOR_GOOD], ids=["once", "for good"])
@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_of_the_disk_ends_attempts_and_never_a_run(
    name: str, mode: Mode, memory: Path, watching_host: Host, tally: Tally
) -> None:
    """At the n-th call of its kind, in the same process or for the next one; the store says what it was."""
    fault, chance = FAULTS[name], random.Random(f"{SEED} {name} {mode}")
    said: Counter[str] = Counter()

    for kind in KINDS_OF_RUN:
        clean = undisturbed(memory / f"clean {kind}", kind, watching_host)
        count = sum(clean.changes[change] for change in fault.changes)
        for place in places(count, PLACES, chance):
            trial = Trial(Site(memory / f"{kind} {place}", watching_host, DISK), kind)
            process = attend(trial.site, kind, fault.changes, place, mode=mode, number=fault.number, attempts=3)
            told = process.end()
            said.update(told["errors"])
            assert told["faults"] > 0, f"call {place} was not reached"
            tally.add("faults")
            assert told["outcome"] is None or told["outcome"]["state"] == "completed"
            assert mode is Mode.FOR_GOOD or told["outcome"] is not None, "one fault was more than one"
            trial.unsettled.update(told["settled"])
            await clean.follows(trial)

    assert {fault.error} <= set(said) <= {fault.error, fault.other}
