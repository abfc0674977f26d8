"""F15: a durable run that is canceled at each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from protolink import Agent, TaskState
from protolink.durable import Lease, Row, RunInfo, RunStatus
from protolink.durable.memory import MemoryRecordLog
from protolink.testing import DyingLog, LogDiedError, call
from tests.reliability.facts import assert_sound
from tests.reliability.scale import scaled
from tests.reliability.tally import Tally
from tests.reliability.teams import ASKING, KINDS, ROOT, Kind, Operator, Player, Wait, World, acting
from tests.support import turns

GRACE_TURNS = 40
"""Turns in which something that should not happen any more would have happened."""


class WaitingLog(MemoryRecordLog):
    """A log in memory whose caller waits for it before and after each write, as for one on a disk."""

    async def create(self, root_id: str, info: RunInfo) -> Lease:
        """Wait, write, wait."""
        await turns(1)
        lease = await super().create(root_id, info)
        try:
            await turns(1)
        except asyncio.CancelledError:
            await self.release(lease)
            raise
        return lease

    async def acquire(self, root_id: str) -> tuple[Lease, list[Row]]:
        """Wait, take, wait."""
        await turns(1)
        lease, rows = await super().acquire(root_id)
        try:
            await turns(1)
        except asyncio.CancelledError:
            await self.release(lease)
            raise
        return lease, rows

    async def append(
        self,
        lease: Lease,
        expected: int,
        rows: Sequence[Row],
        *,
        status: RunStatus,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Wait, write, wait."""
        await turns(1)
        await super().append(lease, expected, rows, status=status, summary=summary)
        await turns(1)


class SlowWorld(World):
    """A world in which a model takes two turns of the loop, and an effect two on each side."""

    def asked(self) -> Wait:
        """A model was called, and takes its time."""
        super().asked()
        return self.pause

    async def pause(self) -> None:
        """Two turns."""
        await turns(2)


def _handled(log: Any, world: World) -> Agent:
    """Approvals that a function of the application gives while the run waits."""

    async def approve(request: Any, context: Any) -> bool:
        await turns(2)
        return True

    model = Player(world.asked, call("act", value=1))
    tools = [acting(world, capabilities=["world.write"])]
    return Agent(name="approval", llm=model, tools=tools, policy=ASKING, approval_handler=approve, durability=log)


CANCELED_KINDS = {
    "approval by a function": Kind(_handled),
    **{name: KINDS[name] for name in (
        "tool", "worker", "prepared tool", "approval", "question", "worker's worker", "two workers", "yield",
        "typed answer", "parallel read-only tools", "explicit tool task", "reconcile",
    )},
}  # fmt: skip


Way = Callable[[Agent, asyncio.Task[Any], set[Any]], Awaitable[None]]


async def by_id(agent: Agent, caller: asyncio.Task[Any], before: set[Any]) -> None:
    """Somebody who has the agent and the id. Where the run is not at work, whoever would take it up is gone."""
    await agent.cancel_task(ROOT)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)


async def by_caller(agent: Agent, caller: asyncio.Task[Any], before: set[Any]) -> None:
    """Whoever awaits the run is canceled."""
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)


async def by_loop(agent: Agent, caller: asyncio.Task[Any], before: set[Any]) -> None:
    """Every task is canceled, as when a program ends."""
    others = asyncio.all_tasks() - before
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.fault(name="F15")
@pytest.mark.parametrize("way", [by_id, by_caller, by_loop])
@pytest.mark.parametrize("kind", CANCELED_KINDS)
async def test_a_run_that_is_canceled_at_any_turn_is_in_one_of_the_promised_states(
    kind: str, way: Way, tally: Tally
) -> None:
    """It enters nothing more, its lease is free, and whoever takes it up finds a run that can be ended."""
    statuses: Counter[str] = Counter()
    turn = 0
    while not statuses["completed"]:
        turn += 1
        try:
            statuses[await _canceled_at(turn, kind, way)] += 1
        except BaseException as error:
            error.add_note(f"canceled at turn {turn}")
            raise
        tally.add("cancellations")

    tally.add("recorded as such", statuses["canceled"])
    assert statuses["canceled"] >= 8  # the shortest kind has nine turns of the loop in which it can be told to stop
    assert set(statuses) <= {"unknown", "canceled", "completed", "running", "paused", "resumable", "uncertain"}


@pytest.mark.fault(name="F15")
@pytest.mark.time_limit(scaled(commit=120, short=900, full=3 * 3600))
@pytest.mark.parametrize("kind", ["worker", "two workers"][: scaled(commit=1, short=1, full=2)])
async def test_a_run_that_is_canceled_at_any_turn_after_a_death_comes_to_an_end(kind: str, tally: Tally) -> None:
    """The workers of the process that died are taken up as well, whatever they had come to."""
    place, has_died = 0, True
    while has_died:
        place += 1
        turn, has_ended = 0, False
        while not has_ended:
            turn += 1
            world, log = World(), DyingLog(dies_at=place)
            with suppress(LogDiedError):
                await Operator(KINDS[kind], world).attend(KINDS[kind].build(log, world))
            has_died, log = log.dead, log.reopened()
            before = asyncio.all_tasks()
            caller = asyncio.ensure_future(Operator(KINDS[kind], world).attend(KINDS[kind].build(log, world)))
            await turns(turn)
            has_ended = caller.done()
            await by_loop(KINDS[kind].build(log, world), caller, before)
            await turns(GRACE_TURNS)
            assert asyncio.all_tasks() == before, f"died at write {place}, canceled at turn {turn}"
            info = await log.get(ROOT)
            assert info is None or info.owner is None
            _check_effects(kind, world)
            tally.add("cancellations after a death")


async def _canceled_at(turn: int, kind: str, way: Way) -> str:
    world, log = SlowWorld(), WaitingLog()
    before = asyncio.all_tasks()
    agent = CANCELED_KINDS[kind].build(log, world)
    caller = asyncio.ensure_future(Operator(CANCELED_KINDS[kind], world).attend(agent))
    for _ in range(turn):
        if caller.done():
            break
        await asyncio.sleep(0)
    await way(agent, caller, before)
    entered = list(world.effects)
    await turns(GRACE_TURNS)
    assert world.effects == entered, "something was entered after the cancellation"
    _check_effects(kind, world)
    info = await log.get(ROOT)
    if info is None or info.records == 0:
        assert entered == []
        return "unknown"
    assert info.owner is None, "the run was not released"
    assert_sound(await log.read(ROOT))
    outcome = await Operator(CANCELED_KINDS[kind], world).attend(CANCELED_KINDS[kind].build(log, world))
    if kind == "explicit tool task" and outcome.uncertain and not world.effects:
        # Nobody decides again about what the application itself has asked for.
        assert outcome.task.metadata["error"]["code"] == "not_executed"
    else:
        assert outcome.task.state in (TaskState.COMPLETED, TaskState.CANCELED)
    _check_effects(kind, world)
    return info.status


def _check_effects(kind: str, world: World) -> None:
    if kind != "parallel read-only tools":  # these may be repeated, which is what they declare
        assert max(Counter(world.effects).values(), default=0) <= 1
