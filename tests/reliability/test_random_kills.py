"""F1 to F3: processes that the kernel ends at every write, and at moments that nobody chose."""

from __future__ import annotations

import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from protolink._core.records import ActionReconciled
from protolink.durable import Row
from protolink.errors import UnknownRunError
from tests.reliability.facts import assert_sound, fold, left_open, of_kind
from tests.reliability.host import Host, Process
from tests.reliability.scale import TIMES
from tests.reliability.sites import Site
from tests.reliability.teams import KINDS

KILLS = 25 * TIMES
"""Of each kind of run."""

SEED = 20_260
FEWEST_WRITES = 6
"""Any run here reserves its root, asks its model twice, enters a tool, and ends."""


@dataclass
class Trial:
    """One run that is killed again and again."""

    site: Site
    kind: str
    before: list[Row] = field(default_factory=list[Row])
    unsettled: set[str] = field(default_factory=set[str])

    async def look(self) -> None:
        """What the process that died has left: nothing that was there is gone, and what is open is known."""
        try:
            rows = await self.site.rows()
        except UnknownRunError:
            rows = []
        assert rows[: len(self.before)] == self.before, "something that was stored is gone"
        self.before = rows
        if rows:
            self.unsettled |= left_open(rows)
        self.check_effects()

    def check_effects(self) -> None:
        if self.kind != "parallel read-only tools":
            assert max(Counter(self.site.world.effects).values(), default=0) <= 1, "an effect happened twice"

    async def conclude(self, told: dict[str, object], answer: object, effects: int) -> None:
        """The run has come to its end: the same answer, each effect once, each unknown one settled once."""
        await self.look()
        rows = self.before
        assert_sound(rows)
        assert (told["state"], told["output"]) == ("completed", answer)
        settled = [record.action_id for record in cast("list[ActionReconciled]", of_kind(rows, ActionReconciled))]
        assert len(settled) == len(set(settled))
        assert set(settled) == self.unsettled
        assert len(set(self.site.world.effects)) == effects
        assert self.site.world.calls <= fold(rows).counters.llm_calls


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("explicit tool task", "reconcile")])
async def test_a_process_that_is_killed_at_any_write_is_followed_by_one_that_ends_the_run(
    kind: str, tmp_path: Path, host: Host
) -> None:
    """The real thing: SIGKILL behind each write that was committed, and before each that was not."""
    clean = Site(_folder(tmp_path, "clean"), host)
    told = clean.process("attend", kind).end()
    place = 0

    # How many writes share a commit depends on the moment, so the last place is where no process dies any more.
    while True:
        place += 1
        trial = Trial(Site(_folder(tmp_path, str(place)), host), kind)
        process = trial.site.process("attend", kind, dies_at=place, applied=place % 2 == 0)
        ended = last_word(process)
        if ended is not None:
            break
        assert process.wait() == -signal.SIGKILL
        await trial.look()
        await trial.conclude(trial.site.process("attend", kind).end(), told["output"], len(set(clean.world.effects)))

    await trial.conclude(ended, told["output"], len(set(clean.world.effects)))
    assert place > FEWEST_WRITES


@pytest.mark.parametrize("kind", ["tool", "worker's worker", "approval", "yield", "parallel read-only tools", "worker"])
async def test_kills_at_moments_that_nobody_chose(kind: str, tmp_path: Path, host: Host) -> None:
    """Each process lives for a random number of microseconds, in starts, resumes and settlements alike."""
    chance = random.Random(f"{SEED} {kind}")
    answer, effects, seconds = await _measured(kind, Site(_folder(tmp_path, "clean"), host))
    kills = 0

    while kills < KILLS:
        trial = Trial(Site(_folder(tmp_path, str(chance.random())), host), kind)
        kills += await _killed_until_it_ends(trial, chance, answer, effects, seconds)


async def _measured(kind: str, site: Site) -> tuple[object, int, float]:
    """A run that nothing happens to: its answer, its effects and how long its process takes."""
    told = site.process("attend", kind).end()
    return told["output"], len(set(site.world.effects)), told["seconds"]


async def _killed_until_it_ends(
    trial: Trial, chance: random.Random, answer: object, effects: int, seconds: float
) -> int:
    """Start process after process; gives how many of them were killed."""
    kills = 0
    while True:
        process = trial.site.process("attend", trial.kind, timer=chance.uniform(1e-6, 1.3 * seconds))
        told = last_word(process)
        if told is not None:
            break
        assert process.wait() == -signal.SIGALRM
        kills += 1
        await trial.look()
    await trial.conclude(told, answer, effects)
    return kills


def last_word(process: Process) -> dict[str, object] | None:
    """What it says at its end; None for a process that was killed."""
    try:
        return cast("dict[str, object]", process.end())
    except EOFError:
        return None


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder
