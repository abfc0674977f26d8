"""What clients send, read strictly: a field that is not known is refused, and so is a value that does not fit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from starlette.requests import Request

from protolink._core.budget import DEFAULT_MAX_STEPS
from protolink._json import JSON
from protolink._runtime.resume import UNSET
from protolink.context import RunBudget
from protolink.transport.http.guard import HEADERS
from protolink.transport.http.problems import Problem

__all__ = ["BUDGET_FIELDS", "MAX_NUMBER", "Decision", "NewRun", "cursor", "flag", "idempotency_key", "narrowed"]

MAX_NUMBER: Final = 2**53 - 1
"""What every JSON reader can carry; a limit above it is none."""

_SESSION: Final = re.compile(r"[ -~]{1,200}")
_KEY: Final = re.compile(r"[!-~]{1,200}")
_NUMBER: Final = re.compile(r"[0-9]{1,16}")
_MAX_NAME: Final = 200
_MAX_TOOLS: Final = 100

BUDGET_FIELDS: Final[Mapping[str, bool]] = {
    "max_steps": True,
    "max_llm_calls": True,
    "max_tool_calls": True,
    "max_input_tokens": True,
    "max_output_tokens": True,
    "max_runtime_seconds": False,
    "max_cost": False,
}
"""The limits that a client may narrow, and whether each is a whole number; `max_calls` besides."""

_UNSAID: Final = RunBudget(max_steps=DEFAULT_MAX_STEPS)
"""What a run may use where the application says nothing."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that is asked for."""

    agent: str
    prompt: str
    session_id: str | None
    budget: RunBudget | None

    @classmethod
    def from_body(cls, body: JSON) -> NewRun:
        """Read the body of `POST /runs`. Raises a `Problem`."""
        given = _object(body, required=("agent", "prompt"), optional=("session_id", "budget"))
        prompt = _text(given, "prompt")
        if not prompt.strip():
            raise Problem(422, "prompt is blank")
        session_id: Any = given.get("session_id")
        if session_id is not None and not (isinstance(session_id, str) and _SESSION.fullmatch(session_id)):
            raise Problem(422, "session_id has to be a text of 1 to 200 visible ASCII characters")
        budget = given.get("budget")
        return cls(
            _text(given, "agent", most=_MAX_NAME), prompt, session_id, None if budget is None else _budget(budget)
        )


@dataclass(frozen=True, slots=True)
class Decision:
    """An answer to what a run waits for."""

    request_id: str
    approved: bool | None
    answer: Any
    fingerprint: str | None

    @classmethod
    def from_body(cls, body: JSON) -> Decision:
        """Read the body of `POST /runs/{id}/decisions`. Raises a `Problem`."""
        given = _object(body, required=("request_id",), optional=("approved", "answer", "fingerprint"))
        if ("approved" in given) == ("answer" in given):
            raise Problem(422, "a decision has either approved or answer")
        if "approved" in given and not isinstance(given["approved"], bool):
            raise Problem(422, "approved has to be true or false")
        fingerprint = _text(given, "fingerprint", most=_MAX_NAME) if given.get("fingerprint") is not None else None
        approved: Any = given.get("approved")
        return cls(_text(given, "request_id", most=_MAX_NAME), approved, given.get("answer", UNSET), fingerprint)

    def to_response(self) -> dict[str, Any]:
        """The answer as `Agent.resume_run` takes it."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def require_empty(body: JSON) -> None:
    """A body that says nothing. Raises a `Problem`."""
    if body is not None:
        _object(body)


def _object(body: JSON, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> dict[str, JSON]:
    known = required + optional
    if not isinstance(body, dict):
        raise Problem(422, "the body has to be an object")
    if not body.keys() <= set(known):
        raise Problem(422, f"the body has a field that is not known; {_listed(known)}")
    for name in required:
        if name not in body:
            raise Problem(422, f"the body has no {name}")
    return body


def _listed(known: tuple[str, ...]) -> str:
    return f"known are {', '.join(known)}" if known else "it has none"


def _text(given: Mapping[str, JSON], name: str, *, most: int | None = None) -> str:
    value = given[name]
    if not isinstance(value, str) or not value or (most is not None and len(value) > most):
        raise Problem(422, f"{name} has to be a text that is not empty" + ("" if most is None else f", up to {most}"))
    return value


def _budget(value: JSON) -> RunBudget:
    if not isinstance(value, dict) or not value.keys() <= {*BUDGET_FIELDS, "max_calls"}:
        raise Problem(422, f"budget has to be an object; known are {', '.join(BUDGET_FIELDS)}, max_calls")
    limits: dict[str, Any] = {
        name: _limit(f"budget.{name}", value[name], whole=whole)
        for name, whole in BUDGET_FIELDS.items()
        if value.get(name) is not None
    }
    calls = value.get("max_calls")
    if calls is None:
        return RunBudget(**limits)
    if not isinstance(calls, dict) or len(calls) > _MAX_TOOLS:
        raise Problem(422, f"budget.max_calls has to be an object of up to {_MAX_TOOLS} fields")
    counts = {tool: _limit("a number of budget.max_calls", count, whole=True) for tool, count in calls.items()}
    return RunBudget(**limits, max_calls=counts)


def _limit(name: str, value: JSON, *, whole: bool) -> Any:
    # In JSON 3.0 is the whole number 3.
    number = int(value) if whole and isinstance(value, float) and value.is_integer() else value
    allowed = int if whole else int | float
    if isinstance(number, bool) or not isinstance(number, allowed) or not 0 <= number <= MAX_NUMBER:
        raise Problem(422, f"{name} has to be a {'whole ' if whole else ''}number from 0 to {MAX_NUMBER}")
    return number


def narrowed(asked: RunBudget | None, allowed: RunBudget | None) -> RunBudget | None:
    """The smaller limit of each kind. Without an application's own budget, those of a run that has none hold."""
    if asked is None:
        return allowed
    allowed = allowed or _UNSAID
    limits = {name: _smaller(getattr(asked, name), getattr(allowed, name)) for name in BUDGET_FIELDS}
    calls = {**asked.max_calls, **allowed.max_calls}
    calls = {tool: min(count, asked.max_calls.get(tool, count)) for tool, count in calls.items()}
    return RunBudget(**limits, max_calls=calls, metadata=dict(allowed.metadata))


def _smaller(first: Any, second: Any) -> Any:
    return second if first is None else first if second is None else min(first, second)


def idempotency_key(request: Request) -> str | None:
    """The key that makes sending a request again harmless. Raises a `Problem` for one that is none."""
    given: str | None = request.scope[HEADERS].get("idempotency-key")
    if given is not None and not _KEY.fullmatch(given):
        raise Problem(400, "an Idempotency-Key has 1 to 200 visible ASCII characters")
    return given


def cursor(request: Request) -> int:
    """The number behind which to begin: `Last-Event-ID`, which a browser sends, or else the parameter `after`."""
    text = request.scope[HEADERS].get("last-event-id") or request.query_params.get("after")
    if text is None:
        return 0
    if not _NUMBER.fullmatch(text) or int(text) > MAX_NUMBER:
        raise Problem(400, "Last-Event-ID, or after, has to be the number of an event")
    return int(text)


def flag(request: Request, name: str) -> bool:
    """A parameter that is `true` or `false`. Raises a `Problem` for anything else."""
    text = request.query_params.get(name, "false") if request.scope["query_string"] else "false"
    if text not in ("true", "false"):
        raise Problem(400, f"{name} has to be true or false")
    return text == "true"
