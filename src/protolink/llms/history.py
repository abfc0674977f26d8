"""A conversation whose calls were said in one form, for a model that says them in the other.

A run can come to another model in its middle, and a session can be gone on with by another agent's model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from protolink._json import dumps

__all__ = ["as_json_actions", "as_native_calls", "forms_of"]

Message = Mapping[str, Any]


def forms_of(messages: Iterable[Message]) -> set[bool]:
    """The forms that calls have in a conversation: True is a provider's own, False is JSON actions."""
    forms: set[bool] = set()
    native = False
    for message in messages:
        if message["role"] == "assistant":
            native = bool(message.get("tool_calls"))
        elif message["role"] == "tool":
            forms.add(native)
    return forms


def as_json_actions(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Native calls as the actions that a model in JSON mode would have said."""
    converted: list[dict[str, Any]] = []
    for message in messages:
        plain = dict(message)
        calls = plain.pop("tool_calls", None)
        if calls:
            actions = [{"type": "tool_call", "tool": one["name"], "args": one["arguments"]} for one in calls]
            plain["content"] = dumps(actions[0] if len(actions) == 1 else actions)
        converted.append(plain)
    return converted


def as_native_calls(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Results of JSON actions as words of the user, for a provider takes a result only after a call of its own form."""
    converted: list[dict[str, Any]] = []
    native = False
    for message in messages:
        if message["role"] == "assistant":
            native = bool(message.get("tool_calls"))
        if message["role"] == "tool" and not native:
            converted.append({"role": "user", "content": message["content"]})
        else:
            converted.append(dict(message))
    return converted
