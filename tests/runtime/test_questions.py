"""Questions: the run pauses, somebody answers, and the model goes on with exactly that answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from protolink import (
    ActionDeniedError,
    Agent,
    CapabilityPolicy,
    DurableExecutionError,
    RunBudget,
    RunContext,
    RunInterrupted,
    RunInterruption,
    Task,
    TaskExecutionError,
    TaskState,
    UncertainExecutionError,
)
from protolink.durable.memory import MemoryRecordLog
from protolink.durable.port import Lease, Row, RunStatus
from protolink.errors import StoreFullError
from protolink.llms import MockLLM
from protolink.testing import DyingLog, LogDiedError, call
from protolink.tools import Tool, ask_user
from tests.support import model, observe, of_type, results, types

QUESTION = call("ask_user", question="Which colour?", choices=["red", "blue"])


class Clerk:
    """One configuration over one store; every agent it builds is another process's, as far as a store can tell."""

    def __init__(self, *turns: Any, store: Any = None, **options: Any) -> None:
        self.turns = turns
        self.store = MemoryRecordLog() if store is None else store
        self.options = options
        self.paid: list[int] = []
        self.heard: list[list[Any]] = []

    def pay(self, amount: int) -> str:
        """Pay somebody."""
        self.paid.append(amount)
        return f"paid {amount}"

    def agent(self) -> Agent:
        """The same agent, built anew. Its model answers by what it has read, so it can be asked in any process."""

        def respond(history: Any, _system_prompt: str) -> Any:
            observed = results(history.messages)
            self.heard.append(observed)
            turns = sum(message["role"] == "assistant" for message in history.messages)
            return self.turns[turns] if turns < len(self.turns) else json.dumps(observed)

        settings: dict[str, Any] = {
            "name": "clerk",
            "tools": [ask_user, Tool(self.pay, capabilities=["money.pay"])],
            "llm": MockLLM(response_callback=respond),
            "policy": CapabilityPolicy({"money.pay": "require_approval"}),
            "durability": self.store,
            "verbosity": 0,
            **self.options,
        }
        return Agent(**settings)

    async def paused(self) -> tuple[str, list[dict[str, Any]]]:
        """Start a run that pauses; its id and what it waits for."""
        task = await self.agent().run_task(Task.create_infer("go"))
        return RunContext.from_task(task).run_id, task.metadata["interruptions"]


async def test_a_question_pauses_the_run_and_its_answer_is_the_tools_result() -> None:
    """The interruption says what to ask whom; the answer reaches the model as it was given."""
    clerk = Clerk(QUESTION)
    run_id, (waiting,) = await clerk.paused()

    task = await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer={"colour": "red"})

    assert waiting["kind"] == "input"
    assert waiting["request"] == {
        "question": "Which colour?",
        "choices": ["red", "blue"],
        "agent_name": "clerk",
        "action_id": f"{run_id}.1",
    }
    assert task.state is TaskState.COMPLETED
    assert clerk.heard[-1] == [{"colour": "red"}]


@pytest.mark.parametrize("answer", [None, False, 0, "", [], "neither", {"free": ["form"]}])
async def test_any_json_is_an_answer(answer: Any) -> None:
    """The choices are an offer, and JSON's null is something that can be said."""
    clerk = Clerk(QUESTION)
    run_id, (waiting,) = await clerk.paused()

    await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer=answer)

    assert clerk.heard[-1] == [answer]


async def test_an_answer_survives_a_restart(tmp_path: Path) -> None:
    """Another store object over the same file, as in another process, finds the question and takes the answer."""
    path = tmp_path / "runs.sqlite"
    run_id, (waiting,) = await Clerk(QUESTION, store=path).paused()
    clerk = Clerk(QUESTION, store=path)

    task = await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer="blue")

    assert (task.state, clerk.heard[-1]) == (TaskState.COMPLETED, ["blue"])


async def test_asking_is_shown_as_events_and_the_answer_stays_private() -> None:
    """A stream can show the dialog; who answered is public, what was said is a result like others."""
    clerk = Clerk(QUESTION)
    events, result = await observe(clerk.agent())
    waiting = RunInterruption.from_task(result.task)
    assert waiting is not None

    request = of_type(events, "input.required")[0].payload["request"]

    assert (request["request_id"], request["fingerprint"]) == (waiting.request_id, waiting.fingerprint)
    assert types(events)[-1] == "task.status"
    assert result.status == "input-required"


async def test_invoking_raises_for_a_question() -> None:
    """Whoever wants the output learns that somebody has to say something first."""
    with pytest.raises(RunInterrupted) as raised:
        await Clerk(QUESTION).agent().invoke("go")

    assert raised.value.interruption.kind == "input"


async def test_a_run_that_is_not_durable_says_that_it_cannot_ask() -> None:
    """There is nothing to wait in; the error names the reason and no question was put to anybody."""
    agent = Agent(name="a", tools=[ask_user], llm=model(QUESTION), verbosity=0)
    handle = agent.start_run("go")

    with pytest.raises(TaskExecutionError, match="not durable") as raised:
        await handle.outcome()

    assert raised.value.code == "input_required"
    assert of_type(handle.report.events, "input.required") == []


SEVERAL = [
    call("pay", amount=3),
    call("ask_user", question="Why?"),
    call("ask_user", question="When?"),
]


async def test_several_questions_and_approvals_wait_together_and_each_takes_its_own_answer() -> None:
    """They are listed in the order of the proposals; a partial answer leaves the rest, and nothing runs meanwhile."""
    clerk = Clerk(SEVERAL)
    run_id, (payment, why, when) = await clerk.paused()
    assert [item["kind"] for item in (payment, why, when)] == ["approval", "input", "input"]

    first = await clerk.agent().resume_task(run_id, request_id=when["request_id"], answer="now")
    second = await clerk.agent().resume_task(run_id, request_id=payment["request_id"], approved=True)
    assert clerk.paid == []
    last = await clerk.agent().resume_task(run_id, request_id=why["request_id"], answer="because")

    assert [item["request_id"] for item in first.metadata["interruptions"]] == [
        payment["request_id"],
        why["request_id"],
    ]
    assert [item["request_id"] for item in second.metadata["interruptions"]] == [why["request_id"]]
    assert last.state is TaskState.COMPLETED
    assert (clerk.heard[-1], clerk.paid) == (["paid 3", "because", "now"], [3])


async def test_an_approval_handler_decides_while_a_question_waits() -> None:
    """The handler is asked at once; the pause is for the question alone."""
    clerk = Clerk(SEVERAL[:2], approval_handler=lambda _request, _context: True)
    run_id, (why,) = await clerk.paused()
    assert (why["kind"], clerk.paid) == ("input", [])

    await clerk.agent().resume_task(run_id, request_id=why["request_id"], answer="because")

    assert clerk.heard[-1] == ["paid 3", "because"]


WRONG: dict[str, dict[str, Any]] = {
    "approved for a question": {"approved": True},
    "declined for a question": {"approved": False},
    "both": {"approved": True, "answer": "red"},
    "nothing": {},
    "no JSON": {"answer": object()},
    "half of a character": {"answer": "\ud800"},
    "not a number": {"answer": float("nan")},
    "another fingerprint": {"answer": "red", "fingerprint": "0" * 64},
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_is_no_answer_is_refused_and_changes_nothing(wrong: str) -> None:
    """Consent is no answer, silence is no answer, and the question is still there afterwards."""
    clerk = Clerk(QUESTION)
    run_id, (waiting,) = await clerk.paused()

    with pytest.raises(DurableExecutionError):
        await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], **WRONG[wrong])

    await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer="red")
    assert clerk.heard[-1] == ["red"]


async def test_an_answer_is_no_approval() -> None:
    """What was said to a question cannot let an action run."""
    clerk = Clerk(call("pay", amount=3))
    run_id, (waiting,) = await clerk.paused()

    with pytest.raises(DurableExecutionError, match="approval"):
        await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer=True)

    assert clerk.paid == []


@pytest.mark.parametrize("request_id", ["another", None])
async def test_an_answer_names_its_question(request_id: str | None) -> None:
    """An answer that belongs to nothing, or to everything, is none."""
    clerk = Clerk(QUESTION)
    run_id, _ = await clerk.paused()

    with pytest.raises(DurableExecutionError):
        await clerk.agent().resume_task(run_id, request_id=request_id, answer="red")


@pytest.mark.parametrize("turns", [(QUESTION,), (QUESTION, call("ask_user", question="And?"))])
async def test_the_same_answer_twice_is_one_and_another_is_refused(turns: Sequence[Any]) -> None:
    """Before and after the run's end: the first answer stands."""
    clerk = Clerk(*turns)
    run_id, (waiting,) = await clerk.paused()
    first = await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer={"a": 1, "b": 2})
    heard = len(clerk.heard)

    again = await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer={"b": 2, "a": 1})
    with pytest.raises(DurableExecutionError, match="first answer stands"):
        await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer={"a": 1})

    assert (again.state, len(clerk.heard)) == (first.state, heard)


async def test_an_answer_that_is_repeated_after_a_death_takes_the_run_up() -> None:
    """Whoever has not heard what became of an answer gives it again, and must not be told that somebody is at work."""
    log = DyingLog()
    run_id, (waiting,) = await Clerk(QUESTION, store=log).paused()
    dying = Clerk(QUESTION, store=log.reopened(dies_at=1, applied=True))
    with pytest.raises(LogDiedError):
        await dying.agent().resume_task(run_id, request_id=waiting["request_id"], answer="red")
    clerk = Clerk(QUESTION, store=log.reopened())

    task = await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer="red")

    assert task.state is TaskState.COMPLETED
    assert clerk.heard[-1] == ["red"]


async def test_the_same_question_again_is_another_question() -> None:
    """What a person says may change, so an answer is never given again by itself."""
    clerk = Clerk(QUESTION, QUESTION)
    run_id, (first,) = await clerk.paused()

    task = await clerk.agent().resume_task(run_id, request_id=first["request_id"], answer="red")

    (second,) = task.metadata["interruptions"]
    assert second["request_id"] != first["request_id"]
    assert second["fingerprint"] == first["fingerprint"]


async def test_a_worker_asks_through_its_root() -> None:
    """The root lists the question with the worker's name and takes the answer; the worker goes on."""
    store = MemoryRecordLog()

    def parent() -> Agent:
        def respond(history: Any, _system_prompt: str) -> Any:
            observed = results(history.messages)
            return observed[-1] if observed else QUESTION

        worker = Agent(name="worker", tools=[ask_user], llm=MockLLM(response_callback=respond), verbosity=0)

        def delegate(history: Any, _system_prompt: str) -> Any:
            observed = results(history.messages)
            return f"worker says {observed[-1]}" if observed else call("worker", task="Find out.")

        root = Agent(
            name="root",
            subagents=[worker],
            llm=MockLLM(response_callback=delegate),
            durability=store,
            verbosity=0,
        )
        root.add_worker_tool("worker")
        return root

    task = await parent().run_task(Task.create_infer("go"))
    waiting = RunInterruption.from_task(task)
    assert waiting is not None
    root_id = RunContext.from_task(task).run_id
    assert waiting.run_id != root_id
    assert waiting.request is not None
    assert (waiting.kind, waiting.request["agent_name"]) == ("input", "worker")

    answered = await parent().resume_task(root_id, request_id=waiting.request_id, answer="blue")

    assert answered.get_output() == "worker says blue"


async def test_a_question_counts_as_a_tool_call_once_it_is_answered() -> None:
    """The last allowed call is the question's, so the payment that follows is over the limit."""
    clerk = Clerk(QUESTION, call("pay", amount=3), policy=None)
    task = await clerk.agent().run_task(Task.create_infer("go", context=RunContext(budget=RunBudget(max_tool_calls=1))))
    waiting = RunInterruption.from_task(task)
    assert waiting is not None

    ended = await clerk.agent().resume_task(waiting.run_id, request_id=waiting.request_id, answer="red")

    assert ended.metadata["error"]["code"] == "budget_exceeded"
    assert clerk.paid == []


async def test_a_policy_can_forbid_questions() -> None:
    """Asking has a capability, `user.ask`, like everything that a tool can do."""
    clerk = Clerk(QUESTION, policy=CapabilityPolicy({"user.ask": "deny"}))

    with pytest.raises(ActionDeniedError):
        await clerk.agent().invoke("go")


NO_QUESTIONS: list[dict[str, Any]] = [
    {},
    {"question": " "},
    {"question": 1},
    {"question": "a", "choices": None},
    {"question": "a", "choices": "b"},
    {"question": "a", "choices": [""]},
    {"question": "a", "choices": ["b"] * 51},
    {"question": "a", "more": 1},
]


@pytest.mark.parametrize("arguments", NO_QUESTIONS)
async def test_a_question_that_is_none_is_corrected_by_the_model(arguments: dict[str, Any]) -> None:
    """Nobody is asked a blank question; the model is told what is wrong with it."""
    clerk = Clerk(call("ask_user", **arguments), QUESTION)

    _, (waiting,) = await clerk.paused()

    assert clerk.heard[-1][0]["type"] == "tool_rejection"
    assert waiting["request"]["question"] == "Which colour?"


async def test_an_application_can_ask_by_calling_the_tool() -> None:
    """It is a run of its own, paused like others, and its output is the answer."""
    clerk = Clerk()
    with pytest.raises(RunInterrupted) as raised:
        await clerk.agent().call_tool("ask_user", question="Continue?")

    waiting = raised.value.interruption

    assert await clerk.agent().resume(raised.value.run_id, request_id=waiting.request_id, answer=True) is True


class FullAtTheNextAttempt(MemoryRecordLog):
    """A log without room for the records of one attempt that is not a run's first."""

    refused = False

    async def append(
        self, lease: Lease, expected: int, rows: Sequence[Row], *, status: RunStatus, summary: Any = None
    ) -> None:
        """Refuse once."""
        if not self.refused and any(row.kind == "AttemptStarted" for row in rows):
            self.refused = True
            raise StoreFullError("the device is full")
        await super().append(lease, expected, rows, status=status, summary=summary)


async def test_an_answer_is_stored_with_the_attempt_that_it_begins_or_not_at_all() -> None:
    """Stored alone it would leave a run that waits for ever for what it was told; the question is still open."""
    clerk = Clerk(QUESTION, store=FullAtTheNextAttempt())
    run_id, (waiting,) = await clerk.paused()
    with pytest.raises(StoreFullError):
        await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer="red")

    await clerk.agent().resume_task(run_id, request_id=waiting["request_id"], answer="blue")

    assert clerk.heard[-1] == ["blue"]


async def _to_the_end(clerk: Clerk, submitted: Task) -> None:
    """What an application does that has kept nothing but its task, after any death."""
    run_id = RunContext.from_task(submitted).run_id
    task = await clerk.agent().run_task(submitted)
    while not task.is_terminal:
        said: dict[str, Any] = {}
        if task.state is TaskState.INPUT_REQUIRED:
            waiting = task.metadata["interruptions"][0]
            said = {"approved": True} if waiting["kind"] == "approval" else {"answer": waiting["request"]["question"]}
            said["request_id"] = waiting["request_id"]
        try:
            task = await clerk.agent().resume_task(run_id, **said)
        except UncertainExecutionError as error:
            await clerk.agent().reconcile(run_id, str(error.action_id), result="paid 3")


async def _writes() -> int:
    log = DyingLog()
    await _to_the_end(Clerk(SEVERAL, store=log), Task.create_infer("go", context=RunContext()))
    return log.writes


@pytest.mark.parametrize("applied", [True, False])
async def test_wherever_the_process_dies_answers_and_payments_happen_once(applied: bool) -> None:
    """The model reads each answer once, in order, and the payment is made once or said to be uncertain."""
    for dies_at in range(1, await _writes() + 1):
        log = DyingLog(dies_at=dies_at, applied=applied)
        clerk, task = Clerk(SEVERAL, store=log), Task.create_infer("go", context=RunContext())
        with suppress(LogDiedError):
            await _to_the_end(clerk, task)

        clerk.store = log.reopened()
        await _to_the_end(clerk, task)

        assert clerk.heard[-1] == ["paid 3", "Why?", "When?"]
        assert len(clerk.paid) <= 1
