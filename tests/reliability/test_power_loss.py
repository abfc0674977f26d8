"""F4: the power goes, and the disk keeps what was synced and any part of the rest."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from protolink import TaskState
from protolink._core.records import ActionReconciled, ActionStarted, ModelAsked
from protolink.durable import Row
from protolink.errors import UnknownRunError
from protolink.testing.record_log import stored_rows
from tests.reliability.disks import Change, State, Step, read_trace
from tests.reliability.facts import assert_sound, left_open, of_kind, uncertain
from tests.reliability.host import Host
from tests.reliability.programs import DISK
from tests.reliability.scale import scaled
from tests.reliability.sites import Site
from tests.reliability.tally import Tally
from tests.reliability.teams import KINDS, Operator
from tests.reliability.trials import last_word

SEED = 20_261
CUTS = 20
"""Of one run; every second one right after an action was entered."""

RUNS = scaled(commit=1, short=2, full=25)
"""Of each kind."""

pytestmark = pytest.mark.fault(name="F4")

CUT_KINDS = [
    "tool",
    "prepared tool",
    "approval",
    "worker",
    "worker's worker",
    "two workers",
    "yield",
    "typed answer",
    "parallel read-only tools",
    "reconcile",
]


@dataclass
class Traced:
    """A run over two processes, on a disk that was watched; the first was killed on the way."""

    site: Site
    kind: str
    steps: Sequence[Step]
    rows: Sequence[Row]
    output: object

    def state(self, length: int, *, ignored: frozenset[str] = frozenset()) -> State:
        """The disk after so many steps."""
        return State(self.steps[:length], self.site.folder / DISK, ignored=ignored)

    def entered(self) -> list[int]:
        """The numbers of steps right after which an action was entered."""
        return [number for number, step in enumerate(self.steps, 1) if _is_entry(step)]


def _is_entry(step: Step) -> bool:
    return step.change is Change.MARK and step.text.startswith("entered ")


async def traced(kind: str, folder: Path, host: Host, *, dies_at: int, **faults: int) -> Traced:
    """Let a run go over two processes."""
    (folder / DISK).mkdir(parents=True)
    site, trace = Site(folder, host, DISK), folder / "trace"

    def life(**options: int) -> dict[str, object] | None:
        return last_word(host.start("watched", folder=str(folder), kind=kind, trace=str(trace), **options))

    assert life(dies_at=dies_at, **faults) is None
    told = life(**faults)
    assert told is not None
    assert told["state"] == "completed"
    return Traced(site, kind, read_trace(trace), await site.rows(), told["output"])


def acknowledged(state: State) -> int:
    """How many records the store has told somebody of."""
    return max((int(mark.split()[1]) for mark in state.marks if mark.startswith("stored ")), default=0)


async def stored_in(site: Site) -> list[Row]:
    """The list that is there after the power loss."""
    try:
        return await site.rows()
    except UnknownRunError:
        return []


def settled_in(rows: Sequence[Row]) -> set[str]:
    """The actions that an operator has settled."""
    return {record.action_id for record in cast("list[ActionReconciled]", of_kind(rows, ActionReconciled))}


async def check_after_power_loss(run: Traced, length: int, folder: Path, chance: random.Random) -> None:
    """Cut the power after so many steps, and take the run to its end with what the disk has kept."""
    state = run.state(length)
    has_failed = any(step.has_failed for step in run.steps[:length])
    folder.mkdir()
    state.after_power_loss(folder / DISK, chance)
    site = Site(folder, run.site.host, DISK)
    entered = [mark.removeprefix("entered ") for mark in state.marks if mark.startswith("entered ")]
    (folder / "effects").write_text("".join(f"{action_id}\n" for action_id in entered))
    (folder / "calls").write_text("1\n" * state.marks.count("asked"))

    rows = await stored_in(site)
    told = acknowledged(state)
    assert len(rows) >= told, "what the store has acknowledged is gone"
    # What could not be synced was not acknowledged. It may have reached the disk all the same.
    known = told if has_failed else len(rows)
    assert rows[:known] == run.rows[:known], "what the store has acknowledged was changed"
    started = {record.action_id for record in cast("list[ActionStarted]", of_kind(rows, ActionStarted))}
    assert set(entered) <= started, "an action was entered before that was certain to be known"
    assert state.marks.count("asked") <= len(of_kind(rows, ModelAsked)), "a model call is not charged"

    before = settled_in(rows)
    unsettled = left_open(rows) | uncertain(rows) if rows else set()
    operator = Operator(KINDS[run.kind], site.world)
    outcome = await operator.attend(site.agent(run.kind))
    again = await stored_in(site)
    assert outcome.task.state is TaskState.COMPLETED
    assert outcome.answer == run.output
    assert again[: len(rows)] == rows
    assert_sound(again)
    surplus = settled_in(again) - before - unsettled
    assert unsettled <= settled_in(again)
    assert run.kind == "reconcile" or not surplus, "an action was called uncertain for no reason"
    effects = Counter(site.world.effects)
    assert run.kind == "parallel read-only tools" or max(effects.values()) == 1, "an effect happened twice"
    assert set(entered) <= set(effects)
    await site.log().close()


async def cut(
    kind: str, folder: Path, host: Host, chance: random.Random, tally: Tally, name: str = "cuts", **faults: int
) -> None:
    """Cut the power of one run again and again, and count the cuts that found something that was not synced."""
    run = await traced(kind, folder / "run", host, dies_at=chance.randint(4, 7), **faults)
    entered = run.entered()
    assert entered
    assert sum(step.change is Change.SYNC for step in run.steps) > 10
    assert any(step.has_failed for step in run.steps) is bool(faults)
    for number in range(CUTS):
        length = entered[number // 2 % len(entered)] if number % 2 else chance.randint(1, len(run.steps))
        tally.add(name)
        tally.add("right after an entry", length in entered)
        tally.add("torn", bool(run.state(length).uncertain))
        try:
            await check_after_power_loss(run, length, folder / str(number), chance)
        except BaseException as error:
            error.add_note(f"cut {number} of {kind}, after step {length} of {len(run.steps)}")
            raise
    await run.site.log().close()


@pytest.mark.parametrize("kind", CUT_KINDS)
async def test_after_a_power_loss_every_action_is_in_one_of_the_promised_states(
    kind: str, memory: Path, watching_host: Host, tally: Tally
) -> None:
    """Whatever the disk keeps of what was not synced, in pieces of 512 bytes; what was acknowledged is there."""
    chance = random.Random(f"{SEED} {kind}")

    for number in range(RUNS):
        folder = memory / str(number)
        await cut(kind, folder, watching_host, chance, tally)
        shutil.rmtree(folder)

    assert tally["right after an entry"] >= tally["cuts"] // 2
    assert tally["torn"] > tally["cuts"] // 4, "the cuts had nothing to tear"


@pytest.mark.parametrize("kind", ["tool", "worker", "yield"])
async def test_a_sync_that_fails_before_the_power_goes_is_never_taken_for_one_that_worked(
    kind: str, memory: Path, watching_host: Host, tally: Tally
) -> None:
    """The kernel forgets what it could not write, and the next sync says nothing about it.

    The first two syncs are part of the making of the file, in which nothing has been acknowledged yet.
    """
    chance = random.Random(f"{SEED} {kind} failing")
    cuts = "cuts behind a failed sync"

    for number in range(2 * RUNS):
        folder = memory / str(number)
        await cut(kind, folder, watching_host, chance, tally, cuts, sync=chance.randint(3, 12))
        shutil.rmtree(folder)

    assert tally["torn"] > tally[cuts] // 4, "the cuts had nothing to tear"


async def test_a_power_loss_around_a_checkpoint_loses_nothing_that_was_acknowledged(
    memory: Path, watching_host: Host, tally: Tally
) -> None:
    """While the log is moved into the file, and when it is begun anew; half of the cuts are right in the former."""
    chance, records, size, folder = random.Random(SEED), 14, 700_000, memory / "run"
    (folder / DISK).mkdir(parents=True)
    trace = str(folder / "trace")
    watching_host.start("checkpointed", folder=str(folder), trace=trace, records=records, size=size).end()
    steps = read_trace(folder / "trace")
    moving = list(moments_of_checkpoints(steps))
    assert len(moving) > 100

    for number in range(CUTS * RUNS):
        tally.add("cuts around a checkpoint")
        length = chance.choice(moving) if number % 2 else chance.randint(1, len(steps))
        state = State(steps[:length], folder / DISK)
        (memory / str(number)).mkdir()
        state.after_power_loss(memory / str(number) / DISK, chance)
        site = Site(memory / str(number), watching_host, DISK)
        rows = await stored_in(site)
        assert len(rows) >= acknowledged(state), f"cut {number}, after step {length} of {len(steps)}"
        assert rows == stored_rows(0, len(rows), body="x" * size)
        await site.log().close()
        shutil.rmtree(site.folder)


def moments_of_checkpoints(steps: Sequence[Step]) -> Iterator[int]:
    """The numbers of steps in which the file itself was written while its log existed."""
    names: dict[int, str] = {}
    for number, step in enumerate(steps, 1):
        if step.change is Change.OPEN:
            names[step.file] = step.text
        has_log = any(name.endswith("-wal") for name in names.values())
        if step.change is Change.WRITE and names[step.file].endswith(".sqlite") and has_log:
            yield number


@pytest.mark.parametrize("kind", ["tool", "worker's worker"])
async def test_when_an_action_is_entered_nothing_that_it_depends_on_is_left_to_the_disk(
    kind: str, memory: Path, watching_host: Host, tally: Tally
) -> None:
    """Its start is synced, and so are the names of the file and its log; the index in memory is made anew anyway."""
    run = await traced(kind, memory / "run", watching_host, dies_at=7)

    for length in run.entered():
        tally.add("entries looked at")
        assert {name for name in run.state(length).uncertain if not name.endswith((".lock", "-shm"))} == set()


async def test_no_action_is_entered_while_the_names_of_its_files_are_uncertain(
    memory: Path, watching_host: Host, tally: Tally
) -> None:
    """Whichever sync fails, that of the folder included, for which SQLite alone would not say so."""
    failed: set[str] = set()

    for sync in range(1, 13):
        run = await traced("tool", memory / str(sync), watching_host, dies_at=7, sync=sync)
        (first, *_) = [number for number, step in enumerate(run.steps, 1) if step.has_failed]
        failed.add("folder" if run.state(first).is_folder(run.steps[first - 1]) else "file")
        for length in run.entered():
            tally.add("entries looked at")
            assert {name for name in run.state(length).unnamed if not name.endswith((".lock", "-shm"))} == set()

    assert failed == {"folder", "file"}


@pytest.mark.parametrize("ignored", ["files", "folders"])
async def test_without_the_syncs_of_the_store_the_same_cuts_lose_what_was_entered(
    ignored: str, memory: Path, watching_host: Host
) -> None:
    """The tests above can fail: on a disk that syncs no file, or no folder, each of them finds something missing."""
    run = await traced("tool", memory / "run", watching_host, dies_at=7)
    lost = 0

    for number, length in enumerate(run.entered()):
        state = run.state(length, ignored=frozenset({ignored}))
        (memory / str(number)).mkdir()
        state.after_power_loss(memory / str(number) / DISK, NothingKept())
        site = Site(memory / str(number), watching_host, DISK)
        lost += not await stored_in(site)
        await site.log().close()

    assert lost == len(run.entered())


class NothingKept(random.Random):
    """The disk keeps nothing that it need not."""

    def randrange(self, *args: int) -> int:  # type: ignore[override]
        """The first of all ways."""
        return 0

    def randint(self, a: int, b: int) -> int:
        """As few as possible."""
        return a
