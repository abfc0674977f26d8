"""Configuration: plain JSON that says what has to be reconnected, frozen for each run when it starts."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from protolink import Agent, AgentCard, CapabilityPolicy, ConfigurationError, Tool
from protolink.llms import MockLLM
from protolink.testing import call
from tests.support import ListeningLLM, model, observe


def work(number: int = 1) -> int:
    """Return a number."""
    return number


def _agent(**options: Any) -> Agent:
    settings: dict[str, Any] = {
        "name": "a",
        "description": "Works.",
        "url": "https://example.com/a",
        "tools": [Tool(work, capabilities=["x.y"], tags=["t"], examples=[{"number": 3}])],
        "llm": MockLLM("mock-2"),
        "system_prompt": "You work.",
        "policy": [CapabilityPolicy({"x.*": "allow"}, default_effect="deny", name="mine")],
        "state": ["conversation"],
        "sync_execution": "thread",
        "max_sync_workers": 2,
        "expose_tool_results": True,
        "execution_version": "7",
        "verbosity": 0,
        **options,
    }
    return Agent(**settings)


async def test_a_configuration_survives_a_round_trip_through_text() -> None:
    """With the code passed again, the copy is configured alike and works."""
    agent = _agent()
    stored = json.loads(json.dumps(agent.to_dict()))

    copy = Agent.from_dict(stored, tools=list(agent.tools.values()))

    assert copy.to_dict() == agent.to_dict()
    assert await copy.call_tool("work", number=4) == 4
    assert await copy.invoke("go") == "This is a mock response."


def test_a_configuration_holds_no_code_and_says_what_to_reconnect() -> None:
    """Names and schemas, not functions."""
    stored = _agent(llm=None, llm_factory=model).to_dict()

    assert stored["llm_factory"] == {"reconnect_required": True}
    assert stored["tools"][0]["reconnect_required"] is True
    assert "function" not in json.dumps(stored)


def test_tools_have_to_be_passed_again() -> None:
    """The error names the first one that is missing."""
    with pytest.raises(ConfigurationError, match="'work'"):
        Agent.from_dict(_agent().to_dict())


def test_a_tool_with_another_schema_is_not_the_same_tool() -> None:
    """A stored declaration that no longer fits is noticed."""

    def changed(number: str) -> str:
        return number

    with pytest.raises(ConfigurationError, match="input_schema"):
        Agent.from_dict(_agent().to_dict(), tools=[Tool(changed, name="work")])


def test_a_factory_has_to_be_passed_again() -> None:
    """By its parameter's name."""
    stored = _agent(llm=None, llm_factory=model, tools=[]).to_dict()

    with pytest.raises(ConfigurationError, match="llm_factory="):
        Agent.from_dict(stored)
    assert Agent.from_dict(stored, llm_factory=model).to_dict()["llm_factory"] == {"reconnect_required": True}


def test_a_model_that_cannot_be_made_by_name_has_to_be_passed_again() -> None:
    """A stored name never selects code."""
    stored = _agent(tools=[]).to_dict()
    stored["llm"]["provider"] = "os.system"

    with pytest.raises(ConfigurationError, match="llm="):
        Agent.from_dict(stored)


def test_the_allowance_of_corrections_travels_with_the_model() -> None:
    """It is part of the configuration."""
    llm = MockLLM()
    llm.max_tool_corrections = 5

    copy = Agent.from_dict(_agent(llm=llm, tools=[]).to_dict())

    assert copy.llm is not None
    assert copy.llm.max_tool_corrections == 5


async def test_policies_are_there_again() -> None:
    """A restored agent is not a laxer one."""
    agent = _agent(policy=CapabilityPolicy({"x.y": "deny"}))
    copy = Agent.from_dict(json.loads(json.dumps(agent.to_dict())), tools=list(agent.tools.values()))

    _, result = await observe(copy, "go")
    copy.llm = model(call("work"))
    _, denied = await observe(copy, "go")

    assert result.status == "completed"
    assert denied.status == "failed"


def test_a_policy_of_the_applications_own_has_to_be_passed_again() -> None:
    """It cannot be stored, so a configuration with one must not load as one without."""
    from protolink import Policy, PolicyDecision, PolicyEffect

    class Own(Policy):
        async def evaluate(self, action: Any, context: Any) -> PolicyDecision:
            return PolicyDecision(PolicyEffect.DENY)

    stored = _agent(policy=Own(), tools=[]).to_dict()

    with pytest.raises(ConfigurationError, match="policy"):
        Agent.from_dict(stored)


@pytest.mark.parametrize(
    "change",
    [
        {"card": None},
        {"card": {"name": 3}},
        {"tools": "work"},
        {"sync_execution": "fork"},
        {"max_sync_workers": "many"},
        {"state": ["memory"]},
        {"policies": [{"rules": {"x": "perhaps"}, "default_effect": "allow", "name": "n"}]},
        {"policies": [{}]},
        {"policies": ["deny"]},
        {"verbosity": "loud"},
        {"expose_tool_results": "yes"},
    ],
)
def test_a_damaged_configuration_is_refused(change: dict[str, Any]) -> None:
    """As a `ValueError` that names the field, never as an agent with defaults."""
    stored = {**_agent(tools=[]).to_dict(), **change}

    with pytest.raises(ValueError, match=r"\w"):
        Agent.from_dict(stored)


def test_unknown_keys_are_ignored() -> None:
    """A configuration of a newer release loads as far as it is known."""
    stored = {**_agent(tools=[]).to_dict(), "invented_later": {"x": 1}}

    assert Agent.from_dict(stored).name == "a"


async def test_changing_an_agent_does_not_change_its_running_runs() -> None:
    """Tools, model and rules of a run are those of its start."""
    entered, go = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        entered.set()
        await go.wait()

    old = ListeningLLM(call("wait"), call("added"), "old model")
    agent = Agent(name="a", tools=[wait], llm=old)
    handle = agent.start_run("go")
    await entered.wait()

    agent.add_tool(Tool(work, name="added"))
    agent.llm = model("new model")
    go.set()
    result = await handle.result()

    assert result.output == "old model"
    assert [record.outcome for record in result.tool_evidence] == ["completed", "rejected"]
    assert await agent.invoke("go") == "new model"
    assert await agent.call_tool("added", number=3) == 3


async def test_changing_a_request_does_not_change_its_running_run() -> None:
    """Task, context and messages are frozen when the run starts."""
    from protolink import RunContext, Task

    llm = ListeningLLM(call("work"))
    agent = Agent(name="a", tools=[work], llm=llm)
    context = RunContext(session_id="s", metadata={"k": ["v"]})
    task = Task.create_infer("the question")
    task.metadata.pop("run_context")
    handle = agent.start_run(task, context=context)

    task.messages[0].parts[0].content["prompt"] = "another question"
    context.permissions["*"] = "deny"
    context.metadata["k"].append("changed")
    result = await handle.result()

    assert result.status == "completed"
    assert llm.heard[0][0]["content"] == "the question"
    assert result.report.context.metadata == {"k": ["v"]}
    assert task.state.value == "submitted"


def test_what_is_given_out_cannot_change_the_agent() -> None:
    """Mappings of tools, schemas and configurations are copies or read-only."""
    agent = _agent()
    before = json.dumps(agent.to_dict())

    with pytest.raises(TypeError):
        agent.tools["other"] = agent.tools["work"]  # type: ignore[index] # pyright: ignore[reportIndexIssue]
    agent.tools["work"].input_schema["properties"].clear()
    agent.to_dict()["tools"].clear()
    agent.to_dict()["tools"][0]["input_schema"]["properties"].clear()

    assert json.dumps(agent.to_dict()) == before


def test_a_card_may_be_an_object_a_dictionary_or_its_parts() -> None:
    """The parts that are given win."""
    card = AgentCard(name="carded", description="From a card.")

    assert Agent(card).name == Agent(card.to_dict()).name == "carded"
    assert Agent(card, name="named").card.description == "From a card."
    assert Agent(name="alone").card.description == ""
