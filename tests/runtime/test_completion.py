"""Completion checks: an answer is given only where what was executed bears it out."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from protolink import (
    Agent,
    CheckpointMismatchError,
    Completion,
    CompletionCheck,
    CompletionFailedError,
    CompletionValidator,
    ConfigurationError,
    RedactionPolicy,
    RunContext,
    RunManager,
    Task,
    TaskState,
    Tool,
    UncertainExecutionError,
)
from protolink.llms import MockLLM
from protolink.storage import InMemoryRunStore
from protolink.testing import DyingLog, LogDiedError, call
from tests.support import blocker, model, observe, types


def book(seat: str) -> dict[str, str]:
    """Book a seat."""
    return {"seat": seat, "number": f"N-{seat}"}


def is_booked(completion: Completion) -> bool:
    """The answer names a number that a booking has returned."""
    return any(receipt.result["number"] in completion.output for receipt in completion.executed("book"))


def agent(*script: Any, checks: Any = None, **options: Any) -> Agent:
    validator = CompletionValidator(checks=checks or [CompletionCheck("booked", is_booked)])
    settings: dict[str, Any] = {"llm": model(*script), "tools": [book], "completion_validator": validator, **options}
    return Agent(name="clerk", **settings)


def passed(validations: Any) -> dict[str, bool]:
    return {entry["name"]: entry["passed"] for entry in validations}


async def test_an_answer_that_its_receipts_bear_out_is_given() -> None:
    """And the report says what was checked."""
    events, result = await observe(agent(call("book", seat="7A"), "You have N-7A."))

    assert (result.status, result.output) == ("completed", "You have N-7A.")
    (entry,) = result.report.validations
    assert entry == {"name": "booked", "passed": True, "message": "", "checked_at": entry["checked_at"]}
    assert "task.error" not in types(events)


@pytest.mark.parametrize("script", [("You have N-7A.",), (call("book", seat="9C"), "You have N-7A.")])
async def test_the_models_word_is_not_enough(script: tuple[Any, ...]) -> None:
    """Neither without any booking, nor with another one. Nobody is shown the answer."""
    events, result = await observe(agent(*script))

    assert (result.status, result.output) == ("failed", None)
    assert passed(result.report.validations) == {"booked": False}
    assert result.task.metadata["error"]["code"] == "completion_failed"
    assert [event.payload.get("llm_event_type") for event in events].count("llm_final") == 0
    assert types(events)[-2:] == ["task.error", "task.status"]


async def test_nothing_executed_fails_a_check_without_asking_it() -> None:
    """What holds for all of no receipts is true by accident."""
    asked: list[Completion] = []

    def all_fine(completion: Completion) -> bool:
        asked.append(completion)
        return all(receipt.outcome == "completed" for receipt in completion.receipts)

    check = CompletionCheck("all fine", all_fine)
    _, result = await observe(agent("Done.", checks=[check]))

    assert asked == []
    assert result.report.validations[0]["message"] == "no tool call of this run has completed"


async def test_a_call_that_failed_is_no_execution() -> None:
    """It was asked for, which is not the same as done."""

    def note() -> None:
        """Note it."""
        raise OSError("the disk is full")

    check = CompletionCheck("noted", lambda completion: True)
    tools = [Tool.from_callable(note, on_error="observe")]
    _, result = await observe(agent(call("note"), "Noted.", checks=[check], tools=tools))

    assert (result.status, passed(result.report.validations)) == ("failed", {"noted": False})


async def test_a_check_may_do_without_an_execution() -> None:
    """A rule about the answer alone is asked although no tool was needed."""
    check = CompletionCheck("short", lambda completion: len(completion.output) < 10, require_execution=False)
    _, result = await observe(agent("Done.", checks=[check]))

    assert (result.status, passed(result.report.validations)) == ("completed", {"short": True})


async def test_receipts_hold_results_that_are_private_elsewhere() -> None:
    """The check is the application's own code; what it reads becomes public nowhere."""
    _, result = await observe(agent(call("book", seat="7A"), "You have N-7A."))

    (evidence,) = result.tool_evidence
    assert (result.status, evidence.result_omitted, evidence.result) == ("completed", True, None)


async def test_what_workers_have_executed_counts() -> None:
    """The consultation itself is no execution, the worker's tool is."""
    seen: list[tuple[str, str]] = []

    def done(completion: Completion) -> bool:
        seen.extend((receipt.agent_name, receipt.tool_name) for receipt in completion.executed())
        return len(completion.receipts) == 1

    worker = Agent(name="worker", llm=model(call("book", seat="7A"), "It is booked."), tools=[book])
    parent = agent(call("worker", task="Book."), "Booked.", checks=[CompletionCheck("a", done)], subagents=[worker])
    parent.add_worker_tool("worker")
    _, result = await observe(parent)

    assert (result.status, seen) == ("completed", [("worker", "book")])


async def test_a_workers_checks_read_its_own_receipts() -> None:
    """Its parent's do not make its word true; its failure is that of the delegation, with its reason."""
    worker = agent("You have N-7A.")
    parent = Agent(
        name="parent",
        llm=model(call("book", seat="7A"), call("clerk", task="Book."), "Booked."),
        tools=[book],
        subagents=[worker],
    )
    parent.add_worker_tool("clerk")

    with pytest.raises(CompletionFailedError) as caught:
        await parent.invoke("go")
    assert caught.value.failed == ("booked",)


async def test_every_check_is_evaluated_and_the_error_names_those_that_failed() -> None:
    """One look at the error is enough to know what is missing."""
    checks = [
        CompletionCheck("paid", lambda completion: False, message="no payment was made"),
        CompletionCheck("booked", is_booked),
        CompletionCheck("sent", lambda completion: bool(completion.executed("send"))),
    ]
    with pytest.raises(CompletionFailedError, match="'paid': no payment was made; 'sent': the receipts") as caught:
        await agent(call("book", seat="7A"), "You have N-7A.", checks=checks).invoke("go")

    assert (caught.value.failed, caught.value.code) == (("paid", "sent"), "completion_failed")
    assert caught.value.task is not None
    assert passed(caught.value.task.metadata["validations"]) == {"paid": False, "booked": True, "sent": False}


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3), StopIteration(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_predicate_that_raises_fails_its_check_and_nothing_else(error: BaseException, is_async: bool) -> None:
    """Not the other checks, not the process, and it is nobody's cancellation."""

    def plain(completion: Completion) -> bool:
        raise error

    async def awaited(completion: Completion) -> bool:
        raise error

    checks = [CompletionCheck("bad", awaited if is_async else plain), CompletionCheck("booked", is_booked)]
    _, result = await observe(agent(call("book", seat="7A"), "You have N-7A.", checks=checks))

    assert result.status == "failed"
    assert passed(result.report.validations) == {"bad": False, "booked": True}
    assert "the check raised" in result.report.validations[0]["message"]


async def test_what_a_predicate_raised_is_the_cause() -> None:
    """A programming error in a check is found by its traceback."""

    def bad(completion: Completion) -> bool:
        raise LookupError("no such booking")

    with pytest.raises(CompletionFailedError) as caught:
        await agent(call("book", seat="7A"), "Done.", checks=[CompletionCheck("bad", bad)]).invoke("go")
    assert isinstance(caught.value.__cause__, LookupError)


@pytest.mark.parametrize("verdict", [1, "yes", [1], None])
async def test_only_true_passes(verdict: Any) -> None:
    """A predicate without a return statement, say, has not said yes."""
    check = CompletionCheck("odd", lambda completion: verdict)
    _, result = await observe(agent(call("book", seat="7A"), "Done.", checks=[check]))

    assert result.status == "failed"
    assert "neither True nor False" in result.report.validations[0]["message"]


async def test_a_plain_predicate_runs_beside_the_event_loop() -> None:
    """It may ask a database; an async one is awaited where it belongs."""
    threads: list[int] = []

    def plain(completion: Completion) -> bool:
        threads.append(threading.get_ident())
        return True

    async def awaited(completion: Completion) -> bool:
        await asyncio.sleep(0)
        threads.append(threading.get_ident())
        return True

    checks = [CompletionCheck("plain", plain), CompletionCheck("awaited", awaited)]
    _, result = await observe(agent(call("book", seat="7A"), "Done.", checks=checks))

    assert result.status == "completed"
    assert [thread == threading.get_ident() for thread in threads] == [False, True]


async def test_a_run_can_be_canceled_while_it_is_checked() -> None:
    """A check that waits for a service must not hold the run."""
    async with blocker(True) as service:
        checked = agent(call("book", seat="7A"), "Done.", checks=[CompletionCheck("slow", service.wait)])
        handle = checked.start_run("go")
        await service.entered.wait()
        await handle.cancel()

        assert (await handle.result()).status == "canceled"
        assert handle.report.validations == ()


async def test_changing_what_a_predicate_gets_changes_no_run() -> None:
    """It looks at copies."""

    def change(completion: Completion) -> bool:
        completion.receipts[0].result.clear()
        completion.context.metadata["seen"] = True
        return True

    checks = [CompletionCheck("a", change)]
    _, result = await observe(agent(call("book", seat="7A"), "Done.", checks=checks, expose_tool_results=True))

    assert result.status == "completed"
    assert result.tool_evidence[0].result == {"seat": "7A", "number": "N-7A"}
    assert result.report.context.metadata == {}


async def test_a_tool_task_is_not_checked() -> None:
    """There is no word of a model in it: the result is the receipt."""
    task = await agent(checks=[CompletionCheck("never", lambda completion: False)]).run_task(
        Task.create_tool_call("book", {"seat": "7A"})
    )

    assert (task.state, "validations" in task.metadata) == (TaskState.COMPLETED, False)


async def test_validations_that_came_with_a_task_are_not_shown() -> None:
    """Whoever submits a task cannot say that it has been checked."""
    forged = Task.create_infer("go", metadata={"validations": [{"name": "booked", "passed": True}]})
    _, result = await observe(Agent(name="clerk", llm=model("You have N-7A.")), forged)

    assert (result.status, result.report.validations) == ("completed", ())


async def test_a_secret_that_a_predicate_raised_is_redacted() -> None:
    """Whatever leaves the run through a handle with a policy is without it, wherever the exception's text went."""

    def bad(completion: Completion) -> bool:
        raise ConnectionError("refused for hunter22")

    check = CompletionCheck("bad", bad, require_execution=False)
    policy = RedactionPolicy(sensitive_values=["hunter22"])
    handle = agent("Done.", checks=[check]).start_run("go", redaction_policy=policy)
    result = await handle.result()

    shown = f"{result.error} {result.task.to_dict()} {result.report.to_dict()}"
    assert "[redacted]" in shown
    assert "hunter22" not in shown


async def test_a_saved_report_says_what_was_checked() -> None:
    """Whoever audits the run later reads it there."""
    store = InMemoryRunStore()
    _, result = await observe(agent("You have N-7A.", run_store=store))
    saved = store.get_report(result.report.context.run_id)

    assert saved is not None
    assert saved.validations == result.report.validations
    assert passed(saved.validations) == {"booked": False}


async def test_receipts_of_earlier_attempts_count(tmp_path: Path) -> None:
    """A second process checks what the first one has executed."""

    def clerk(*script: Any) -> Agent:
        return agent(*script, yield_after_steps=1, durability=tmp_path / "runs.db")

    paused = await clerk(call("book", seat="7A")).run_task(Task.create_infer("go"))
    assert paused.state is TaskState.INPUT_REQUIRED
    run_id = RunContext.from_task(paused).run_id
    second = clerk("You have N-7A.")
    ended = await second.resume_task(run_id)

    assert (ended.state, passed(ended.metadata["validations"])) == (TaskState.COMPLETED, {"booked": True})
    report = await RunManager(second).inspect(run_id)
    assert passed(report.validations) == {"booked": True}


async def test_a_settled_action_is_a_receipt(tmp_path: Path) -> None:
    """Somebody has made sure that it happened, with this result."""

    def lose(seat: str) -> dict[str, str]:
        """Book a seat, and lose the reply."""
        raise UncertainExecutionError("the reply was lost")

    check = CompletionCheck("settled", lambda done: done.executed("lose")[0].result == {"number": "N-7A"})
    script = (call("lose", seat="7A"), "Done.")
    clerk = agent(*script, checks=[check], tools=[lose], durability=tmp_path / "runs.db")
    stopped = await clerk.run_task(Task.create_infer("go"))
    run_id = RunContext.from_task(stopped).run_id
    await clerk.reconcile(run_id, stopped.metadata["uncertain_actions"][0], result={"number": "N-7A"})

    assert (await clerk.resume_task(run_id)).state is TaskState.COMPLETED


async def test_wherever_the_process_dies_the_checks_are_those_of_the_answer() -> None:
    """The verdict and the answer are stored together: none is lost, and none is of another answer."""

    def clerk(log: DyingLog, told: list[str]) -> Agent:
        def told_and_booked(completion: Completion) -> bool:
            told.append(completion.output)
            return is_booked(completion)

        def decide(history: Any, system_prompt: str) -> Any:
            booked = any("N-7A" in message["content"] for message in history.messages)
            return "You have N-7A." if booked else call("book", seat="7A")

        return Agent(
            name="clerk",
            llm=MockLLM(response_callback=decide),
            tools=[Tool.from_callable(book, idempotent=True)],
            completion_validator=CompletionValidator([CompletionCheck("booked", told_and_booked)]),
            durability=log,
        )

    clean = DyingLog()
    await clerk(clean, []).run_task(Task.create_infer("go"))
    for place in range(2, clean.writes + 1):
        log, told = DyingLog(dies_at=place), list[str]()
        task = Task.create_infer("go", context=RunContext(run_id="root"))
        with pytest.raises(LogDiedError):
            await clerk(log, told).run_task(task)
        ended = await clerk(log.reopened(), told).resume_task("root")

        assert (ended.state, passed(ended.metadata["validations"])) == (TaskState.COMPLETED, {"booked": True})
        assert set(told) <= {"You have N-7A."}


async def test_a_stored_run_wants_its_checks_again(tmp_path: Path) -> None:
    """Resuming it with an agent that lacks one would let it pass unseen."""
    path = tmp_path / "runs.db"
    first = agent(call("book", seat="7A"), yield_after_steps=1, durability=path)
    paused = await first.run_task(Task.create_infer("go"))
    without = Agent(name="clerk", llm=model("Done."), tools=[book], yield_after_steps=1, durability=path)

    with pytest.raises(CheckpointMismatchError) as caught:
        await without.resume_task(RunContext.from_task(paused).run_id)
    assert caught.value.differences == ("completion_checks",)


async def test_a_configuration_names_its_checks_and_wants_them_again() -> None:
    """They are code, so they are never stored, and never forgotten."""
    data = agent().to_dict()

    assert data["completion_checks"] == [{"name": "booked", "require_execution": True}]
    with pytest.raises(ConfigurationError, match="completion_validator"):
        Agent.from_dict(data, tools=[book])
    validator = CompletionValidator([CompletionCheck("booked", is_booked)])
    assert Agent.from_dict(data, tools=[book], completion_validator=validator).to_dict() == data


@pytest.mark.parametrize(
    "make",
    [
        lambda: CompletionCheck("", is_booked),
        lambda: CompletionCheck("a", True),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: CompletionCheck("a", is_booked, require_execution=1),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: CompletionCheck("a", is_booked, message=None),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        lambda: CompletionValidator([]),
        lambda: CompletionValidator([is_booked]),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
        lambda: CompletionValidator([CompletionCheck("a", is_booked), CompletionCheck("a", is_booked)]),
        lambda: Agent(name="a", completion_validator=is_booked),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ],
)
def test_what_cannot_check_anything_is_refused(make: Any) -> None:
    """Where it is put together, not at the end of a run."""
    with pytest.raises(ConfigurationError):
        make()
