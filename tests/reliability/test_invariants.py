"""The invariants of durable runs, each as a test of its number, with real processes where a process matters."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest

from protolink import (
    Agent,
    CheckpointMismatchError,
    RunBudget,
    RunHandoff,
    RunInterruption,
    SQLiteDurableStore,
    TaskState,
    UncertainExecutionError,
)
from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionFailed,
    ActionJudged,
    ActionPrepared,
    ActionReconciled,
    ActionStarted,
    ActionUncertain,
    ApprovalAnswered,
    ModelReplied,
)
from protolink._environment import Environment
from protolink.durable import Lease, RecordLog
from protolink.durable.memory import MemoryRecordLog
from protolink.errors import (
    DurableExecutionError,
    LostRunError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
    UnknownRunError,
)
from protolink.llms import LLMReply, LLMRequest
from protolink.testing import DyingLog, LogDiedError, call, calls, use_environment
from tests.reliability.facts import fold, left_open, of_kind, stored
from tests.reliability.sites import Site
from tests.reliability.teams import (
    ASKING,
    KINDS,
    ROOT,
    Operator,
    Player,
    World,
    acting,
    task,
)
from tests.support import blocker

ONE_SECOND = 1.0
"""The bound that the promise itself names; everything else here waits for states and not for time."""


async def settle(site: Site, kind: str) -> Operator:
    """Take the run to its end in this process, and check the end."""
    operator = Operator(KINDS[kind], site.world)
    outcome = await operator.attend(site.agent(kind))
    assert outcome.task.state is TaskState.COMPLETED
    return operator


async def test_r1_an_action_is_entered_at_most_once_per_authorisation(site: Site) -> None:
    """Over every process and restart, with a death before the first effect and one after the second."""
    site.killed("start", "tool", "entered")
    assert site.world.effects == []
    await settle_uncertain(site, happened=False)
    site.killed("resume", "tool", "acted")
    assert len(site.world.effects) == 1

    await settle(site, "tool")

    entered = Counter(
        record.action_id for record in cast("list[ActionStarted]", of_kind(await site.rows(), ActionStarted))
    )
    assert max(entered.values()) == 1
    assert max(Counter(site.world.effects).values()) == 1
    assert len(site.world.effects) == 2


async def settle_uncertain(site: Site, *, happened: bool) -> None:
    """Say what became of the action that the last process died in."""
    (action_id,) = left_open(await site.rows())
    answer: dict[str, Any] = {"result": 1} if happened else {"happened": False}
    await site.agent("tool").reconcile(ROOT, action_id, **answer)


async def test_r2_before_an_action_is_entered_everything_about_it_is_committed(site: Site) -> None:
    """Read by another process while the first line of the tool runs."""
    process = site.process("start", "tool", "entered")
    process.until("entered")

    rows = await site.rows()
    (started,) = cast("list[ActionStarted]", of_kind(rows, ActionStarted))
    (prepared,) = cast("list[ActionPrepared]", of_kind(rows, ActionPrepared))
    (judged,) = cast("list[ActionJudged]", of_kind(rows, ActionJudged))
    assert started.action_id == prepared.action_id == judged.action_id == f"{ROOT}.1"
    assert (prepared.arguments, judged.effect) == ({"value": 1}, "allow")
    assert len(prepared.fingerprint) == 64
    assert fold(rows).runs[ROOT].attempt == 1
    assert fence(site.path) == 1
    assert site.world.effects == []


def fence(path: Path) -> int:
    """The number of the owner that may write."""
    with sqlite3.connect(path) as connection:
        (found,) = connection.execute("SELECT fence FROM runs").fetchone()
    connection.close()
    return int(found)


class Listening(Player):
    """A player that looks into the store before each turn."""

    def __init__(self, look: Callable[[int], Awaitable[None]], *script: Any) -> None:
        super().__init__(lambda: None, *script)
        self._look = look

    async def respond(self, request: LLMRequest) -> Any:
        """Look, then play."""
        await self._look(sum(message["role"] == "tool" for message in request.messages))
        return super().respond(request)


async def test_r3_a_receipt_is_committed_before_its_result_is_acknowledged(tmp_path: Path) -> None:
    """Acknowledged is: in the model's next prompt, in an event, in the result."""
    path = tmp_path / "runs.sqlite"
    looks = 0

    async def receipts(seen: int) -> None:
        nonlocal looks
        looks += 1
        rows = await SQLiteDurableStore(path).log.read(ROOT)
        assert len(of_kind(rows, ActionCompleted)) >= seen

    model = Listening(receipts, call("act", value=1), call("act", value=2))
    agent = Agent(name="careful", llm=model, tools=[acting(World())], durability=path)
    handle = agent.start_run(task())
    told = 0
    async for event in handle.events():
        told += event.type == "action.completed"
        if event.type == "action.completed":
            await receipts(told)
    result = await handle.result()

    assert (await SQLiteDurableStore(path).log.get(ROOT)).status == result.status == "completed"  # type: ignore[union-attr]
    assert (told, looks) == (2, 5)


async def test_r4_a_receipt_is_there_unchanged_after_any_number_of_kills(site: Site) -> None:
    """The rows of every death are the beginning of the rows of the next one."""
    site.killed("start", "tool", "asked", number=2)
    before = await site.rows()
    assert len(of_kind(before, ActionCompleted)) == 1
    for _ in range(5):
        site.killed("resume", "tool", "asked")
        rows = await site.rows()
        assert rows[: len(before)] == before
        before = rows

    await settle(site, "tool")

    assert (await site.rows())[: len(before)] == before


async def test_r5_started_without_outcome_is_uncertain_on_every_resume_until_it_is_reconciled(site: Site) -> None:
    """In a worker, from processes of their own, with everything that a person needs as attributes."""
    site.killed("start", "worker", "entered")
    (action_id,) = left_open(await site.rows())

    for _ in range(3):
        told = site.process("resume", "worker").end()
        assert told["error"] == "UncertainExecutionError"
        assert (told["root_run_id"], told["action_id"]) == (ROOT, action_id)
        assert told["run_id"] not in (ROOT, None)
        assert (told["tool_name"], told["arguments"]) == ("act", {"value": 1})
    assert site.world.effects == []

    operator = await settle(site, "worker")

    assert operator.settled == [action_id]


@pytest.mark.parametrize("turn", [1, 2, 3])
async def test_r6_a_death_in_the_model_call_leaves_nothing_uncertain(site: Site, turn: int) -> None:
    """No action can have been entered there."""
    site.killed("start", "tool", "asked", number=turn)

    told = site.process("resume", "tool").end()

    assert told["state"] == "completed"
    assert len(site.world.effects) == 2


async def test_r7_reconciliation_is_one_record_of_one_uncertain_action(site: Site) -> None:
    """It names who and when; no other action can be settled, and none a second time."""
    site.killed("start", "tool", "entered", number=2)
    (action_id,) = left_open(await site.rows())
    agent, completed = site.agent("tool"), f"{ROOT}.1"

    for other in (completed, f"{ROOT}.3", "nonsense"):
        with pytest.raises(DurableExecutionError):
            await agent.reconcile(ROOT, other, result=1)
    await agent.reconcile(ROOT, action_id, result=2)
    with pytest.raises(DurableExecutionError):
        await agent.reconcile(ROOT, action_id, result=2)

    rows = await site.rows()
    (settled,) = cast("list[ActionReconciled]", of_kind(rows, ActionReconciled))
    assert (settled.action_id, settled.principal, settled.result) == (action_id, "local", 2)
    assert rows[-1].at == pytest.approx(time.time(), abs=60)
    await settle(site, "tool")
    assert site.world.effects == [completed]


@pytest.mark.parametrize("applied", [True, False], ids=["stored", "lost"])
async def test_r7_reconciliation_is_wholly_recorded_or_not_at_all(applied: bool) -> None:
    """A process that dies while it settles leaves the action either uncertain or settled."""
    world, log = World(), DyingLog(dies_at=5)
    with pytest.raises(LogDiedError):
        await KINDS["tool"].build(log, world).run_task(task())
    log = log.reopened()
    (action_id,) = left_open(await stored(log))
    log = log.reopened(dies_at=1, applied=applied)

    with pytest.raises(LogDiedError):
        await KINDS["tool"].build(log, world).reconcile(ROOT, action_id, happened=False)

    log = log.reopened()
    rows = await stored(log)
    assert len(of_kind(rows, ActionReconciled)) == len(of_kind(rows, ActionUncertain)) == int(applied)
    assert left_open(rows) == (set() if applied else {action_id})
    operator = Operator(KINDS["tool"], world)
    await operator.attend(KINDS["tool"].build(log, world))
    assert operator.settled == ([] if applied else [action_id])


async def test_r8_an_interrupted_run_has_the_conversation_of_an_uninterrupted_one(site: Site) -> None:
    """Each observation once and in order, although three processes died over it."""
    clean = World(), MemoryRecordLog()
    undisturbed = await KINDS["tool"].build(clean[1], clean[0]).run_task(task())
    for turn in (1, 1, 2):
        site.killed("start" if not site.path.exists() else "resume", "tool", "asked", number=turn)

    told = site.process("resume", "tool").end()

    assert told["output"] == undisturbed.get_output()
    assert fold(await site.rows()).runs[ROOT].history == fold(await stored(clean[1])).runs[ROOT].history


async def test_r9_a_recorded_model_call_is_not_made_again_and_a_lost_one_is_charged(site: Site) -> None:
    """Three turns: one died over before its reply, the others not."""
    site.killed("start", "tool", "asked")
    site.killed("resume", "tool", "entered")
    assert site.world.calls == 2

    await settle(site, "tool")

    # Two of the first turn, then one each, and one more because the operation had not happened.
    assert site.world.calls == 5
    assert fold(await site.rows()).counters.llm_calls == 5
    assert len(of_kind(await site.rows(), ModelReplied)) == 4


async def test_r10_no_kill_gives_any_budget_back(site: Site) -> None:
    """Ten steps are allowed, and a process dies in each."""
    site.killed("start", "tool", "asked")
    for _ in range(9):
        site.killed("resume", "tool", "asked")

    # AMPLE allows sixty steps, so the limit has to come from the run's own context.
    steps = fold(await site.rows()).counters.steps
    assert steps == 10
    assert site.world.calls == 10


@pytest.mark.parametrize("place", range(1, 8))
async def test_r10_steps_stay_within_their_limit_at_every_kill(place: int) -> None:
    """Whatever a death has cost, the whole run makes no more turns than it was given."""
    world, log = World(), DyingLog(dies_at=place)
    budget = RunBudget(max_steps=3, max_tool_calls=2)
    with pytest.raises(DurableExecutionError):
        await KINDS["tool"].build(log, world).run_task(task(budget=budget))
    assert log.dead
    log = log.reopened()
    agent = KINDS["tool"].build(log, world)
    while True:
        try:
            ended = await agent.resume_task(ROOT)
        except UnknownRunError:
            ended = await agent.run_task(task(budget=budget))
        except UncertainExecutionError as error:
            await agent.reconcile(ROOT, cast("str", error.action_id), result=1)
            continue
        break

    counters = fold(await stored(log)).counters
    assert ended.state in (TaskState.COMPLETED, TaskState.FAILED)
    assert world.calls <= counters.steps <= 3
    assert counters.tool_calls <= 2


async def test_r11_an_attempt_makes_no_more_turns_than_its_slice_and_yields_between_actions() -> None:
    """And a hard limit beats a pause."""
    world, log = World(), MemoryRecordLog()
    script = [calls(call("act", value=2 * turn), call("act", value=2 * turn + 1)) for turn in range(5)]

    def agent() -> Agent:
        model = Player(world.asked, *script)
        return Agent(name="slow", llm=model, tools=[acting(world)], durability=log, yield_after_steps=2)

    made = []
    current = await agent().run_task(task(budget=RunBudget(max_steps=4)))
    while current.state is TaskState.INPUT_REQUIRED:
        made.append(world.calls)
        assert not left_open(await stored(log))
        assert len(world.effects) == 2 * world.calls
        assert RunHandoff.from_task(current) is not None
        current = await agent().resume_task(ROOT)

    assert made == [2]
    assert current.metadata["error"]["code"] == "budget_exceeded"
    assert world.calls == 4


async def test_r12_at_most_one_process_executes_a_run(site: Site) -> None:
    """The loser learns who has it and since when, at once, and has changed nothing."""
    owner = site.process("start", "tool", "entered")
    owner.until("entered")
    before = await site.rows()

    told = site.process("resume", "tool").end()

    assert told["error"] == "RunBusyError"
    assert str(owner.pid) in told["owner"]
    assert told["since"] is not None
    assert told["seconds"] < ONE_SECOND
    assert await site.rows() == before
    owner.tell()
    assert owner.end()["state"] == "completed"
    assert len(site.world.effects) == 2


async def test_r13_whoever_lost_its_run_can_commit_nothing_more_to_it() -> None:
    """The lease is taken away while the first owner is in an action."""
    log, entered, go = MemoryRecordLog(), asyncio.Event(), asyncio.Event()
    world = World()

    async def act(value: int) -> int:
        """Wait for the test."""
        entered.set()
        await go.wait()
        return world.act(value)

    def agent() -> Agent:
        return Agent(name="a", llm=Player(world.asked, call("act", value=1)), tools=[act], durability=log)

    handle = agent().start_run(task())
    await entered.wait()
    log.break_leases()
    with pytest.raises(UncertainExecutionError):
        await agent().resume_task(ROOT)
    before = await log.read(ROOT)
    go.set()

    with pytest.raises(LostRunError):
        await handle.result()

    assert await log.read(ROOT) == before
    assert world.calls == 1


async def test_r14_a_dead_owners_run_can_be_resumed_at_once(site: Site) -> None:
    """Its lease is the kernel's and ends with it."""
    site.killed("start", "tool", "asked", number=2)

    told = site.process("resume", "tool").end()

    assert told["state"] == "completed"
    assert told["seconds"] < ONE_SECOND


async def test_r14_a_live_owner_that_is_stopped_keeps_its_run(site: Site) -> None:
    """Stopped by the system in the middle of an action; no clock takes its run away."""
    owner = site.process("start", "tool", "entered")
    owner.until("entered")
    owner.signal(signal.SIGSTOP)

    for _ in range(3):
        assert site.process("resume", "tool").end()["error"] == "RunBusyError"
    owner.signal(signal.SIGCONT)
    owner.tell()

    assert owner.end()["state"] == "completed"
    assert len(site.world.effects) == 2


async def test_r15_resuming_a_finished_run_executes_nothing(site: Site) -> None:
    """It gives the stored task, in any process, as often as one likes."""
    first = site.process("start", "tool").end()
    rows, happened = await site.rows(), (site.world.effects, site.world.calls)

    for _ in range(2):
        again = site.process("resume", "tool").end()
        assert (again["state"], again["output"]) == (first["state"], first["output"])

    assert await site.rows() == rows
    assert (site.world.effects, site.world.calls) == happened


async def test_r15_reading_changes_nothing_and_submitting_a_paused_task_leaves_it_paused() -> None:
    """Only `resume_task` goes on."""
    world, log = World(), MemoryRecordLog()
    agent = KINDS["yield"].build(log, world)
    paused = await agent.run_task(task())
    rows, info = await log.read(ROOT), await log.get(ROOT)

    again = await KINDS["yield"].build(log, world).run_task(paused)
    await log.list()
    await log.read(ROOT)

    assert again.state is TaskState.INPUT_REQUIRED
    assert (await log.read(ROOT), await log.get(ROOT)) == (rows, info)
    assert world.calls == 1


async def test_r16_a_run_can_be_found_before_its_first_model_call(site: Site) -> None:
    """And starting the same id again executes nothing, whether the first one is at work or has ended."""
    owner = site.process("start", "tool", "asked")
    owner.until("asked")

    assert (await site.info()).status == "running"
    assert site.process("start", "tool").end()["error"] == "RunExistsError"
    owner.tell()
    assert owner.end()["state"] == "completed"
    assert site.process("start", "tool").end()["error"] == "RunExistsError"

    assert len(site.world.effects) == 2


async def test_r16_an_id_that_was_reserved_by_a_process_that_died_can_be_started() -> None:
    """Nothing has happened under it, so it belongs to whoever starts it next."""
    world, log = World(), DyingLog(dies_at=1)
    with pytest.raises(LogDiedError):
        await KINDS["tool"].build(log, world).run_task(task())
    log = log.reopened()
    assert (await log.get(ROOT)).records == 0  # type: ignore[union-attr]

    ended = await KINDS["tool"].build(log, world).run_task(task())

    assert ended.state is TaskState.COMPLETED
    assert len(world.effects) == 2


async def waiting_for_approval() -> tuple[World, MemoryRecordLog, list[RunInterruption]]:
    world, log = World(), MemoryRecordLog()
    paused = await KINDS["approval"].build(log, world).run_task(task())
    listed = [RunInterruption.from_dict(one) for one in paused.metadata["interruptions"]]
    return world, log, listed


async def test_r17_an_approval_is_bound_to_its_request_its_action_and_the_exact_arguments() -> None:
    """Every other answer is refused and changes nothing; the right one is used once, by a fresh process."""
    world, log, (first, second) = await waiting_for_approval()
    before = await log.read(ROOT)
    for wrong in (
        {"request_id": "another", "approved": True},
        {"request_id": first.request_id, "approved": True, "fingerprint": second.fingerprint},
        {"request_id": first.request_id, "approved": "yes"},
        {"request_id": first.request_id, "answer": True},
        {"approved": True},
    ):
        with pytest.raises(DurableExecutionError):
            await KINDS["approval"].build(log, world).resume_task(ROOT, **cast("Any", wrong))
    assert await log.read(ROOT) == before

    for request in (second, first):
        agent = KINDS["approval"].build(log, world)
        await agent.resume_task(ROOT, request_id=request.request_id, approved=True, fingerprint=request.fingerprint)

    assert world.effects == [f"{ROOT}.1", f"{ROOT}.2"]
    answers = cast("list[ApprovalAnswered]", of_kind(await log.read(ROOT), ApprovalAnswered))
    assert [(one.action_id, one.decided_by) for one in answers] == [(f"{ROOT}.2", "local"), (f"{ROOT}.1", "local")]
    now = await log.read(ROOT)
    await KINDS["approval"].build(log, world).resume_task(ROOT, request_id=first.request_id, approved=True)
    with pytest.raises(DurableExecutionError):
        await KINDS["approval"].build(log, world).resume_task(ROOT, request_id=first.request_id, approved=False)
    assert await log.read(ROOT) == now


@pytest.mark.parametrize("applied", [True, False], ids=["stored", "lost"])
async def test_r17_a_kill_between_approval_and_entry_neither_loses_it_nor_uses_it_twice(applied: bool) -> None:
    """The answer and the attempt that acts on it are one commit."""
    world, log, (first, second) = await waiting_for_approval()
    await KINDS["approval"].build(log, world).resume_task(ROOT, request_id=first.request_id, approved=True)
    dying = DyingLog(log, dies_at=1, applied=applied)
    with pytest.raises(LogDiedError):
        await KINDS["approval"].build(dying, world).resume_task(ROOT, request_id=second.request_id, approved=True)
    assert world.effects == []
    log.break_leases()
    response: dict[str, Any] = {} if applied else {"request_id": second.request_id, "approved": True}

    await KINDS["approval"].build(log, world).resume_task(ROOT, **response)

    assert world.effects == [f"{ROOT}.1", f"{ROOT}.2"]
    assert len(of_kind(await log.read(ROOT), ApprovalAnswered)) == 2


async def test_r18_another_configuration_is_refused_before_anything_happens() -> None:
    """The error lists what differs, and the run can be taken up by whoever fits."""
    world, log = World(), MemoryRecordLog()
    await KINDS["yield"].build(log, world).run_task(task())
    before = await log.read(ROOT)
    other = Agent(
        name="slices",
        llm=Player(world.asked),
        tools=[acting(world)],
        durability=log,
        yield_after_steps=2,
        system_prompt="Be quick.",
    )

    with pytest.raises(CheckpointMismatchError) as caught:
        await other.resume_task(ROOT)

    assert caught.value.differences == ("system_prompt", "yield_after_steps")
    assert await log.read(ROOT) == before
    assert (await log.get(ROOT)).owner is None  # type: ignore[union-attr]
    assert world.calls == 1
    await KINDS["yield"].build(log, world).resume_task(ROOT)
    assert world.calls == 2


class FailingLog(DyingLog):
    """A log whose n-th write fails with an error of the store's family; afterwards it is well again."""

    def __init__(self, log: RecordLog, fails_at: int, error: StoreError) -> None:
        super().__init__(log)
        self._fails_at = fails_at
        self._error = error
        self.failed = False

    async def append(self, lease: Lease, expected: int, rows: Any, **options: Any) -> None:
        """Fail once."""
        if self.writes + 1 == self._fails_at and not self.failed:
            self.failed = True
            raise self._error
        await super().append(lease, expected, rows, **options)


@pytest.mark.parametrize("kind", [StoreBusyError, StoreFullError, StoreReadOnlyError, StoreError, StoreDamagedError])
@pytest.mark.parametrize("place", range(2, 8))
async def test_r19_a_fault_of_the_store_stops_the_attempt_and_not_the_run(kind: type[StoreError], place: int) -> None:
    """Nothing more is entered, the error is the store's own, and the run goes on when the store is well again."""
    world, inner = World(), MemoryRecordLog()
    fault = kind("as the test wants it")
    failing = FailingLog(inner, place, fault)

    with pytest.raises(kind):
        await KINDS["tool"].build(failing, world).run_task(task())

    assert failing.failed
    known = await inner.get(ROOT)
    assert known is not None
    assert (known.owner, known.status) == (None, "running")
    operator = Operator(KINDS["tool"], world)
    outcome = await operator.attend(KINDS["tool"].build(inner, world))
    assert outcome.task.state is TaskState.COMPLETED
    assert len(world.effects) == len(set(world.effects)) == 2


@pytest.mark.parametrize(
    "fault", [ConnectionError("gone"), TimeoutError("late"), ValueError("odd"), SystemExit(3), None]
)
async def test_r20_a_fault_of_the_model_enters_no_action_and_leaves_the_run_resumable(
    fault: BaseException | None,
) -> None:
    """An exception, whatever it is, or something that is no reply."""
    world, log = World(), MemoryRecordLog()

    class Faulty(Player):
        def respond(self, request: LLMRequest) -> Any:
            if world.calls == 1:
                world.asked()
                if fault is not None:
                    raise fault
                return cast("LLMReply", 17)
            return super().respond(request)

    def agent() -> Agent:
        model = Faulty(world.asked, call("act", value=1), call("act", value=2))
        return Agent(name="tool", llm=model, tools=[acting(world)], durability=log)

    failed = await agent().run_task(task())
    assert failed.state is TaskState.FAILED
    assert failed.metadata["resumable"] is True
    assert (await log.get(ROOT)).status == "resumable"  # type: ignore[union-attr]
    assert len(world.effects) == 1

    ended = await agent().resume_task(ROOT)

    assert ended.state is TaskState.COMPLETED
    assert len(world.effects) == 2


async def test_r21_an_exception_of_a_tool_is_a_failure() -> None:
    """The run has failed, for good, and nothing is uncertain."""
    log = MemoryRecordLog()

    async def act(value: int) -> int:
        """Fail."""
        raise LookupError("no such thing")

    agent = Agent(name="a", llm=Player(lambda: None, call("act", value=1)), tools=[act], durability=log)
    ended = await agent.run_task(task())

    assert (ended.state, ended.metadata["error"]["code"]) == (TaskState.FAILED, "tool_failed")
    assert len(of_kind(await log.read(ROOT), ActionFailed)) == 1
    assert (await agent.resume_task(ROOT)).state is TaskState.FAILED


async def test_r21_an_uncertain_error_of_a_tool_and_a_thread_that_took_too_long_are_uncertain() -> None:
    """What may still happen is never called failed."""
    for kind in ("raises", "hangs"):
        log = MemoryRecordLog()
        async with blocker() as hanging:

            def act(value: int, kind: str = kind) -> int:
                """Lose the reply, or hang."""
                if kind == "raises":
                    raise UncertainExecutionError("no reply")
                hanging.wait()
                return value

            from protolink.tools import Tool

            tool = Tool.from_callable(act, timeout_seconds=0.01, sync_execution="thread")
            agent = Agent(name="a", llm=Player(lambda: None, call("act", value=1)), tools=[tool], durability=log)
            await agent.run_task(task())

            with pytest.raises(UncertainExecutionError):
                await agent.resume_task(ROOT)
            assert (await log.get(ROOT)).status == "uncertain"  # type: ignore[union-attr]


async def test_r21_a_cancelled_thread_that_may_still_run_is_recorded_as_unsettled() -> None:
    """The run ends as canceled, as it was told to; the action's record says that its effect may yet happen."""
    log = MemoryRecordLog()
    async with blocker() as hanging:

        def act(value: int) -> int:
            """Hang."""
            hanging.wait()
            return value

        agent = Agent(
            name="a",
            llm=Player(lambda: None, call("act", value=1)),
            tools=[act],
            durability=log,
            sync_execution="thread",
        )
        handle = agent.start_run(task())
        await hanging.entered.wait()
        await handle.cancel()

        (canceled,) = cast("list[ActionCanceled]", of_kind(await log.read(ROOT), ActionCanceled))
        assert canceled.unsettled
        assert not of_kind(await log.read(ROOT), ActionCompleted)


@pytest.mark.parametrize("statement", [
    "UPDATE records SET body = replace(body, '1', '2') WHERE kind = 'ActionCompleted'",
    "UPDATE records SET at = at + 1 WHERE number = 3",
    "DELETE FROM records WHERE number = (SELECT max(number) FROM records)",
    "UPDATE runs SET status = 'completed'",
    "UPDATE runs SET records = records - 1",
])  # fmt: skip
async def test_r22_a_record_that_somebody_else_changed_is_detected_before_it_is_used(
    site: Site, statement: str
) -> None:
    """A named error, and nothing is executed."""
    assert site.process("start", "yield").end()["state"] == "input-required"
    with sqlite3.connect(site.path) as connection:
        assert connection.execute(statement).rowcount >= 1
    connection.close()

    told = site.process("resume", "yield").end()

    assert told["error"] == "StoreDamagedError"
    assert (site.world.calls, len(site.world.effects)) == (1, 1)


async def test_r23_a_cancelled_attempt_ends_within_a_second_and_releases_its_run() -> None:
    """Although the code that it waits for takes no notice. It enters nothing more."""
    world, log, entered = World(), MemoryRecordLog(), asyncio.Event()
    never = asyncio.Event()

    async def act(value: int) -> int:
        """Ignore every cancellation."""
        world.act(value)
        entered.set()
        while not never.is_set():
            try:
                await never.wait()
            except asyncio.CancelledError:
                continue
        return value

    two = calls(call("act", value=1), call("act", value=2))
    agent = Agent(name="a", llm=Player(world.asked, two), tools=[act], durability=log)
    handle = agent.start_run(task())
    await entered.wait()
    began = time.monotonic()
    await handle.cancel()
    seconds = time.monotonic() - began
    never.set()

    assert seconds < ONE_SECOND
    assert (await handle.result()).status == "canceled"
    assert len(world.effects) == 1
    assert [one.unsettled for one in cast("list[ActionCanceled]", of_kind(await log.read(ROOT), ActionCanceled))] == [
        True,
        False,
    ]
    assert (await log.get(ROOT)).owner is None  # type: ignore[union-attr]
    assert (await agent.resume_task(ROOT)).state is TaskState.CANCELED


async def test_r24_a_tree_has_one_owner_one_budget_and_one_place_to_reconcile(site: Site) -> None:
    """A grandchild's action, seen from its root."""
    owner = site.process("start", "worker's worker", "entered")
    owner.until("entered")
    (action_id,) = left_open(await site.rows())
    child_id = action_id.rsplit(".", 1)[0]
    assert site.process("resume", "worker's worker").end()["error"] == "RunBusyError"
    owner.kill()

    agent = site.agent("worker's worker")
    with pytest.raises(UnknownRunError):
        await agent.resume_task(child_id)
    with pytest.raises(UnknownRunError):
        await agent.reconcile(child_id, action_id, result=1)
    operator = await settle(site, "worker's worker")

    assert operator.settled == [action_id]
    assert len(set(site.world.effects)) == len(site.world.effects) == 3
    counters = fold(await site.rows()).counters
    assert (counters.tool_calls, counters.llm_calls) == (4, site.world.calls)


@pytest.mark.fault(name="F12")
async def test_r25_readers_cannot_hurt_a_run() -> None:
    """One raises, one leaves, one never reads, one reads late: the run ends and the last one sees all of it."""
    world, log = World(), MemoryRecordLog()
    agent = KINDS["worker"].build(log, world)
    handle = agent.start_run(task())

    async def raising() -> None:
        async for _ in handle.events():
            raise LookupError("a reader's own mistake")

    async def leaving() -> None:
        async for _ in handle.events():
            break

    never_read = handle.events()
    outcomes = await asyncio.gather(raising(), leaving(), return_exceptions=True)
    result = await handle.result()
    late = [event async for event in handle.events()]

    assert [type(one) for one in outcomes] == [LookupError, type(None)]
    assert result.status == "completed"
    assert [event.sequence for event in late] == list(range(1, len(late) + 1))
    assert (await anext(never_read)).sequence == 1


class Jumping(Environment):
    """A wall clock that goes back a day, or forward a month, each time somebody looks."""

    def __init__(self, jump: float) -> None:
        self._jump = jump
        self._now = time.time()

    def now(self) -> float:
        """Somewhere else."""
        self._now += self._jump
        return self._now


@pytest.mark.parametrize("jump", [-86_400.0, -3600.0, 3600.0, 30 * 86_400.0])
async def test_r26_order_is_by_number_whatever_the_clock_says(jump: float) -> None:
    """Runs, pauses and resumes under a clock that jumps at every look."""
    world, log = World(), MemoryRecordLog()
    with use_environment(Jumping(jump)):
        current = await KINDS["yield"].build(log, world).run_task(task())
        while current.state is TaskState.INPUT_REQUIRED:
            current = await KINDS["yield"].build(log, world).resume_task(ROOT)

    rows = await log.read(ROOT)
    moments = [row.at for row in rows]
    assert current.state is TaskState.COMPLETED
    assert moments == sorted(moments, reverse=jump < 0)
    assert moments != sorted(moments, reverse=jump > 0)
    assert [row.number for row in rows] == list(range(1, len(rows) + 1))
    assert world.effects == [f"{ROOT}.1", f"{ROOT}.2", f"{ROOT}.3"]


async def test_r27_a_step_costs_the_same_whatever_came_before() -> None:
    """Characters of records, a hundred steps early and a hundred steps late."""
    world, log = World(), MemoryRecordLog()
    model = Player(world.asked, *(call("act", value=1000 + turn) for turn in range(1000)))
    agent = Agent(name="long", llm=model, tools=[acting(world)], durability=log)
    await agent.run_task(task(budget=RunBudget(max_steps=2000)))

    sizes: list[int] = []
    for row in await log.read(ROOT):
        if row.kind == "ModelAsked":
            sizes.append(0)
        if sizes:
            sizes[-1] += len(row.body)
    early, late = sum(sizes[50:150]), sum(sizes[850:950])
    assert len(sizes) == 1001
    assert late <= 1.1 * early


async def test_r28_a_large_approval_and_a_large_uncertain_action_can_be_stored() -> None:
    """What a run waits for is kept beside its list for people; its size must not keep the run from waiting."""
    world, log = World(), MemoryRecordLog()
    large = "x" * 3_000_000

    async def write(text: str) -> str:
        """Write and lose the reply."""
        raise UncertainExecutionError("no reply")

    from protolink.tools import Tool

    tool = Tool.from_callable(write, capabilities=["world.write"])
    model = Player(world.asked, call("write", text=large))
    agent = Agent(name="a", llm=model, tools=[tool], policy=ASKING, durability=log)

    paused = await agent.run_task(task())
    assert paused.state is TaskState.INPUT_REQUIRED
    interruption = cast("RunInterruption", RunInterruption.from_task(paused))
    with pytest.raises(UncertainExecutionError) as caught:
        await agent.resume_task(ROOT, request_id=interruption.request_id, approved=True)

    assert caught.value.arguments == {"text": large}
    assert (await log.get(ROOT)).status == "uncertain"  # type: ignore[union-attr]
    ended = await agent.reconcile(ROOT, cast("str", caught.value.action_id), result="written")
    assert (await agent.resume_task(ended.metadata["run_context"]["run_id"])).state is TaskState.COMPLETED


async def test_r28_a_result_that_is_too_large_is_cut_and_said_to_be() -> None:
    """The operation has happened; its result is never the reason to call it failed, or to lose it."""
    world, log = World(), MemoryRecordLog()

    async def act(value: int) -> str:
        """Give twenty million characters."""
        world.act(value)
        return "y" * 20_000_000

    agent = Agent(name="a", llm=Player(world.asked, call("act", value=1), "done"), tools=[act], durability=log)
    ended = await agent.run_task(task())

    (receipt,) = cast("list[ActionCompleted]", of_kind(await log.read(ROOT), ActionCompleted))
    assert ended.state is TaskState.COMPLETED
    assert receipt.rendered
    assert len(receipt.result) < 17_000_000


async def test_r28_a_result_that_the_store_cannot_take_leaves_the_action_uncertain() -> None:
    """Its effect is not lost: somebody is told to look."""
    world, inner = World(), MemoryRecordLog()

    class Narrow(DyingLog):
        async def append(self, lease: Lease, expected: int, rows: Any, **options: Any) -> None:
            if any(row.kind == "ActionCompleted" for row in rows):
                raise StoreFullError("there is no room left")
            await super().append(lease, expected, rows, **options)

    with pytest.raises(StoreFullError):
        await KINDS["tool"].build(Narrow(inner), world).run_task(task())
    inner.break_leases()

    with pytest.raises(UncertainExecutionError) as caught:
        await KINDS["tool"].build(inner, world).resume_task(ROOT)
    assert world.effects == [caught.value.action_id]


async def test_r29_nothing_resumes_by_itself(site: Site) -> None:
    """Neither a new process, nor a new agent, nor looking at the store."""
    site.killed("start", "tool", "asked", number=2)
    rows, info = await site.rows(), await site.info()

    agent = site.agent("tool")
    store = SQLiteDurableStore(site.path)
    assert [view.status for view in store.list()] == ["running"]
    await agent.start()
    await agent.call_tool("act", value=9)
    await agent.stop()

    assert (await site.rows(), await site.info()) == (rows, info)


async def test_r29_explicit_resumes_are_not_limited_but_each_is_charged(site: Site) -> None:
    """A run that kills its process at each model call ends when its steps are used up, and not before."""
    budget = {"max_steps": 5}
    site.killed("start_within", "tool", "asked", budget=budget)
    for _ in range(4):
        site.killed("resume", "tool", "asked")

    told = site.process("resume", "tool").end()

    assert told["state"] == "failed"
    assert site.world.calls == 5
    assert (await site.info()).attempts == 6


async def test_r30_a_file_of_a_newer_version_or_another_program_is_refused_and_left_alone(site: Site) -> None:
    """With a named error, before the run exists and before any model is called."""
    newer, tmp_path = site.path, site.folder
    site.process("start", "tool").end()
    with sqlite3.connect(newer) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.close()
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    text = tmp_path / "text.sqlite"
    text.write_text("Dear diary\n" * 1000)

    for path, kind in ((newer, StoreVersionError), (foreign, StoreDamagedError), (text, StoreDamagedError)):
        world, before = World(), path.read_bytes()
        with pytest.raises(kind) as caught:
            await KINDS["tool"].build(SQLiteDurableStore(path).log, world).run_task(task(run_id="another"))
        assert (world.calls, world.effects) == (0, [])
        assert path.read_bytes() == before
        if kind is StoreVersionError:
            assert str(version + 1) in str(caught.value)
