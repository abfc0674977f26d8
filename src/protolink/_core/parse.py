"""What a model's text means, when actions travel as JSON.

One recognisable action is that action, whether it stands alone, in a fence or within prose. Two of them, or
something that tries to be one and fails, is a mistake that the model can correct, and nothing runs. Text
without an action is the answer. The one exception is a reply that is a JSON array and nothing else: it may
propose several calls.

Reading takes one pass over the text, whatever the text is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from protolink._json import JSON, JSONError, dumps, parse, render

__all__ = ["MAX_REPLY_CHARS", "FinalText", "Malformed", "ProposedCall", "Reply", "parse_reply", "proposals_from"]

MAX_REPLY_CHARS = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProposedCall:
    """An action as the model wrote it; nobody has checked yet whether the tool, the agent or the arguments exist."""

    kind: Literal["tool_call", "agent_call"]
    tool: str | None
    agent: str | None
    action: Literal["infer", "tool_call"] | None
    """What the other agent is asked for; None for a tool call."""
    prompt: str | None
    args: JSON
    """Whatever stood in the action, not necessarily an object; an empty object where nothing stood."""


@dataclass(frozen=True, slots=True)
class FinalText:
    """The model answered."""

    content: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """The model tried to act and did not manage to say how."""

    message: str
    """For the model: what is wrong and what is right. It repeats nothing of the reply."""


Reply: TypeAlias = list[ProposedCall] | FinalText | Malformed


def parse_reply(text: str) -> Reply:
    """Read a model's reply; any text at all has a meaning."""
    if len(text) > MAX_REPLY_CHARS:
        return _malformed(f"The reply is longer than {MAX_REPLY_CHARS} characters.")
    if not _may_act(text):
        return FinalText(text)
    bare = _bare_value(text)
    if isinstance(bare, list):
        return _several(bare) or FinalText(text)
    if bare is not None:
        return _alone([bare], text)
    blocks = _json_blocks(text)
    flaw = _attempt_outside(text, blocks)
    if flaw is not None:
        return _malformed(f"The reply has an action that is not valid JSON ({flaw}).")
    return _alone([value for _, _, value in blocks.parsed], text)


def proposals_from(value: JSON) -> Reply:
    """Read a reply that is a value already: an action, a list of them, or an answer of any other shape."""
    if isinstance(value, str):
        return parse_reply(value)
    if _is_action(value):
        return _one(cast("dict[str, JSON]", value))
    reply = _several(value) if isinstance(value, list) else None
    return reply or FinalText(_compact(value))


_ACTIONS = ("tool_call", "agent_call", "final")


def _is_action(value: JSON) -> bool:
    return isinstance(value, dict) and value.get("type") in _ACTIONS


def _holds_call(value: JSON) -> bool:
    """Whether a call is hidden anywhere inside; `final` is too common a word to be taken for an attempt."""
    pending: list[JSON] = [value]
    seen: set[int] = set()  # a scripted value may contain itself
    while pending:
        current = pending.pop()
        if not isinstance(current, (dict, list)) or id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, list):
            pending.extend(current)
        elif current.get("type") in ("tool_call", "agent_call"):
            return True
        else:
            pending.extend(current.values())
    return False


def _alone(values: list[JSON], text: str) -> Reply:
    """The one action among the values found in a text; the text itself is the answer where there is none."""
    actions: list[dict[str, JSON]] = []
    for value in values:
        for candidate in value if isinstance(value, list) else [value]:
            if _is_action(candidate):
                actions.append(cast("dict[str, JSON]", candidate))
            elif _holds_call(candidate):
                return _malformed("The reply has an action inside another JSON value.")
    if len(actions) > 1:
        return _malformed(f"The reply has {len(actions)} actions that are not one JSON array.")
    return _one(actions[0]) if actions else FinalText(text)


def _one(action: dict[str, JSON]) -> Reply:
    reading = _read(action)
    return [reading] if isinstance(reading, ProposedCall) else reading


def _several(values: list[JSON]) -> Reply | None:
    """The calls of a list, or None when the list has nothing to do with actions."""
    if len(values) == 1 and _is_action(values[0]):
        return _one(cast("dict[str, JSON]", values[0]))
    if not any(_is_action(value) or _holds_call(value) for value in values):
        return None
    calls: list[ProposedCall] = []
    for number, value in enumerate(values, 1):
        if not _is_action(value):
            return _malformed(f"Item {number} of the list is not an action.")
        reading = _read(cast("dict[str, JSON]", value))
        if isinstance(reading, Malformed):
            return reading
        if isinstance(reading, FinalText):
            return _malformed("The list has a final answer beside other actions.")
        calls.append(reading)
    return calls


def _read(action: dict[str, JSON]) -> ProposedCall | FinalText | Malformed:
    match action["type"]:
        case "tool_call":
            return _tool_call(action)
        case "agent_call":
            return _agent_call(action)
        case _:
            if "content" not in action:
                return _malformed('The action of type "final" has no "content".')
            content = action["content"]
            return FinalText(content if isinstance(content, str) else _compact(content))


def _tool_call(action: dict[str, JSON]) -> ProposedCall | Malformed:
    tool = action.get("tool")
    if not _is_name(tool):
        return _malformed('The "tool" of a tool_call must be the name of a tool.')
    flaw = _misplaced_args(action)
    if flaw is not None:
        return flaw
    return ProposedCall("tool_call", cast(str, tool), None, None, None, _args(action))


def _agent_call(action: dict[str, JSON]) -> ProposedCall | Malformed:
    agent = action.get("agent")
    if not _is_name(agent):
        return _malformed('The "agent" of an agent_call must be the name of an agent.')
    if action.get("action") == "infer":
        prompt = action.get("prompt")
        if not _is_name(prompt):
            return _malformed('The "prompt" of an agent_call with the action "infer" must be a text.')
        return ProposedCall("agent_call", None, cast(str, agent), "infer", cast(str, prompt), {})
    if action.get("action") == "tool_call":
        tool = action.get("tool")
        if not _is_name(tool):
            return _malformed('The "tool" of an agent_call with the action "tool_call" must be the name of a tool.')
        flaw = _misplaced_args(action)
        if flaw is not None:
            return flaw
        return ProposedCall("agent_call", cast(str, tool), cast(str, agent), "tool_call", None, _args(action))
    return _malformed('The "action" of an agent_call must be "infer" or "tool_call".')


def _is_name(value: JSON) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _misplaced_args(action: dict[str, JSON]) -> Malformed | None:
    """Arguments under another provider's name, which would otherwise be a call without arguments."""
    if "args" not in action:
        for key in ("arguments", "parameters", "params", "input"):
            if key in action:
                return _malformed(f'The arguments of a call belong in "args", not in "{key}".')
    return None


def _args(action: dict[str, JSON]) -> JSON:
    args = action.get("args", {})
    if isinstance(args, str):  # encoded twice has one clear reading; any other text is for validation to refuse
        try:
            decoded = parse(args)
        except JSONError:
            return args
        if isinstance(decoded, dict):
            return decoded
    return args


def _compact(value: JSON) -> str:
    try:
        return dumps(value)
    except (ValueError, TypeError, RecursionError):  # a scripted model may give what JSON cannot carry
        return dumps(render(value)[0])


def _malformed(flaw: str) -> Malformed:
    return Malformed(
        f"{flaw} Nothing was run. Reply with one JSON object and nothing around it: "
        '{"type":"tool_call","tool":"<name>","args":{...}} to use a tool, '
        '{"type":"agent_call","agent":"<name>","action":"infer","prompt":"..."} or '
        '{"type":"agent_call","agent":"<name>","action":"tool_call","tool":"<name>","args":{...}} to ask an agent, '
        'or {"type":"final","content":"..."} to answer. Several calls go into one JSON array, with nothing around it.'
    )


def _bare_value(text: str) -> dict[str, JSON] | list[JSON] | None:
    """The object or array that is the whole text, if it is one."""
    stripped = text.strip(" \t\r\n")
    if stripped[:1] + stripped[-1:] not in ("{}", "[]"):
        return None
    try:
        value = parse(stripped)
    except JSONError:
        return None
    return value if isinstance(value, (dict, list)) else None


def _may_act(text: str) -> bool:
    # An escape may spell the words differently. Everything else without them is an answer, whatever it contains.
    return "tool_call" in text or "agent_call" in text or '"final"' in text or "\\u" in text


@dataclass(slots=True)
class _Blocks:
    """The stretches of a text that look like JSON objects, or like arrays of them, in order and disjoint."""

    parsed: list[tuple[int, int, JSON]]
    broken: list[tuple[int, int, str]]


# Where an object with a member begins, or an array of objects.
_OPENING = re.compile(r'\{\s*+"|\[\s*+\{')
# A string or a bracket. An unfinished string matches up to the end, so that every character is read once.
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
# What an attempted action looks like, also with a quotation mark of the wrong kind or none. `final` counts
# only when it is spelled as JSON, because answers with source code contain the other spellings.
_ATTEMPT = re.compile(r"""[{}]|\btype\\*+['"]?\s*+:\s*+\\*+['"]?(?:tool_call|agent_call)\b|"type"\s*+:\s*+"final\"""")


def _json_blocks(text: str) -> _Blocks:
    blocks = _Blocks([], [])
    at = 0
    while (opening := _OPENING.search(text, at)) is not None:
        start = opening.start()
        end = _block_end(text, start)
        if end is None:
            blocks.broken.append((start, len(text), "it has no end"))
            break
        # Going on behind a block that is not JSON, rather than inside it, keeps the time linear.
        at = end
        block = text[start:end]
        if not _may_act(block):
            continue
        try:
            blocks.parsed.append((start, end, parse(block)))
        except JSONError as error:
            blocks.broken.append((start, end, str(error)))
    return blocks


def _block_end(text: str, start: int) -> int | None:
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(text, start):
        mark = text[token.start()]
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
            if not depth:
                return token.end()
    return None


def _attempt_outside(text: str, blocks: _Blocks) -> str | None:
    """What is wrong with the first action-like thing in braces that is not part of valid JSON."""
    starts = [0, *(end for _, end, _ in blocks.parsed)]
    ends = [*(start for start, _, _ in blocks.parsed), len(text)]
    depth = 0
    for start, end in zip(starts, ends, strict=True):
        for token in _ATTEMPT.finditer(text, start, end):
            position = token.start()
            mark = text[position]
            if mark == "{":
                depth += 1
            elif mark == "}":
                depth = max(depth - 1, 0)
            elif depth:
                return next((why for a, b, why in blocks.broken if a <= position < b), "it is not JSON")
    return None
