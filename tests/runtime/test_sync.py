"""The blocking verbs: for scripts, from any number of threads, never inside a running loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from protolink import Agent, RunBudget, RunContext, RunEvent, Task, ToolFailedError
from protolink.testing import call
from tests.support import PATIENCE_SECONDS, model

Interpreter = Callable[[str], str]


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@dataclass
class Answer:
    """An answer with a number."""

    number: int


def _agent(*script: Any) -> Agent:
    return Agent(name="a", tools=[add], llm=model(*(script or ("answer",))))


def test_every_verb_has_a_blocking_spelling() -> None:
    """The same arguments, the same values."""
    assert _agent().sync.invoke("go") == "answer"
    assert _agent().sync.invoke("", "tool_call", "add", {"left": 1, "right": 2}) == 3
    assert _agent('{"number": 7}').sync.invoke_typed("go", Answer) == Answer(7)
    assert _agent().sync.run_task(Task.create_infer("go")).get_output() == "answer"
    assert _agent().sync.call_tool("add", left=1, right=2) == 3
    assert _agent().sync.call_tool_in_context("add", RunContext(), left=2, right=2) == 4
    with _agent().sync.start_run("go") as handle:
        assert handle.result().output == "answer"


VERBS: dict[str, Callable[[Agent], Any]] = {
    "invoke": lambda agent: agent.sync.invoke("go"),
    "invoke_typed": lambda agent: agent.sync.invoke_typed("go", int),
    "run_task": lambda agent: agent.sync.run_task(Task.create_infer("go")),
    "call_tool": lambda agent: agent.sync.call_tool("add", left=1, right=2),
    "call_tool_in_context": lambda agent: agent.sync.call_tool_in_context("add", RunContext(), left=1, right=2),
    "start_run": lambda agent: agent.sync.start_run("go"),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_inside_a_running_loop_every_verb_is_refused(verb: str) -> None:
    """It would stop that loop; the message names the verb to await, and no coroutine is left behind."""
    with pytest.raises(RuntimeError, match=rf"await agent\.{verb}"):
        VERBS[verb](_agent())


def test_errors_are_raised_as_they_are() -> None:
    """A failed tool fails the call."""

    def broken() -> None:
        raise OSError("gone")

    with pytest.raises(ToolFailedError) as raised:
        Agent(name="a", tools=[broken]).sync.call_tool("broken")

    assert isinstance(raised.value.__cause__, OSError)


def test_several_threads_use_one_agent_at_once() -> None:
    """Each has a loop of its own; all of them are inside at the same time."""
    together = threading.Barrier(4)

    def meet(number: int) -> int:
        together.wait(PATIENCE_SECONDS)
        return number

    agent = Agent(name="a", tools=[meet])
    answers: list[int] = []

    def serve(number: int) -> None:
        answers.append(agent.sync.call_tool("meet", number=number))

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)

    assert sorted(answers) == [0, 1, 2, 3]


def test_events_are_iterated_while_they_come() -> None:
    """Reading drives the run; a second reading replays it."""
    with _agent(call("add", left=1, right=2), "answer").sync.start_run("go") as handle:
        first = [event.event_id for event in handle.events()]
        again = [event.event_id for event in handle.events()]
        rest = [event.event_id for event in handle.events(after=3)]

    assert first == again
    assert rest == first[3:]
    assert len(first) > 5


def test_leaving_the_block_cancels_an_unfinished_run() -> None:
    """Nothing goes on behind a script's back."""
    cleaned: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("cleaned")

    seen: list[RunEvent] = []
    with Agent(name="a", tools=[hang], llm=model(call("hang"))).sync.start_run("go") as handle:
        for event in handle.events():
            seen.append(event)
            if event.type == "action.started":
                break

    assert cleaned == ["cleaned"]
    assert seen[-1].type == "action.started"


def test_an_error_inside_the_block_cancels_the_run_and_is_raised() -> None:
    """The block's own error wins."""
    with pytest.raises(LookupError), _agent().sync.start_run("go"):
        raise LookupError("mine")


def test_a_run_can_be_canceled_by_hand() -> None:
    """And then has a result that says so."""

    async def hang() -> None:
        await asyncio.Event().wait()

    with Agent(name="a", tools=[hang], llm=model(call("hang"))).sync.start_run("go", session_id="s") as handle:
        handle.cancel("by hand")
        result = handle.result()

    assert result.status == "canceled"
    assert result.task.metadata["cancel_reason"] == "by hand"


def test_a_request_that_cannot_start_leaves_no_loop_behind() -> None:
    """The error is the request's; an unclosed loop would warn, and warnings are errors here."""
    with pytest.raises(ValueError, match="asks for nothing"):
        _agent().sync.start_run(Task())


def test_limits_apply_as_everywhere() -> None:
    """Blocking is only a spelling."""
    from protolink import BudgetExceededError

    with pytest.raises(BudgetExceededError):
        _agent(call("add", left=1, right=2)).sync.invoke("go", budget=RunBudget(max_steps=1))


def test_one_session_goes_on_over_several_calls() -> None:
    """Each call has its own loop; the conversation belongs to the agent."""
    agent = Agent(name="a", llm=model("one", "two"), state=["conversation"])

    assert [agent.sync.invoke("go", session_id="s") for _ in range(2)] == ["one", "two"]


def test_a_plain_script_works(interpreter: Interpreter) -> None:
    """In a fresh interpreter, with warnings as errors, and nothing printed by the library."""
    program = """
from protolink import Agent

def add(left: int, right: int) -> int:
    return left + right

agent = Agent(name="a", tools=[add], sync_execution="thread", llm="mock")
print(agent.sync.call_tool("add", left=20, right=22), agent.sync.invoke("hi"))
"""
    assert interpreter(program) == "42 This is a mock response.\n"
