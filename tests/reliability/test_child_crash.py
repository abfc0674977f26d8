"""F16: a process that dies in the action of a worker, three levels deep, or of one of two workers at work."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from protolink import Agent, TaskState, UncertainExecutionError
from protolink._core.records import ActionCanceled
from protolink.durable.memory import MemoryRecordLog
from protolink.llms import LLMRequest
from protolink.testing import call, calls, delegate
from tests.reliability.facts import assert_sound, left_open, of_kind
from tests.reliability.host import Host
from tests.reliability.scale import scaled
from tests.reliability.sites import Site, new_folder
from tests.reliability.tally import Tally
from tests.reliability.teams import KINDS, ROOT, Kind, Operator, Player, World, task
from tests.support import turns

ROUNDS = scaled(commit=1, short=2, full=21)


@pytest.mark.fault(name="F16")
@pytest.mark.parametrize("point", ["entered", "acted"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("kind", ["worker", "worker's worker", "three levels", "two workers"])
async def test_a_death_in_a_workers_action_is_settled_through_the_root(
    kind: str, number: int, point: str, tmp_path: Path, host: Host, tally: Tally
) -> None:
    """Exactly that action is uncertain, named with its own run; the tree then comes to the same end."""
    undisturbed = Site(new_folder(tmp_path, "clean"), host)
    answer = undisturbed.process("attend", kind).end()["output"]
    effects = len(undisturbed.world.effects)

    for one in range(ROUNDS):
        site = Site(new_folder(tmp_path, str(one)), host)
        site.killed("start", kind, point, number=number)
        tally.add("deaths in a worker's action")
        await _settled_through_the_root(site, kind, number - (point == "entered"), answer, effects)
        await site.log().close()


async def _settled_through_the_root(site: Site, kind: str, happened: int, answer: object, effects: int) -> None:
    open_actions = left_open(await site.rows())
    assert open_actions
    assert len(open_actions) == 1 or kind == "two workers"
    assert len(site.world.effects) == happened
    told = site.process("resume", kind).end()
    assert (told["error"], told["root_run_id"]) == ("UncertainExecutionError", ROOT)
    assert told["action_id"] in open_actions
    assert told["action_id"].startswith(f"{told['run_id']}.")
    listed = (await site.info()).summary["uncertain"]
    assert {one["action_id"] for one in cast("list[dict[str, str]]", listed)} == open_actions

    operator = Operator(KINDS[kind], site.world)
    outcome = await operator.attend(site.agent(kind))

    assert outcome.task.state is TaskState.COMPLETED
    assert outcome.answer == answer
    assert set(operator.settled) == open_actions
    assert max(Counter(site.world.effects).values()) == 1
    assert len(site.world.effects) == effects
    assert_sound(await site.rows())


@pytest.mark.parametrize("fault", [UncertainExecutionError("no reply"), ConnectionError("no model")])
async def test_a_worker_that_is_suspended_takes_no_other_worker_with_it(fault: Exception) -> None:
    """The other one is in an action meanwhile. It goes on to its end, and its work is not asked for again."""
    world, log = World(), MemoryRecordLog()
    at_work, has_failed = asyncio.Event(), asyncio.Event()

    async def act(value: int) -> int:
        """Have the effect; the right worker has it while the left one fails."""
        world.act(value)
        if value == 5:
            at_work.set()
            await has_failed.wait()
            await turns(50)
        if value == 1:
            await _fail_once(at_work, has_failed, fault if isinstance(fault, UncertainExecutionError) else None)
        return value

    class Left(Player):
        async def respond(self, request: LLMRequest) -> Any:
            if not isinstance(fault, UncertainExecutionError):
                await _fail_once(at_work, has_failed, fault)
            return super().respond(request)

    def agent() -> Agent:
        left = Agent(name="left", llm=Left(world.asked, call("act", value=1)), tools=[act])
        script = call("act", value=5), call("act", value=6)
        right = Agent(name="right", llm=Player(world.asked, *script), tools=[act])
        both = calls(delegate("left", "act"), delegate("right", "act"))
        return Agent(name="parent", llm=Player(world.asked, both), subagents=[left, right], durability=log)

    suspended = await agent().run_task(task())
    assert suspended.metadata["resumable"]
    assert has_failed.is_set()

    outcome = await Operator(Kind(lambda log, world: agent()), world).attend(agent())

    assert outcome.task.state is TaskState.COMPLETED
    assert outcome.answer is not None
    assert "canceled" not in outcome.answer
    assert len(world.effects) == len(set(world.effects)) == 3
    assert not of_kind(await log.read(ROOT), ActionCanceled)


async def test_a_run_that_is_canceled_while_a_worker_is_suspended_is_not_taken_up_again() -> None:
    """What suspends an attempt is forgotten by the next one; that somebody wants the run to end is not."""
    world, log = World(), MemoryRecordLog()
    has_failed = asyncio.Event()

    async def act(value: int) -> int:
        """Lose the reply on the left; on the right, wait for ever."""
        world.act(value)
        if value == 1:
            has_failed.set()
            raise UncertainExecutionError("no reply")
        await asyncio.Event().wait()
        return value

    left = Agent(name="left", llm=Player(world.asked, call("act", value=1)), tools=[act])
    right = Agent(name="right", llm=Player(world.asked, call("act", value=5)), tools=[act])
    both = calls(delegate("left", "act"), delegate("right", "act"))
    agent = Agent(name="parent", llm=Player(world.asked, both), subagents=[left, right], durability=log)
    handle = agent.start_run(task())
    await has_failed.wait()
    await turns(100)

    await handle.cancel("enough")

    assert (await handle.result()).task.state is TaskState.CANCELED
    assert (await agent.resume_task(ROOT)).state is TaskState.CANCELED
    assert len(world.effects) == 2


async def _fail_once(at_work: asyncio.Event, has_failed: asyncio.Event, fault: Exception | None) -> None:
    """Fail while the other worker is at work, the first time."""
    await at_work.wait()
    if fault is not None and not has_failed.is_set():
        has_failed.set()
        raise fault
