"""F15: a durable run that is canceled at each turn of the event loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from protolink import Agent, RunHandle, TaskState
from protolink.durable import Lease, Row, RunInfo, RunStatus
from protolink.durable.memory import MemoryRecordLog
from protolink.testing import call, delegate
from tests.reliability.facts import assert_sound
from tests.reliability.teams import ROOT, Kind, Operator, Player, World, acting, task
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


def acting_slowly(world: World) -> Any:
    """The tool `act`, which waits on both sides of its effect."""

    async def act(value: int) -> int:
        """Change the world."""
        await turns(2)
        result = world.act(value)
        await turns(2)
        return result

    return act


class SlowPlayer(Player):
    """A model that takes two turns of the loop."""

    async def respond(self, request: Any) -> Any:
        """Wait, then play."""
        await turns(2)
        return super().respond(request)


def _tool(log: Any, world: World) -> Agent:
    model = SlowPlayer(world.asked, call("act", value=1), call("act", value=2))
    return Agent(name="tool", llm=model, tools=[acting_slowly(world)], durability=log)


def _worker(log: Any, world: World) -> Agent:
    child = Agent(name="worker", llm=SlowPlayer(world.asked, call("act", value=1)), tools=[acting_slowly(world)])
    model = SlowPlayer(world.asked, delegate("worker", "act"), call("act", value=2))
    return Agent(name="parent", llm=model, tools=[acting_slowly(world)], subagents=[child], durability=log)


def _approval(log: Any, world: World) -> Agent:
    from tests.reliability.teams import ASKING

    async def approve(request: Any, context: Any) -> bool:
        await turns(2)
        return True

    model = SlowPlayer(world.asked, call("act", value=1))
    tools = [acting(world, capabilities=["world.write"])]
    return Agent(name="approval", llm=model, tools=tools, policy=ASKING, approval_handler=approve, durability=log)


KINDS = {"tool": _tool, "worker": _worker, "approval": _approval}


async def by_handle(handle: RunHandle, caller: asyncio.Task[Any], before: set[Any]) -> None:
    """Somebody who has the handle."""
    await handle.cancel("enough")


async def by_caller(handle: RunHandle, caller: asyncio.Task[Any], before: set[Any]) -> None:
    """Whoever awaits the run is canceled."""
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)


async def by_loop(handle: RunHandle, caller: asyncio.Task[Any], before: set[Any]) -> None:
    """Every task is canceled, as when a program ends."""
    others = asyncio.all_tasks() - before
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@pytest.mark.parametrize("way", [by_handle, by_caller, by_loop])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_that_is_canceled_at_any_turn_is_in_one_of_the_promised_states(kind: str, way: Any) -> None:
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

    assert statuses["canceled"] > 10
    assert set(statuses) <= {"unknown", "canceled", "completed", "running", "uncertain"}


async def _canceled_at(turn: int, kind: str, way: Any) -> str:
    world, log = World(), WaitingLog()
    before = asyncio.all_tasks()
    agent = KINDS[kind](log, world)
    handle = agent.start_run(task())
    caller = asyncio.ensure_future(_owned(handle))
    for _ in range(turn):
        if caller.done():
            break
        await asyncio.sleep(0)
    await way(handle, caller, before)
    entered = list(world.effects)
    await turns(GRACE_TURNS)
    assert world.effects == entered, "something was entered after the cancellation"
    assert max(Counter(entered).values(), default=0) <= 1
    info = await log.get(ROOT)
    if info is None or info.records == 0:
        assert entered == []
        return "unknown"
    assert info.owner is None, "the run was not released"
    assert_sound(await log.read(ROOT))
    await _ends(kind, log, world)
    return info.status


async def _owned(handle: RunHandle) -> Any:
    try:
        return await handle.result()
    except asyncio.CancelledError:
        await handle.cancel("the caller was canceled")
        raise


async def _ends(kind: str, log: Any, world: World) -> None:
    outcome = await Operator(Kind(KINDS[kind]), world).attend(KINDS[kind](log, world))
    assert outcome.task.state in (TaskState.COMPLETED, TaskState.CANCELED)
    assert max(Counter(world.effects).values(), default=0) <= 1
