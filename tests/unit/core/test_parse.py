"""One action in a reply is that action, two are none, and text without one is the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolink._core.parse import MAX_REPLY_CHARS, FinalText, Malformed, ProposedCall, parse_reply, proposals_from

ACTION = '{"type":"tool_call","tool":"note","args":{"text":"milk"}}'
CALL = ProposedCall("tool_call", "note", None, None, None, {"text": "milk"})
FENCE = "```"


@pytest.mark.parametrize(
    "text",
    [
        ACTION,
        f"\n  {ACTION}\n",
        f"{FENCE}json\n{ACTION}\n{FENCE}",
        f"{FENCE}\n{ACTION}\n{FENCE}",
        f"{FENCE}tool {{x}}\n{ACTION}\n{FENCE}",
        f"Sure, here is the call:\n\n{FENCE}\n{ACTION}\n{FENCE}\n",
        f"{ACTION}\n\nThis stores the note {{for later}}.",
        f"I \"think\" it's {{best}} to do {ACTION}, don't you?",
        f'The data is {{"a": [1, 2]}} and {FENCE}json\n{{"b": 1}}\n{FENCE} so {ACTION}',
        f'{{"broken": }} and then {ACTION}',
        f"[{ACTION}]",
        f"Here: [{ACTION}] as a list",
        json.dumps(json.loads(ACTION), indent=4),
        ACTION.replace("tool_call", "tool\\u005fcall").replace("type", "t\\u0079pe"),
        ACTION.replace('"args"', '"note": "an unknown key", "args"'),
    ],
)
def test_exactly_one_action_is_that_action(text: str) -> None:
    """Models wrap what they say; where there is one clear reading, it is taken."""
    assert parse_reply(text) == [CALL]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Milk is stored.",
        '{"answer": 42}',
        "[1, 2]",
        "[]",
        f'Look:\n{FENCE}json\n{{"type": "report", "rows": [{{"type": "row"}}]}}\n{FENCE}',
        '{"type": "tool", "tool": "note"}',
        'Set "type": "tool_call" in the object.',
        "Templates use {name}. The field type: tool_call marks a call.",
        "const answer = { type: 'final', value: 1 };",
        '{"note": "an action starts with {\\"type\\": \\"tool_call\\"}"}',
        "}}}{{{ tool_call [[[",
        '{"a": ' * 200 + "tool_call",
    ],
)
def test_text_without_an_action_is_the_answer_as_it_stands(text: str) -> None:
    """JSON that is not an action is only text, and the answer keeps its spelling."""
    assert parse_reply(text) == FinalText(text)


@pytest.mark.parametrize(
    "text",
    [
        ACTION + ACTION,
        f"First {ACTION} then {ACTION}",
        f"{FENCE}json\n{ACTION}\n{FENCE}\n{FENCE}json\n{ACTION}\n{FENCE}",
        f"Both: [{ACTION}, {ACTION}]",
        f'{ACTION} {{"type": "final", "content": "done"}}',
        f"{ACTION} and {ACTION[:-1]}",
        f"[{ACTION}, {ACTION}",
        f"[{ACTION}, 7]",
        f'[{ACTION}, {{"type": "final", "content": "done"}}]',
        f'{{"action": {ACTION}}}',
        f'{{"plan": [{{"step": {ACTION}}}]}}',
        f"[[{ACTION}]]",
    ],
)
def test_more_than_one_reading_runs_nothing(text: str) -> None:
    """Guessing which of two was meant would be an effect that nobody asked for."""
    assert isinstance(parse_reply(text), Malformed)


@pytest.mark.parametrize(
    "text",
    [
        ACTION[:-1],
        ACTION[:-12],
        ACTION.replace("}}", ",}}"),
        ACTION.replace('"', "'"),
        "{type: 'tool_call', tool: 'note', args: {}}",
        "{'args': {'a': 1}, 'type': 'agent_call', 'agent': 'x'}",
        json.dumps(ACTION),
        f"Calling {ACTION[:-1]} now",
        '{"type":"tool_call","type":"tool_call","tool":"note","args":{}}',
        '{"type":"tool_call","tool":"note","args":{"a":1,"a":2}}',
        '{"type":"tool_call","tool":"note","args":{"a":NaN}}',
        '{"type":"tool_call","tool":"note","args":{"a":1e999}}',
        '{"type":"tool_call","tool":"note","args":{"a":"\\ud800"}}',
        '{"type":"tool_call","tool":"note","args":' + "[" * 200 + "]" * 200 + "}",
        '{"type":"tool_call","tool":"note","args":{"a":"say "hi""}}',
        '{"type":"final","content":"say "hi""}',
    ],
)
def test_an_attempt_that_is_not_json_is_never_the_answer(text: str) -> None:
    """Internal text must not reach a person as if it were an answer, and half an action must not run."""
    reply = parse_reply(text)

    assert isinstance(reply, Malformed)
    assert '{"type":"tool_call","tool":"<name>","args":{...}}' in reply.message
    assert "milk" not in reply.message


@pytest.mark.parametrize(
    ("action", "flaw"),
    [
        ({"type": "tool_call", "args": {}}, '"tool"'),
        ({"type": "tool_call", "tool": 7, "args": {}}, '"tool"'),
        ({"type": "tool_call", "tool": " ", "args": {}}, '"tool"'),
        ({"type": "tool_call", "tool": "note", "arguments": {"text": "milk"}}, '"arguments"'),
        ({"type": "agent_call", "action": "infer", "prompt": "p"}, '"agent"'),
        ({"type": "agent_call", "agent": ["w"], "action": "infer", "prompt": "p"}, '"agent"'),
        ({"type": "agent_call", "agent": "w"}, '"action"'),
        ({"type": "agent_call", "agent": "w", "action": "run"}, '"action"'),
        ({"type": "agent_call", "agent": "w", "action": "infer"}, '"prompt"'),
        ({"type": "agent_call", "agent": "w", "action": "infer", "prompt": {"a": 1}}, '"prompt"'),
        ({"type": "agent_call", "agent": "w", "action": "tool_call"}, '"tool"'),
        ({"type": "agent_call", "agent": "w", "action": "tool_call", "tool": "t", "params": {}}, '"params"'),
        ({"type": "final"}, '"content"'),
    ],
)
def test_an_action_of_the_wrong_shape_names_the_field(action: Any, flaw: str) -> None:
    """The model can repair what it is told about; text and value are read the same way."""
    reply = proposals_from(action)

    assert isinstance(reply, Malformed)
    assert flaw in reply.message.partition(" Nothing was run")[0]
    assert parse_reply(json.dumps(action)) == reply


@pytest.mark.parametrize(
    ("action", "call"),
    [
        (
            {"type": "agent_call", "agent": "w", "action": "infer", "prompt": "p"},
            ProposedCall("agent_call", None, "w", "infer", "p", {}),
        ),
        (
            {"type": "agent_call", "agent": "w", "action": "tool_call", "tool": "t", "args": {"a": 1}},
            ProposedCall("agent_call", "t", "w", "tool_call", None, {"a": 1}),
        ),
    ],
)
def test_another_agent_is_asked_in_two_ways(action: Any, call: ProposedCall) -> None:
    """It gets a prompt or a tool call, and the proposal says which."""
    assert proposals_from(action) == [call]
    assert parse_reply(json.dumps(action)) == [call]


@pytest.mark.parametrize(
    ("given_args", "read"),
    [
        ('{"shop": "north"}', {"shop": "north"}),
        ("north", "north"),
        ('["north"]', '["north"]'),
        ('{"shop": 1, "shop": 2}', '{"shop": 1, "shop": 2}'),
        (None, None),
        (["north"], ["north"]),
        ([], []),
        (7, 7),
        ({"shop": None}, {"shop": None}),
        ({"Shop": "north"}, {"Shop": "north"}),
    ],
)
def test_arguments_have_one_clear_reading_or_stay_as_they_are(given_args: Any, read: Any) -> None:
    """An object encoded twice is that object; everything else is for validation to judge, unchanged."""
    action: dict[str, Any] = {"type": "tool_call", "tool": "report", "args": given_args}

    for reply in (proposals_from(action), parse_reply(json.dumps(action))):
        assert reply == [ProposedCall("tool_call", "report", None, None, None, read)]


def test_missing_arguments_are_none_at_all() -> None:
    """A tool without parameters is often called without the key."""
    assert parse_reply('{"type":"tool_call","tool":"now"}') == [
        ProposedCall("tool_call", "now", None, None, None, {}),
    ]


def test_a_bare_array_is_one_reply_with_several_calls() -> None:
    """Calls that belong together come in the order in which they were written."""
    other: dict[str, Any] = {"type": "tool_call", "tool": "other", "args": {}}
    calls = [CALL, ProposedCall("tool_call", "other", None, None, None, {})]

    assert parse_reply(f" [{ACTION}, {json.dumps(other)}]\n") == calls
    assert proposals_from([json.loads(ACTION), other]) == calls


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("done", "done"),
        ("", ""),
        ({"a": [1, "é"]}, '{"a":[1,"é"]}'),
        (None, "null"),
        ([json.loads(ACTION)], f"[{ACTION}]"),
    ],
)
def test_a_final_action_is_the_answer_whatever_it_contains(content: Any, answer: str) -> None:
    """It is the way to answer with text that looks like an action."""
    action = {"type": "final", "content": content}

    assert proposals_from(action) == FinalText(answer)
    assert parse_reply(json.dumps(action)) == FinalText(answer)
    assert parse_reply(f"So: {json.dumps(action)}") == FinalText(answer)


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ({"total": 3, "of": [1]}, '{"total":3,"of":[1]}'),
        ({"type": "report"}, '{"type":"report"}'),
        ([1, "two"], '[1,"two"]'),
        (None, "null"),
        (7, "7"),
        ("plain", "plain"),
        ({"nan": float("nan")}, '{"nan":"NaN"}'),
    ],
)
def test_a_value_without_an_action_is_an_answer_in_json(value: Any, answer: str) -> None:
    """A scripted model may answer with an object as it is."""
    assert proposals_from(value) == FinalText(answer)


def test_a_value_that_contains_itself_is_read_to_an_end() -> None:
    """A scripted model is Python and can give anything."""
    value: list[Any] = [{"type": "row"}]
    value.append(value)

    assert isinstance(proposals_from(value), FinalText)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 10**5,
        "[" * 10**5,
        '{"a":' * 10**5,
        '{"' * 10**6,
        "[{" * 10**6,
        '{"type":"tool_call",' * 10**5,
        '{"a":1}' * 10**5,
        "{ " * 10**6,
        "{" + " " * 2 * 10**6,
        '"\\' * 10**6,
        '{"a":"' + '\\"' * 10**6,
        "type " * 4 * 10**5,
        "type" + "\\" * 10**6,
        "x" * 2 * 10**6,
        "[" + "[1]," * 10**5,
    ],
)
def test_hostile_text_is_read_in_one_pass(text: str) -> None:
    """Reading any of these more than once per character would take minutes and stop the suite."""
    assert parse_reply(text + " tool_call") != []


def test_a_reply_has_a_greatest_length() -> None:
    """Beyond it nothing is searched, not even for an action."""
    assert isinstance(parse_reply(ACTION + " " * MAX_REPLY_CHARS), Malformed)


fragments = st.sampled_from(
    [
        ACTION,
        "{",
        "}",
        "[",
        "]",
        '"',
        "'",
        ",",
        ":",
        "\\",
        FENCE,
        '"type"',
        '"tool_call"',
        '"final"',
        "\ud800",
        " ",
        "\n",
    ]
)


@given(st.lists(fragments, max_size=12).map("".join) | st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_text_has_a_meaning(text: str) -> None:
    """Reading never raises; an answer is the text itself, and a call is one that stands in the text."""
    match parse_reply(text):
        case FinalText(content):
            assert content == text
        case Malformed(message):
            assert message
        case calls:
            assert calls == [CALL] * text.count(ACTION)


@given(st.text("abc {}[]\"':,\n", max_size=20), st.text("abc {}[]\"':,\n", max_size=20))
def test_an_action_within_any_prose_runs_or_is_corrected(before: str, after: str) -> None:
    """Whatever stands around it, an action is never delivered as the answer and never becomes another one."""
    reply = parse_reply(before + ACTION + after)

    assert reply == [CALL] or isinstance(reply, Malformed)


@given(
    st.recursive(
        st.none() | st.booleans() | st.text(max_size=9),
        lambda v: (
            st.lists(v)
            | st.dictionaries(
                st.sampled_from(["type", "tool", "args", "agent", "action", "content"]),
                v | st.sampled_from(["tool_call", "agent_call", "final", "infer"]),
            )
        ),
    )
)
def test_any_value_has_the_meaning_of_its_text(value: Any) -> None:
    """A model that gives values and one that gives text are read alike, down to the last answer in JSON."""
    reply = proposals_from(value)

    if isinstance(value, (list, dict)) and not isinstance(reply, FinalText):
        assert parse_reply(json.dumps(value)) == reply
