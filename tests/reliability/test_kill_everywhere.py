"""F1: a process that dies at any write of any kind of run, and what the next one makes of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest

from protolink import TaskState
from protolink._core.records import ActionReconciled
from protolink.durable import Row
from protolink.errors import UnknownRunError
from protolink.testing import DyingLog, LogDiedError
from tests.reliability.facts import assert_sound, fold, left_open, of_kind, stored
from tests.reliability.tally import Tally
from tests.reliability.teams import KINDS, ROOT, Operator, Outcome, World


@dataclass
class Clean:
    """A run that nothing happened to."""

    outcome: Outcome
    world: World
    writes: int
    history: list[dict[str, object]]


async def uninterrupted(kind: str) -> Clean:
    world, log = World(), DyingLog()
    outcome = await Operator(KINDS[kind], world).attend(KINDS[kind].build(log, world))
    assert outcome.task.state is TaskState.COMPLETED
    rows = await stored(log)
    assert_sound(rows)
    return Clean(outcome, world, log.writes, fold(rows).runs[ROOT].history)


@dataclass
class Interrupted:
    """A run whose processes died at some of their writes, and the one that took it to its end."""

    kind: str
    clean: Clean

    async def check(self, *deaths: int, applied: bool) -> int:
        """Let one process after the other die at its n-th write, then take the run to its end; gives how many died."""
        world, log = World(), DyingLog()
        operator = Operator(KINDS[self.kind], world)
        expected: set[str] = set()
        died = 0
        for death in deaths:
            log = log.reopened(dies_at=death, applied=applied)
            try:
                await operator.attend(KINDS[self.kind].build(log, world))
            except LogDiedError:
                died += 1
            log = log.reopened()
            expected |= await self.unsettled(log)
        assert died > 0, "the fault was not reached"
        before = await self.rows(log)

        outcome = await operator.attend(KINDS[self.kind].build(log, world))

        rows = await stored(log)
        if self.kind == "explicit tool task" and not world.effects:
            # Nobody decides again about what the application itself has asked for.
            assert outcome.task.metadata["error"]["code"] == "not_executed"
            return died
        assert outcome.task.state is TaskState.COMPLETED
        assert outcome.answer == self.clean.outcome.answer
        assert rows[: len(before)] == before, "something that was stored is gone"
        assert_sound(rows)
        self.check_effects(world, operator)
        assert expected <= set(operator.settled), "an action that was entered was not called uncertain"
        surplus = set(operator.settled) - expected
        assert len(surplus) <= len(self.clean.outcome.uncertain), "an action was called uncertain for no reason"
        if not of_kind(rows, ActionReconciled) and self.kind != "typed answer":
            assert fold(rows).runs[ROOT].history == self.clean.history
        counters = fold(rows).counters
        assert world.calls <= counters.llm_calls <= world.calls + died
        assert await log.get(ROOT) is not None
        return died

    async def unsettled(self, log: DyingLog) -> set[str]:
        rows = await self.rows(log)
        return left_open(rows) if rows else set()

    async def rows(self, log: DyingLog) -> list[Row]:
        try:
            return await stored(log)
        except UnknownRunError:
            return []

    def check_effects(self, world: World, operator: Operator) -> None:
        """No action has its effect twice, and the world is where it would have been."""
        if self.kind == "parallel read-only tools":
            assert set(world.effects) == set(self.clean.world.effects)
            return
        assert max(Counter(world.effects).values()) == 1
        assert len(world.effects) == len(self.clean.world.effects)


@pytest.mark.fault(name="F1")
@pytest.mark.parametrize("applied", [True, False], ids=["stored", "lost"])
@pytest.mark.parametrize("kind", KINDS)
async def test_wherever_the_process_dies_the_next_one_comes_to_the_same_end(
    kind: str, applied: bool, tally: Tally
) -> None:
    """Every write is a place to die; together they are every state that a killed process can leave."""
    clean = await uninterrupted(kind)

    for place in range(1, clean.writes + 1):
        try:
            tally.add("deaths in memory", await Interrupted(kind, clean).check(place, applied=applied))
        except BaseException as error:
            error.add_note(f"died at write {place} of {clean.writes}")
            raise


@pytest.mark.fault(name="F1")
@pytest.mark.parametrize("second", [2, 5])
@pytest.mark.parametrize("kind", KINDS)
async def test_two_deaths_are_no_worse_than_one(kind: str, second: int, tally: Tally) -> None:
    """The process that takes up what a death has left dies as well, early or late."""
    clean = await uninterrupted(kind)

    for place in range(1, clean.writes + 1):
        try:
            died = await Interrupted(kind, clean).check(place, second, applied=place % 2 == 0)
            tally.add("deaths in memory", died)
        except BaseException as error:
            error.add_note(f"died at write {place} of {clean.writes}, and at write {second} of the next life")
            raise
