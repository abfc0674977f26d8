"""A conversation as every provider accepts it, whatever interrupted it.

The runtime's history is a list of messages in the order in which they became known. Providers want more: each
call answered by exactly one result right behind it, user and assistant by turns, nothing empty, every id its
own. `conversation` gives turns that have these properties for any history; an adapter only writes them down.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from protolink._json import digest, dumps, is_mapping

__all__ = ["AssistantTurn", "Call", "Result", "UserTurn", "conversation", "is_plain_id"]

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

UNKNOWN_RESULT: Final = dumps(
    {"type": "tool_unknown", "status": "unknown", "message": "The run was interrupted; no result is known."}
)
NOTHING: Final = "(nothing)"
"""What stands for a message of the user that is missing or blank, where a provider must have one."""

GO_ON: Final = "Go on."


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call that the model made. Its id is its own in the whole conversation."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one call of the turn before."""

    id: str
    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UserTurn:
    """The application's side: a result for each call of the turn before, in their order, then what it says."""

    results: tuple[Result, ...] = ()
    text: str = ""
    """Blank only where there are results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistantTurn:
    """The model's side. Text or calls, or both."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    state: Mapping[str, Any] | None = None
    """What the provider gave to be sent back with the turn."""


def is_plain_id(text: str) -> bool:
    """Whether a call's id can be sent to any provider but the strictest."""
    return _PLAIN_ID.fullmatch(text) is not None


def conversation(
    messages: Sequence[Mapping[str, Any]],
    *,
    native: bool,
    is_id: Callable[[str], bool] = is_plain_id,
    id_length: int = 28,
) -> list[UserTurn | AssistantTurn]:
    """The turns of a history, beginning and ending with the user's and by turns between.

    With `native` calls stay calls; otherwise they and their results are texts. An id that `is_id` refuses, or
    that an earlier call had, is replaced by one of `id_length` letters and digits, the same one every time.
    """
    told = _Telling(native, is_id, id_length)
    for message in messages:
        told.hear(message)
    return told.end()


class _Open:
    """A call whose result is looked for until the next turn of the assistant."""

    __slots__ = ("call", "said_id", "text")

    def __init__(self, call: Call, said_id: object) -> None:
        self.call = call
        self.said_id = said_id
        self.text: str | None = None


class _Telling:
    def __init__(self, native: bool, is_id: Callable[[str], bool], id_length: int) -> None:
        self._native = native
        self._is_id = is_id
        self._id_length = id_length
        self._turns: list[UserTurn | AssistantTurn] = []
        self._open: list[_Open] = []
        self._texts: list[str] = []
        self._ids: set[str] = set()

    def hear(self, message: Mapping[str, Any]) -> None:
        content = str(message.get("content") or "")
        role = message.get("role")
        if role == "assistant":
            self._assistant(message, content)
        elif not (role == "tool" and self._answered(message.get("tool_call_id"), content)) and (content.strip()):
            self._texts.append(content)

    def end(self) -> list[UserTurn | AssistantTurn]:
        self._user_turn()
        if not self._turns or isinstance(self._turns[0], AssistantTurn):
            self._turns.insert(0, UserTurn(text=NOTHING))
        if isinstance(self._turns[-1], AssistantTurn):
            self._turns.append(UserTurn(text=GO_ON))
        return self._turns

    def _answered(self, said_id: object, content: str) -> bool:
        """Whether a result belongs to a call of the last turn; one that comes late is a text like any other."""
        for candidate in self._open:
            if candidate.said_id == said_id and candidate.text is None:
                candidate.text = content
                return True
        return False

    def _assistant(self, message: Mapping[str, Any], text: str) -> None:
        said: Sequence[Mapping[str, Any]] = message.get("tool_calls") or ()
        if said and not self._native:
            text, said = text if text.strip() else _as_actions(said), ()
        text = text if text.strip() else ""
        if not text and not said:
            return
        self._user_turn()
        calls = tuple(self._call(call) for call in said)
        state = message.get("provider_state")
        last = self._turns[-1] if self._turns else None
        if isinstance(last, AssistantTurn):
            text = f"{last.text}\n\n{text}" if text else last.text
            self._turns.pop()
        self._turns.append(AssistantTurn(text=text, calls=calls, state=state))
        self._open = [_Open(call, given.get("id")) for call, given in zip(calls, said, strict=True)]

    def _user_turn(self) -> None:
        if self._open or self._texts:
            results = tuple(Result(id=one.call.id, name=one.call.name, text=_told(one.text)) for one in self._open)
            self._turns.append(UserTurn(results=results, text="\n\n".join(self._texts)))
            self._open, self._texts = [], []

    def _call(self, said: Mapping[str, Any]) -> Call:
        arguments = said.get("arguments")
        return Call(
            id=self._own_id(str(said.get("id") or "")),
            name=_safe_name(str(said.get("name") or "")),
            # What the model said was not an object, and was refused; it is sent back as one all the same.
            arguments=dict(arguments) if is_mapping(arguments) else {"arguments": arguments},
        )

    def _own_id(self, said: str) -> str:
        own, number = said, 0
        while own in self._ids or not self._is_id(own):
            number += 1
            own = digest(f"{said}/{number}")[: self._id_length]
        self._ids.add(own)
        return own


def _told(result: str | None) -> str:
    if result is None:
        return UNKNOWN_RESULT
    return result if result.strip() else NOTHING


def _safe_name(name: str) -> str:
    """A name that may be sent: a model can have made up one that its provider would not take back."""
    return name if _NAME.fullmatch(name) else f"_{_NOT_IN_A_NAME.sub('_', name)[:63]}"


def _as_actions(said: Sequence[Mapping[str, Any]]) -> str:
    """Native calls as the JSON actions that they stand for."""
    actions = [{"type": "tool_call", "tool": call.get("name"), "args": call.get("arguments")} for call in said]
    return dumps(actions[0] if len(actions) == 1 else actions)
