"""Typed answers: values that fit, or an error that says why none came."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from protolink import Agent, AgentHooks, FinalResponse, InferParseError, Task
from protolink.testing import call
from tests.support import ListeningLLM, model, observe


@dataclass(frozen=True)
class Point:
    """A place."""

    x: int
    y: int


class Invoice(BaseModel):
    """What is owed."""

    number: str
    cents: int
    due: date | None = None


@pytest.mark.parametrize(
    ("wanted", "said", "value"),
    [
        (Point, '{"x": 1, "y": 2}', Point(1, 2)),
        (
            Invoice,
            '{"number": "A1", "cents": 5, "due": "2026-01-02"}',
            Invoice(number="A1", cents=5, due=date(2026, 1, 2)),
        ),
        (list[int], "[1, 2, 3]", [1, 2, 3]),
        (dict[str, float], '{"a": 1.5}', {"a": 1.5}),
        (int, "42", 42),
        (str, '"text"', "text"),
        (bool, "true", True),
        (Literal["yes", "no"], '"no"', "no"),
        (int | None, "null", None),
        (Point, '```json\n{"x": 1, "y": 2}\n```', Point(1, 2)),
        (Point, {"x": 3, "y": 4}, Point(3, 4)),
        (list[Point], '[{"x": 1, "y": 2}]', [Point(1, 2)]),
        (Point, {"type": "final", "content": {"x": 5, "y": 6}}, Point(5, 6)),
        (tuple[int, str], '[1, "a"]', (1, "a")),
    ],
)
async def test_a_fitting_answer_becomes_a_value(wanted: Any, said: Any, value: Any) -> None:
    """Of the requested type, however it was wrapped."""
    assert await Agent(name="a", llm=model(said)).invoke_typed("go", wanted) == value


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Point, "not JSON"),
        (Point, ""),
        (Point, '{"x": 1}'),
        (Point, '{"x": "1", "y": 2}'),
        (Point, "[1, 2]"),
        (Point, "null"),
        (int, "true"),
        (int, '"1"'),
        (int, "1.5"),
        (bool, "1"),
        (list[int], '[1, "2"]'),
        (list[int], '{"0": 1}'),
        (float, "NaN"),
        (Point, '{"x": 1, "x": 2, "y": 3}'),
        (Literal["yes", "no"], '"Yes"'),
        (Point, '{"x": 1, "y": 2} and more'),
    ],
)
async def test_an_answer_that_does_not_fit_is_no_answer(wanted: Any, said: str) -> None:
    """Nothing is guessed, coerced or completed."""
    agent = Agent(name="a", llm=model(said))

    with pytest.raises(InferParseError) as raised:
        await agent.invoke_typed("go", wanted)

    assert raised.value.code == "infer_parse_error"
    assert raised.value.task is not None
    assert raised.value.task.state.value == "failed"


async def test_a_bad_answer_can_be_corrected() -> None:
    """The model is told what did not fit."""
    llm = ListeningLLM('{"x": 1}', '{"x": 1, "y": "2"}', '{"x": 1, "y": 2}')

    value = await Agent(name="a", llm=llm).invoke_typed("go", Point, max_attempts=3)

    assert value == Point(1, 2)
    assert "y" in llm.heard[1][-1]["content"]
    assert "schema" in llm.heard[2][-1]["content"]


@pytest.mark.parametrize("attempts", [1, 2, 4])
async def test_attempts_are_counted_exactly(attempts: int) -> None:
    """So many answers, and then the error."""
    llm = ListeningLLM(*["nonsense"] * 9)

    with pytest.raises(InferParseError):
        await Agent(name="a", llm=llm).invoke_typed("go", Point, max_attempts=attempts)

    assert len(llm.heard) == attempts


@pytest.mark.parametrize("attempts", [0, -1, True])
async def test_a_number_of_attempts_that_is_none_is_refused(attempts: Any) -> None:
    """Before anything is asked."""
    with pytest.raises(ValueError, match="max_attempts"):
        await Agent(name="a", llm=model()).invoke_typed("go", Point, max_attempts=attempts)


async def test_the_schema_is_part_of_the_question() -> None:
    """And is handed to providers that can enforce it."""
    llm = ListeningLLM('{"x": 1, "y": 2}')

    await Agent(name="a", llm=llm).invoke_typed("Where?", Point)

    question = llm.heard[0][0]["content"]
    assert question.startswith("Where?")
    assert '"x"' in question
    assert llm.requests[0].output_schema is not None


async def test_tools_can_be_used_on_the_way() -> None:
    """A call is no answer and costs no attempt."""

    def locate() -> list[int]:
        return [7, 8]

    agent = Agent(name="a", tools=[locate], llm=model(call("locate"), '{"x": 7, "y": 8}'))

    assert await agent.invoke_typed("go", Point) == Point(7, 8)


async def test_a_hook_may_repair_the_answer_before_it_is_checked() -> None:
    """`before_complete` comes first, so what it leaves is what has to fit."""

    def repair(response: FinalResponse) -> None:
        response.content = {"x": 1, "y": 1}

    agent = Agent(name="a", llm=model("nonsense"), hooks=AgentHooks(before_complete=repair))

    assert await agent.invoke_typed("go", Point) == Point(1, 1)


async def test_a_type_that_json_cannot_describe_is_refused_at_once() -> None:
    """Before a model is paid."""

    class Opaque:
        pass

    llm = ListeningLLM()
    with pytest.raises(ValueError, match="Opaque"):
        await Agent(name="a", llm=llm).invoke_typed("go", Opaque)

    assert llm.heard == []


async def test_the_recorded_answer_is_json() -> None:
    """The value lives in the process; the task holds what the model said, as data."""
    agent = Agent(name="a", llm=model('{"x": 1, "y": 2}'))
    task = Task.create_infer("go", output_schema={"type": "object", "properties": {"x": {"type": "integer"}}})

    _, result = await observe(agent, task)

    assert result.output == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    ("schema", "said", "fits"),
    [
        ({"type": "integer"}, "3", True),
        ({"type": "integer"}, "3.5", False),
        ({"type": "array", "items": {"type": "string"}}, '["a"]', True),
        ({"type": "array", "items": {"type": "string"}}, "[1]", False),
        ({"enum": ["a", "b"]}, '"c"', False),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, "1", True),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "integer"}}}, '"1"', False),
    ],
)
async def test_a_hand_written_schema_is_checked(schema: dict[str, Any], said: str, fits: bool) -> None:
    """As strictly as a type."""
    _, result = await observe(Agent(name="a", llm=model(said)), Task.create_infer("go", output_schema=schema))

    assert (result.status == "completed") == fits


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "http://example.com/schema"}, {"required": "x"}])
async def test_an_answer_schema_that_is_none_fails_clearly(schema: dict[str, Any]) -> None:
    """The run says that the schema is at fault; nothing is called internal."""
    _, result = await observe(Agent(name="a", llm=model("1")), Task.create_infer("go", output_schema=schema))

    assert result.status == "failed"
    assert "output_schema" in (result.error or "")
    assert result.task.metadata["error"]["code"] != "internal_error"
