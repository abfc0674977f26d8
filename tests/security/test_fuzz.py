"""Every parser of foreign data, fed with what is nearly right: a value or a complaint, and nothing else.

`make torture FULL=1 FAULT=fuzz` makes a million inputs over all parsers of it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from protolink import Agent, AgentCard, RunContext, RunEvent, Task, ToolDefinitionError
from protolink._core.codec import CodecError, decode
from protolink._core.parse import FinalText, Malformed, ProposedCall, parse_reply
from protolink._json import JSONError, parse
from protolink.testing import call
from protolink.tools.arguments import ArgumentsError
from protolink.tools.jsonschema import JsonSchemaArguments
from protolink.tools.tool import Tool
from protolink.transport.http.encoding import LineReader, read_frame
from tests.reliability.scale import scaled
from tests.reliability.tally import Tally

INPUTS = scaled(commit=2_000, short=5_000, full=112_000)
"""For each parser."""

SPLINTERS = [
    '"', "\\", "{", "}", "[", "]", ",", ":", "null", "true", "NaN", "1e999", "-0", "9" * 400, "\\ud800", "\x00",
    "\n", "\r", "\u2028", '{"type":"tool_call"}', '"__class__"', '"__reduce__"', "[" * 200, '{"a":' * 70, "é", "😀",
    "```json",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 10**30, 1.5, "", "x" * 300, [], {}, [[]], {"": None}, {"__class__": "os.system"},
    ["a", 1], {"type": "tool_call"}, "\x1b[2J", {"$ref": "#"}, {"anyOf": [{}]},
]  # fmt: skip


def nearly(sample: Any) -> Iterator[str]:
    """Texts that differ from a sample's JSON a little: in a value, in a key, or in the text itself."""
    dice = random.Random(20260101)
    text = json.dumps(sample)
    for _ in range(INPUTS):
        if dice.random() < 0.5:
            yield _cut(text, dice)
        else:
            yield json.dumps(_changed(json.loads(text), dice))


def _cut(text: str, dice: random.Random) -> str:
    for _ in range(dice.randrange(1, 4)):
        start = dice.randrange(len(text) + 1)
        text = text[:start] + dice.choice([*SPLINTERS, ""]) + text[start + dice.randrange(4) :]
    return text


def _changed(value: Any, dice: random.Random) -> Any:
    if isinstance(value, dict) and value and dice.random() < 0.9:
        key = dice.choice(sorted(value))
        match dice.randrange(4):
            case 0:
                del value[key]
            case 1:
                value[dice.choice(SPLINTERS)] = dice.choice(VALUES)
            case _:
                value[key] = _changed(value[key], dice)
        return value
    if isinstance(value, list) and value and dice.random() < 0.9:
        place = dice.randrange(len(value))
        value[place] = _changed(value[place], dice)
        return value
    return dice.choice(VALUES)


def pay(amount: int, to: str, notes: list[str] | None = None) -> str:
    """Pay."""
    return to


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0}, "b": {"enum": ["x", "y"]}, "c": {"$ref": "#/$defs/c"}},
    "required": ["a"],
    "$defs": {"c": {"type": "array", "items": {"pattern": "^a+$"}, "maxItems": 3}},
}
TOOL = Tool(pay)
EVENT = RunEvent(type="t", run_id="r", task_id="t", agent_name="a", payload={"metadata": {"args": {}}})
ROW = {"action_id": "a", "kind": "tool.call", "name": "n", "tool": "n", "arguments": {}, "payload": {},
       "capabilities": ["c"], "fingerprint": "f"}  # fmt: skip


def _frames(text: str) -> None:
    for line in LineReader(10_000).feed(text.encode("utf-8", "replace") + b"\n"):
        read_frame(line, max_bytes=10_000)


PARSERS: dict[str, tuple[Any, Callable[[str], object], tuple[type[Exception], ...]]] = {
    "a model's reply": ([call("pay", amount=1, to="x")], parse_reply, ()),
    "a tool's arguments": ({"amount": 1, "to": "x", "notes": ["n"]}, TOOL.arguments.validate, (ArgumentsError,)),
    "a stored row": (ROW, lambda text: decode("ActionPrepared", 1, parse(text), {}), (CodecError, JSONError)),
    "a task": (
        Task.create_infer("go", context=RunContext(agent_chain=["a"])).to_dict(),
        lambda text: Task.from_dict(parse(text)),  # type: ignore[arg-type]
        (ValueError,),
    ),
    "an event": (EVENT.to_dict(), lambda text: RunEvent.from_dict(parse(text)), (ValueError,)),  # type: ignore[arg-type]
    "a card": (
        AgentCard("a", url="http://a:1", skills=[{"name": "s"}]).to_dict(),
        lambda text: AgentCard.from_dict(parse(text)),  # type: ignore[arg-type]
        (ValueError,),
    ),
    "a stream": ({"event": EVENT.to_dict()}, _frames, (ValueError,)),
    "a schema": (SCHEMA, lambda text: JsonSchemaArguments(parse(text)), (ToolDefinitionError, JSONError)),  # type: ignore[arg-type]
    "a configuration": (
        Agent(name="a", llm="mock").to_dict(),
        lambda text: Agent.from_dict(parse(text)),  # type: ignore[arg-type]
        (ValueError,),
    ),
}


@pytest.mark.fault(name="fuzz")
@pytest.mark.parametrize("parser", PARSERS)
def test_a10_nearly_right_data_is_a_value_or_a_complaint(parser: str, tally: Tally) -> None:
    """No other exception, whatever the place of the flaw; and some of it is right after all."""
    sample, read, complaints = PARSERS[parser]
    read(json.dumps(sample))
    refused = 0
    for text in nearly(sample):
        tally.add("inputs")
        try:
            outcome = read(text)
        except complaints:
            refused += 1
        else:
            if parser == "a model's reply":
                assert isinstance(outcome, FinalText | Malformed | list)
                refused += isinstance(outcome, Malformed)
                assert not isinstance(outcome, list) or all(isinstance(item, ProposedCall) for item in outcome)

    tally.add("refused", refused)
    assert 0 < refused < INPUTS
