"""A model that plays a script and remembers what it was asked."""

from __future__ import annotations

from typing import Any

import pytest

from protolink import Agent, ModelFailedError, RunBudget
from protolink.testing import ScriptedLLM, ScriptExhaustedError, call, calls, delegate


def store(item: str) -> str:
    """Store an item."""
    return f"{item} is stored"


def keeper(llm: ScriptedLLM, **options: Any) -> Agent:
    return Agent(name="keeper", llm=llm, tools=[store], verbosity=0, **options)


@pytest.mark.parametrize("tool_calling", ["json", "native"])
async def test_a_script_is_played_turn_by_turn(tool_calling: Any) -> None:
    """One agent can be tested in both ways of saying a call with the same script."""
    script = [calls(call("store", item="milk"), call("store", item="tea")), "Both are stored."]
    llm = ScriptedLLM(script, tool_calling=tool_calling)

    answer = await keeper(llm).invoke("Store milk and tea.")

    assert (answer, llm.remaining) == ("Both are stored.", 0)
    assert [seen["result"] for seen in llm.requests[-1].observations] == ["milk is stored", "tea is stored"]


async def test_every_request_is_recorded() -> None:
    """What the model was told is what an agent's instructions are tested by."""
    llm = ScriptedLLM([call("store", item="milk"), "Stored."])
    agent = keeper(llm, system_prompt="You keep things.")

    await agent.invoke("Store milk.", budget=RunBudget(max_output_tokens=100))

    first, second = llm.requests
    assert (first.step, second.step, first.prompt, first.tool_names) == (1, 2, "Store milk.", ("store",))
    assert first.system_prompt.startswith("You keep things.")
    assert (first.native, first.max_output_tokens, first.output_schema) == (False, 100, None)
    assert first.tools[0]["input_schema"]["required"] == ["item"]
    assert [message["role"] for message in second.messages] == ["user", "assistant", "tool"]


async def test_a_recorded_request_is_not_changed_by_later_turns() -> None:
    """The run's conversation grows; what the first turn was given does not, and belongs to the reader."""
    llm = ScriptedLLM([call("store", item="milk"), "Stored."])
    agent = keeper(llm)

    await agent.invoke("Store milk.")
    llm.requests[0].tools[0]["input_schema"].clear()

    assert len(llm.requests[0].messages) == 1
    assert agent.tools["store"].input_schema["required"] == ["item"]


async def test_a_turn_too_many_says_so() -> None:
    """A default answer would let a test pass whose agent asks once more than it should."""
    llm = ScriptedLLM([call("store", item="milk")])

    with pytest.raises(ModelFailedError, match="the script has 1 turns and turn 2 was asked for") as caught:
        await keeper(llm).invoke("Store milk.")

    assert isinstance(caught.value.__cause__, ScriptExhaustedError)
    assert len(llm.requests) == 2


async def test_runs_share_the_script_of_an_instance() -> None:
    """An agent's conversation over several runs is one script."""
    llm = ScriptedLLM(["One.", "Two."])
    agent = keeper(llm)

    answers = [await agent.invoke("First."), await agent.invoke("Second.")]

    assert answers == ["One.", "Two."]
    assert [request.prompt for request in llm.requests] == ["First.", "Second."]


def test_an_argument_may_be_called_tool() -> None:
    """The name of a parameter is the tool's own business."""
    assert call("pick", tool="saw") == {"type": "tool_call", "tool": "pick", "args": {"tool": "saw"}}


def test_a_reply_without_calls_is_a_text() -> None:
    """An empty list of calls is nothing that a model can say."""
    with pytest.raises(ValueError, match="at least one"):
        calls()


def test_a_delegation_is_an_agent_call() -> None:
    """It is the documented action, so that a script reads like the protocol."""
    assert delegate("researcher", "Find it.") == {
        "type": "agent_call",
        "agent": "researcher",
        "action": "infer",
        "prompt": "Find it.",
    }
