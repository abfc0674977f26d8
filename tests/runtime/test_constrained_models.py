"""What a model whose decoding can be constrained is given, and what small models are helped with."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from pydantic import BaseModel

from protolink import Agent, AgentHooks, ModelRequest
from protolink.testing import ScriptedLLM, call
from protolink.tools import Tool

SHOWN = {"question": "What is known about the lamp?", "args": {"item": "lamp"}}
WHOLE = {**SHOWN, "result": "It is green.", "answer": "Green."}


def look_up(item: Literal["lamp", "chair"]) -> str:
    """Look an item up."""
    return f"The {item} is blue."


def clear() -> str:
    """Clear everything."""
    return "cleared"


class Constrained(ScriptedLLM):
    """A scripted model that says it can be held to a schema."""

    constrained = True
    repeats_question = True
    context_window: int | None = 4_096


LOOK = call("look_up", item="chair")


def _tools_of(schema: dict[str, Any]) -> list[str]:
    alternatives = schema.get("anyOf", [schema])
    named = [one["properties"].get("tool", one["properties"]["type"]) for one in alternatives]
    return [one["const"] for one in named]


async def test_the_schema_has_the_actions_of_the_turn() -> None:
    """The tools under their names, then the answer; closed sets stay closed."""
    llm = Constrained([LOOK, "done"])

    await Agent(name="a", tools=[look_up, clear], llm=llm).invoke("go")

    schema = llm.requests[0].action_schema or {}
    assert _tools_of(schema) == ["look_up", "clear", "final"]
    assert schema["anyOf"][0]["properties"]["args"]["properties"]["item"]["enum"] == ["lamp", "chair"]


async def test_the_schema_follows_the_choice_and_the_hooks() -> None:
    """What must not be said in a turn cannot be said in it."""

    def without_clear(request: ModelRequest) -> None:
        request.tools[:] = [tool for tool in request.tools if tool["name"] != "clear"]

    llm = Constrained([LOOK, "done"])
    hooks = AgentHooks(before_model=without_clear)

    def choice(step: int) -> str:
        return "required" if step == 1 else "none"

    await Agent(name="a", tools=[look_up, clear], llm=llm, hooks=hooks, tool_choice=choice).invoke("go")

    assert [_tools_of(request.action_schema or {}) for request in llm.requests] == [["look_up"], ["final"]]


async def test_a_typed_answer_is_part_of_the_schema() -> None:
    """The answer cannot miss its shape either."""

    class Colour(BaseModel):
        name: str

    llm = Constrained([{"type": "final", "content": {"name": "blue"}}])

    answer = await Agent(name="a", tools=[clear], llm=llm).invoke_typed("go", Colour)

    assert answer == Colour(name="blue")
    assert "name" in str((llm.requests[0].action_schema or {})["anyOf"][-1])


@pytest.mark.parametrize(("bound", "sent"), [(40, 40), (None, 1_000)])
async def test_an_answer_of_a_small_model_has_a_bound(bound: int | None, sent: int) -> None:
    """A small model may find no end by itself."""
    llm = Constrained(["done"])

    await Agent(name="a", tools=[clear], llm=llm, max_answer_characters=bound).invoke("go")

    final = (llm.requests[0].action_schema or {})["anyOf"][-1]
    assert final["properties"]["content"]["maxLength"] == sent


async def test_a_large_model_has_the_bound_that_was_set_and_no_other() -> None:
    """A long answer is nothing wrong where there is room for it."""
    llm = Constrained(["done"])
    llm.context_window = 128_000

    await Agent(name="a", tools=[clear], llm=llm).invoke("go")

    final = (llm.requests[0].action_schema or {})["anyOf"][-1]
    assert "maxLength" not in final["properties"]["content"]


async def test_a_worker_is_an_action_of_its_own() -> None:
    """Its name, what it is asked, and its tools with their arguments."""
    worker = Agent(name="scout", llm=ScriptedLLM(), tools=[look_up])
    llm = Constrained(["done"])

    await Agent(name="a", subagents=[worker], llm=llm).invoke("go")

    infer, tool, _ = (llm.requests[0].action_schema or {})["anyOf"]
    assert infer["properties"]["agent"] == {"const": "scout"}
    assert tool["properties"]["tool"] == {"const": "look_up"}
    assert tool["properties"]["args"]["properties"]["item"]["enum"] == ["lamp", "chair"]


@pytest.mark.parametrize("native", [True, False])
async def test_no_schema_is_given_where_none_can_be_kept(native: bool) -> None:
    """Native tools have their own format, and a model that decodes freely would only be confused."""
    llm = Constrained(["done"], tool_calling="native" if native else "json")
    llm.constrained = native

    await Agent(name="a", tools=[clear], llm=llm).invoke("go")

    assert llm.requests[0].action_schema is None


async def test_the_question_is_repeated_after_a_result() -> None:
    """A small model has lost it by then; the conversation itself stays as it was."""
    llm = Constrained([LOOK, LOOK, "done"])

    await Agent(name="a", tools=[look_up], llm=llm).invoke("What colour is the chair?")

    first, second = (request.messages[2]["content"] for request in llm.requests[1:])
    assert first.endswith("What colour is the chair?")
    assert not second.endswith("What colour is the chair?")
    assert llm.requests[2].messages[-1]["content"].endswith("What colour is the chair?")


@pytest.mark.parametrize(("example", "roles"), [(SHOWN, ["user", "assistant"]), (WHOLE, ["user", "assistant"] * 2)])
async def test_an_example_with_a_question_is_shown_as_turns(example: Any, roles: list[str]) -> None:
    """A demonstration says more than a schema, and not twice."""
    llm = Constrained([LOOK, "done"])

    await Agent(name="a", tools=[Tool(look_up, examples=[example])], llm=llm).invoke("go")

    shown = llm.requests[0].messages[:-1]
    assert [{"tool": "user"}.get(message["role"], message["role"]) for message in shown] == roles
    assert shown[1]["content"] == '{"type":"tool_call","tool":"look_up","args":{"item":"lamp"}}'
    assert "lamp?" not in llm.requests[0].system_prompt


async def test_an_example_without_a_question_stays_in_the_prompt() -> None:
    """It shows arguments, and there is nothing that they would answer."""
    llm = ScriptedLLM(["done"])

    await Agent(name="a", tools=[Tool(look_up, examples=[{"item": "lamp"}])], llm=llm).invoke("go")

    assert len(llm.requests[0].messages) == 1
    assert 'example: {"item":"lamp"}' in llm.requests[0].system_prompt


async def test_a_small_window_is_told_of_parameters_and_not_of_schemas() -> None:
    """Every token of the prompt is one that the conversation does not have."""
    small, large = Constrained(["done"]), Constrained(["done"])
    large.context_window = 128_000
    for llm in (small, large):
        await Agent(name="a", tools=[look_up], llm=llm).invoke("go")

    assert 'look_up(item: "lamp" | "chair"): Look an item up.' in small.requests[0].system_prompt
    assert len(small.requests[0].system_prompt) < len(large.requests[0].system_prompt) / 2


async def test_what_a_turn_is_offered_is_made_once() -> None:
    """A schema of many tools costs, and so does a prompt."""
    heard: list[tuple[Any, str]] = []

    class Listening(Constrained):
        def respond(self, request: Any) -> Any:
            heard.append((request.action_schema, request.system_prompt))
            return super().respond(request)

    agent = Agent(name="a", tools=[look_up], llm=Listening([LOOK, "done", "done"]))
    await agent.invoke("go")
    await agent.invoke("again")

    (schema, prompt), *others = heard
    assert len(others) == 2
    assert all(other is schema and words is prompt for other, words in others)


class Closing(ScriptedLLM):
    """Says when it was closed."""

    closed = 0

    async def aclose(self) -> None:
        """Count."""
        self.closed += 1


async def test_a_model_of_the_applications_own_is_not_closed() -> None:
    """Others may use it."""
    llm = Closing(["done"])
    agent = Agent(name="a", llm_factory=lambda: llm)

    await agent.invoke("go")
    await agent.stop()

    assert llm.closed == 0
