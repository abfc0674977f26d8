"""Conversations that come to a model of the other form."""

from __future__ import annotations

from typing import Any

from protolink.llms.history import as_json_actions, as_native_calls, forms_of

QUESTION = {"role": "user", "content": "go"}
NATIVE: list[dict[str, Any]] = [
    {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "add", "arguments": {"left": 1}}]},
    {"role": "tool", "content": "3", "tool_call_id": "1"},
]
SAID: list[dict[str, Any]] = [
    {"role": "assistant", "content": '{"type":"tool_call","tool":"add","args":{"left":1}}'},
    {"role": "tool", "content": "3", "tool_call_id": "r.1"},
]


def test_forms_are_recognized() -> None:
    """A conversation without calls fits every model."""
    assert forms_of([QUESTION]) == set()
    assert forms_of([QUESTION, *NATIVE]) == {True}
    assert forms_of([QUESTION, *SAID]) == {False}
    assert forms_of([QUESTION, *SAID, *NATIVE]) == {True, False}


def test_native_calls_become_actions() -> None:
    """A model that says JSON reads what it would have said itself."""
    assistant, result = as_json_actions(NATIVE)

    assert assistant == SAID[0]
    assert result == NATIVE[1]


def test_several_native_calls_become_one_array() -> None:
    """One reply with several calls is an array in JSON."""
    call = NATIVE[0]["tool_calls"][0]
    message = {**NATIVE[0], "tool_calls": [call, call]}

    assert as_json_actions([message])[0]["content"].startswith('[{"type":"tool_call"')


def test_only_results_without_a_native_call_become_words() -> None:
    """Providers refuse a result whose call they cannot find, and need one for each call."""
    converted = as_native_calls([*SAID, *NATIVE])

    assert [message["role"] for message in converted] == ["assistant", "user", "assistant", "tool"]
    assert converted[2:] == NATIVE
