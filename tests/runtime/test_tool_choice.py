"""What a turn says about the use of tools: on the agent, for one run, and by the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import pytest

from protolink import Agent, AgentHooks, CheckpointMismatchError, ModelRequest, TaskExecutionError
from protolink.errors import ConfigurationError
from protolink.llms import ToolChoice
from protolink.testing import call
from tests.support import ListeningLLM, observe, of_type

Mode = Literal["json", "native"]
MODES = pytest.mark.parametrize("mode", ["json", "native"])


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


def double(value: int) -> int:
    """Double a number."""
    return 2 * value


ADD = call("add", left=1, right=2)


def _agent(*turns: Any, mode: Mode = "json", **options: Any) -> tuple[Agent, ListeningLLM]:
    llm = ListeningLLM(*turns, tool_calling=mode)
    return Agent(name="a", tools=[add, double], llm=llm, **options), llm


@MODES
async def test_an_answer_without_the_required_call_is_sent_back(mode: Mode) -> None:
    """Where a provider does not enforce the choice, the runtime does, and the model may correct itself."""
    agent, llm = _agent("Three.", ADD, "Three.", mode=mode, tool_choice="required")

    events, result = await observe(agent)

    assert result.output == "Three."
    assert [request.tool_choice for request in llm.requests] == ["required", "required", "auto"]
    assert len([e for e in events if e.payload.get("llm_event_type") == "llm_parse_error"]) == 1
    assert len(of_type(events, "action.completed")) == 1


@MODES
async def test_a_named_tool_is_the_only_one_until_it_was_called(mode: Mode) -> None:
    """The name stands for one call: afterwards the model may go on as it likes, or it could never answer."""
    agent, llm = _agent(call("double", value=2), ADD, "done", mode=mode, tool_choice="add")

    events, result = await observe(agent)

    assert [request.tool_choice for request in llm.requests] == ["add", "add", "auto"]
    assert [e.payload["metadata"]["tool"] for e in of_type(events, "action.completed")] == ["add"]
    assert result.output == "done"


@MODES
async def test_without_tools_none_are_offered_and_none_run(mode: Mode) -> None:
    """`none` holds whatever the model says; a call is told that it cannot be used."""
    agent, llm = _agent(ADD, "I cannot.", mode=mode, tool_choice="none")

    events, result = await observe(agent)

    assert [len(request.tools) for request in llm.requests] == [0, 0]
    assert "add" not in llm.requests[0].system_prompt
    assert not of_type(events, "action.requested")
    assert result.output == "I cannot."


async def test_a_function_chooses_for_each_step() -> None:
    """A small model is told to look first and to answer then."""
    agent, llm = _agent(ADD, "Three.", tool_choice=lambda step: "required" if step == 1 else "none")

    _, result = await observe(agent)

    assert [request.tool_choice for request in llm.requests] == ["required", "none"]
    assert result.output == "Three."


async def test_a_run_may_choose_otherwise_than_its_agent() -> None:
    """One agent serves requests that need a tool and requests that must not use one."""
    agent, llm = _agent("No tools.", tool_choice="required")

    assert await agent.invoke("go", tool_choice="none") == "No tools."
    assert llm.requests[0].tool_choice == "none"


@pytest.mark.parametrize("choice", ["subtract", "agent_call"])
async def test_an_unknown_tool_is_refused_when_the_run_starts(choice: str) -> None:
    """A misspelled name would otherwise cost a model call for each correction."""
    agent, llm = _agent(tool_choice=choice)

    with pytest.raises(ConfigurationError, match=choice):
        agent.start_run("go")
    assert llm.requests == []


async def test_required_without_a_tool_is_refused() -> None:
    """No reply at all could meet it."""
    agent = Agent(name="a", llm=ListeningLLM(), tool_choice="required")

    with pytest.raises(ConfigurationError, match="needs a tool"):
        agent.start_run("go")


@pytest.mark.parametrize("choice", ["", 3, None])
def test_what_is_no_choice_is_refused_at_once(choice: Any) -> None:
    """It is a mistake in the wiring, so the agent is not even built."""
    with pytest.raises(ConfigurationError, match="tool_choice"):
        Agent(name="a", tool_choice=choice)


async def test_a_hook_cannot_leave_out_what_the_choice_needs() -> None:
    """Two parts of the application contradict each other, and neither is silently ignored."""

    def without_add(request: ModelRequest) -> None:
        request.tools[:] = [tool for tool in request.tools if tool["name"] != "add"]

    agent, llm = _agent(tool_choice="add", hooks=AgentHooks(before_model=without_add))

    with pytest.raises(TaskExecutionError, match="left out"):
        await agent.invoke("go")
    assert llm.requests == []


async def test_the_words_for_free_decoding_follow_the_choice() -> None:
    """A model in JSON mode whose decoding nobody constrains has to be told."""
    agent, llm = _agent(ADD, "Three.", tool_choice="add")

    await observe(agent)

    assert "use the tool add" in llm.requests[0].system_prompt
    assert "use the tool add" not in llm.requests[1].system_prompt


async def test_a_resumed_run_keeps_its_choice(tmp_path: Path) -> None:
    """What a run was asked to do does not change because another process takes it up."""

    def agent(llm: ListeningLLM) -> Agent:
        return Agent(name="a", tools=[add], llm=llm, durability=tmp_path / "runs.db", yield_after_steps=1)

    first, second = ListeningLLM("No."), ListeningLLM(ADD)
    result = await agent(first).start_run("go", tool_choice="required").result()

    await agent(second).resume_task(result.report.context.run_id)

    assert [request.tool_choice for request in (*first.requests, *second.requests)] == ["required", "required"]


async def test_another_choice_of_the_agent_is_another_configuration(tmp_path: Path) -> None:
    """A run that was started under one rule does not go on under another without anybody noticing."""

    def agent(choice: ToolChoice) -> Agent:
        options: dict[str, Any] = {"durability": tmp_path / "runs.db", "yield_after_steps": 1}
        return Agent(name="a", tools=[add], llm=ListeningLLM(ADD), tool_choice=choice, **options)

    result = await agent("required").start_run("go").result()

    with pytest.raises(CheckpointMismatchError) as raised:
        await agent("auto").resume_task(result.report.context.run_id)
    assert raised.value.differences == ("tool_choice",)


async def test_a_stored_run_takes_no_function_of_its_own(tmp_path: Path) -> None:
    """A function cannot be stored, so the next process would not know what was asked."""
    agent = Agent(name="a", tools=[add], llm=ListeningLLM(), durability=tmp_path / "runs.db")

    with pytest.raises(ConfigurationError, match="stored"):
        agent.start_run("go", tool_choice=lambda step: "auto")


async def test_an_answer_that_is_too_long_is_sent_back() -> None:
    """The bound holds for every model, whether or not its decoding can be constrained."""
    llm = ListeningLLM("A long answer.", "Short.")
    agent = Agent(name="a", llm=llm, max_answer_characters=8)

    assert await agent.invoke("go") == "Short."
    assert "at most 8 characters" in llm.heard[1][-1]["content"]


async def test_a_refused_native_call_leaves_a_conversation_that_providers_take() -> None:
    """A message with calls needs their results; one that was refused is sent back as text."""
    agent, llm = _agent(ADD, "No.", mode="native", tool_choice="none")

    await observe(agent)

    assert [message["role"] for message in llm.heard[1]] == ["user", "assistant", "user"]
    assert "tool_calls" not in llm.heard[1][1]
    assert llm.heard[1][1]["content"]


def test_a_configuration_keeps_the_choice_and_the_bound() -> None:
    """An agent that is built from its configuration behaves like the one that it was taken from."""
    agent = Agent(name="a", tools=[add], llm="mock", tool_choice="add", max_answer_characters=9)

    again = Agent.from_dict(agent.to_dict(), tools=[add])

    assert again.to_dict() == agent.to_dict()
    assert again.configuration().tool_choice == "add"


def test_a_function_has_to_be_passed_again() -> None:
    """It is code, like a tool's."""
    stored = Agent(name="a", tools=[add], tool_choice=lambda step: "auto").to_dict()

    with pytest.raises(ConfigurationError, match="tool_choice"):
        Agent.from_dict(stored, tools=[add])
    assert Agent.from_dict(stored, tools=[add], tool_choice="none").configuration().tool_choice == "none"
