"""F28: anything that can be asked of a run, in any order, with processes that die in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from protolink import Agent, CheckpointMismatchError, RunBudget, RunInterruption, TaskState, UncertainExecutionError
from protolink._core.records import ActionDenied, ActionJudged, ActionReconciled, ApprovalAnswered
from protolink._core.state import TreeState
from protolink.durable import Row
from protolink.errors import DurableExecutionError, UnknownRunError
from protolink.testing import DyingLog, LogDiedError, call, calls, delegate
from tests.reliability.facts import assert_sound, facts, fold, left_open
from tests.reliability.scale import scaled
from tests.reliability.tally import Tally
from tests.reliability.teams import ASKING, ROOT, Player, World, acting, task, worker

T = TypeVar("T")

GROUPS = 10
EXAMPLES = scaled(commit=20, short=25, full=1_000)
"""Of each group."""

RULES = scaled(commit=30, short=40, full=100)
"""In an example, at most."""

MAX_STEPS = 12

REACHED: Counter[str] = Counter()
"""What the examples have led to, so that a machine that goes nowhere is noticed."""

KINDS_OF_RECORDS = (
    "ActionReconciled",
    "ActionUncertain",
    "ApprovalAnswered",
    "ActionDenied",
    "CancelRequested",
    "DelegationSuspended",
    "RunFinished",
)


class Lives(RuleBasedStateMachine):
    """One run and everybody who has something to say to it. The log is the only thing that lives on."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World()
        self.log = DyingLog()
        self.rows: list[Row] = []
        self.sound = 0
        """How many rows have been looked at as a whole; most rules add none."""

        self.tree = TreeState(ROOT)
        self.slice = 2

    def teardown(self) -> None:
        REACHED["examples"] += 1
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def agent(self, **changes: Any) -> Agent:
        """A fresh process's agent."""
        model = Player(
            self.world.asked,
            delegate("worker", "act"),
            calls(call("act", value=1), call("write", value=2)),
            call("write", value=3),
            calls(call("act", value=4), call("act", value=5)),
        )

        settings: dict[str, Any] = {
            "name": "agent",
            "llm": model,
            "tools": [
                acting(self.world),
                acting(self.world, name="write", capabilities=["world.write"]),
            ],
            "policy": ASKING,
            "subagents": [worker(self.world)],
            "yield_after_steps": self.slice,
            "durability": self.log,
        }
        return Agent(**{**settings, **changes})

    def do(self, work: Coroutine[Any, Any, T]) -> T | BaseException:
        """Await it in this life; a death ends the life, and what is refused changes nothing."""

        async def contained() -> T | BaseException:
            try:
                return await work
            except (DurableExecutionError, UncertainExecutionError) as error:
                return error

        outcome = self.loop.run_until_complete(contained())
        if self.log.dead:
            assert isinstance(outcome, LogDiedError)
            self.log = self.log.reopened()
            REACHED["died"] += 1
        self.look_again()
        if isinstance(outcome, UncertainExecutionError):
            REACHED["uncertain"] += 1
        return outcome

    def look_again(self) -> None:
        """Read the list; what was stored stays."""

        async def reading() -> list[Row]:
            try:
                return await self.log.read(ROOT)
            except UnknownRunError:
                return []

        rows = self.loop.run_until_complete(reading())
        assert rows[: len(self.rows)] == self.rows
        if len(rows) > len(self.rows):
            self.rows, self.tree = rows, fold(rows)
            REACHED.update(row.kind for row in rows)

    @property
    def exists(self) -> bool:
        return bool(self.rows)

    @property
    def has_ended(self) -> bool:
        return self.tree.runs[ROOT].finished is not None

    @property
    def asked(self) -> list[RunInterruption]:
        """The approvals that the run waits for."""
        if not self.rows:
            return []
        listed = getattr(self.tree.runs[ROOT].rest, "interruptions", ())
        return [one for one in map(RunInterruption.from_dict, listed) if one.kind == "approval"]

    @property
    def uncertain(self) -> list[str]:
        """The actions that somebody has to settle."""
        return [action_id for run in self.tree.runs.values() for action_id in run.uncertain] if self.rows else []

    deaths = st.one_of(st.none(), st.tuples(st.integers(1, 12), st.booleans()))

    def mortal(self, death: tuple[int, bool] | None) -> None:
        """Decide when the next process dies."""
        if death is not None:
            self.log = self.log.reopened(dies_at=death[0], applied=death[1])

    @initialize(slice_steps=st.integers(1, 3))
    def choose(self, slice_steps: int) -> None:
        self.slice = slice_steps

    @precondition(lambda self: not self.exists)
    @rule(death=deaths)
    def start(self, death: tuple[int, bool] | None) -> None:
        self.mortal(death)
        self.do(self.agent().run_task(task(budget=RunBudget(max_steps=MAX_STEPS))))

    @precondition(lambda self: self.exists)
    @rule(death=deaths)
    def resume(self, death: tuple[int, bool] | None) -> None:
        before, is_uncertain = len(self.world.effects), bool(self.uncertain)
        waits = bool(self.asked)
        self.mortal(death)
        outcome = self.do(self.agent().resume_task(ROOT))
        if is_uncertain:
            assert isinstance(outcome, UncertainExecutionError | LogDiedError)
        if is_uncertain or waits:
            assert len(self.world.effects) == before

    @precondition(lambda self: bool(self.asked))
    @rule(approved=st.booleans(), death=deaths, data=st.data())
    def decide(self, approved: bool, death: tuple[int, bool] | None, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.asked))
        self.mortal(death)
        response: dict[str, Any] = {
            "request_id": request.request_id,
            "approved": approved,
            "fingerprint": request.fingerprint,
        }
        self.do(self.agent().resume_task(ROOT, **response))

    @precondition(lambda self: self.exists)
    @rule(approved=st.booleans())
    def answer_what_nobody_asked(self, approved: bool) -> None:
        before = self.rows
        outcome = self.do(self.agent().resume_task(ROOT, request_id="nobody asked", approved=approved))
        if not self.has_ended:
            assert isinstance(outcome, DurableExecutionError | UncertainExecutionError)
        assert self.rows == before

    @precondition(lambda self: bool(self.uncertain))
    @rule(death=deaths, data=st.data())
    def reconcile(self, death: tuple[int, bool] | None, data: st.DataObject) -> None:
        action_id = data.draw(st.sampled_from(self.uncertain))
        known: dict[str, Any] = {"result": 1} if self.world.has_seen(action_id) else {"happened": False}
        self.mortal(death)
        self.do(self.agent().reconcile(ROOT, action_id, **known))

    @precondition(lambda self: self.exists)
    @rule(number=st.integers(1, 9))
    def reconcile_what_is_certain(self, number: int) -> None:
        action_id, before = f"{ROOT}.{number}", self.rows
        if action_id in self.uncertain or action_id in left_open(before):
            return
        assert isinstance(self.do(self.agent().reconcile(ROOT, action_id, result=1)), DurableExecutionError)
        assert self.rows == before

    @precondition(lambda self: self.exists)
    @rule(turns=st.integers(0, 30), death=deaths)
    def resume_and_cancel(self, turns: int, death: tuple[int, bool] | None) -> None:
        self.mortal(death)
        agent = self.agent()

        async def canceled() -> Any:
            resumed = asyncio.ensure_future(agent.resume_task(ROOT))
            for _ in range(turns):
                await asyncio.sleep(0)
            await agent.cancel_task(ROOT)
            return await resumed

        self.do(canceled())

    @precondition(lambda self: self.exists)
    @rule()
    def resume_another_configuration(self) -> None:
        before = self.rows
        outcome = self.do(self.agent(system_prompt="Otherwise.").resume_task(ROOT))
        if not self.has_ended:
            assert isinstance(outcome, CheckpointMismatchError)
        assert self.rows == before

    @precondition(lambda self: self.exists)
    @rule()
    def look(self) -> None:
        before = self.rows
        self.loop.run_until_complete(self.log.get(ROOT))
        self.loop.run_until_complete(self.log.list())
        self.look_again()
        assert self.rows == before

    @invariant()
    def nothing_happens_twice(self) -> None:
        REACHED["rules"] += 1
        assert max(Counter(self.world.effects).values(), default=0) <= 1

    @invariant()
    def the_list_is_sound(self) -> None:
        if len(self.rows) > self.sound:
            assert_sound(self.rows)
            self.sound = len(self.rows)
        counters = self.tree.counters
        assert counters.steps <= MAX_STEPS
        assert self.world.calls <= counters.llm_calls
        assert len(self.world.effects) <= counters.tool_calls

    @invariant()
    def nobody_acts_without_an_approval_or_on_what_is_settled(self) -> None:
        effects = set(self.world.effects)
        asking: set[str] = set()
        approved: set[str] = set()
        for fact in facts(self.rows):
            match fact.record:
                case ActionJudged(effect="require_approval", action_id=action_id):
                    asking.add(action_id)
                case ApprovalAnswered(approved=True, action_id=action_id):
                    approved.add(action_id)
                case ActionDenied(action_id=action_id) | ActionReconciled(happened=False, action_id=action_id):
                    assert action_id not in effects
                case _:
                    pass
        assert asking & effects <= approved

    @invariant()
    def nobody_holds_the_run_between_the_rules(self) -> None:
        info = self.loop.run_until_complete(self.log.get(ROOT))
        assert info is None or info.owner is None


@pytest.fixture(scope="module", autouse=True)
def _everywhere() -> Iterator[None]:
    """At the end the steps of all groups together have led everywhere."""
    REACHED.clear()
    yield
    missed = {"died", "uncertain", *KINDS_OF_RECORDS} - set(REACHED)
    assert not missed or REACHED["examples"] < GROUPS * EXAMPLES


@pytest.mark.fault(name="F28")
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_sequence_of_requests_and_deaths_breaks_an_invariant(group: int, tally: Tally) -> None:
    """After each step the invariants are checked; at the end, that the steps have led everywhere."""

    before = Counter(REACHED)

    run_state_machine_as_test(
        seed(group)(Lives),
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=RULES,
            database=None,  # where the examples begin is decided by the group alone
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )

    for told in ("examples", "rules", "died", "uncertain"):
        tally.add(told, REACHED[told] - before[told])
    assert tally["examples"] >= EXAMPLES
    assert tally["died"] > 0


def test_a_life_can_reach_its_end() -> None:
    """The machine above is no idle one: resuming, approving and settling takes its run to the answer."""
    lives = Lives()
    lives.start(None)
    for _ in range(30):
        response: dict[str, Any] = {}
        if lives.asked:
            response = {"request_id": lives.asked[0].request_id, "approved": True}
        outcome = lives.do(lives.agent().resume_task(ROOT, **response))
        if cast("Any", outcome).state is TaskState.COMPLETED:
            break
    else:
        raise AssertionError("the run did not end")
    lives.the_list_is_sound()
    lives.teardown()
    assert len(lives.world.effects) == 7
