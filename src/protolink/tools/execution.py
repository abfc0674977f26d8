"""What a running tool knows of the action it executes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from protolink._json import require_json
from protolink.action import RunAction, running
from protolink.context import RunBudget, RunContext
from protolink.errors import TaskExecutionError
from protolink.policy.approvals import ApprovalDecision, ApprovalRequest
from protolink.policy.policies import PolicyDecision

__all__ = ["Authorization", "Cancellation", "ToolExecution", "current_execution", "report_progress"]

_OWN_EVENTS: Final = ("task.", "llm.", "action.", "approval.", "input.", "budget.")
_EVENT_TYPE: Final = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Authorization:
    """Why an action may run: the exact action, and who allowed it."""

    action: RunAction
    policy_decision: PolicyDecision
    approval_request: ApprovalRequest | None
    approval_decision: ApprovalDecision | None
    authorized_at: str


class Cancellation(Protocol):
    """Whether the run was told to stop."""

    @property
    def canceled(self) -> bool:
        """Whether it was."""
        ...

    @property
    def reason(self) -> str | None:
        """Why, where a reason was given."""
        ...


class ToolExecution:
    """One entered action: what was authorized, in which run, and how long it may take.

    An executor receives it; any other tool finds it with `current_execution()`. It can be used from the
    tool's worker thread.
    """

    __slots__ = ("_authorize", "_authorized", "_emit", "_remaining", "cancellation", "context", "task_id")

    def __init__(
        self,
        *,
        authorize: Callable[[], Authorization],
        emit: Callable[[str, dict[str, Any]], None],
        remaining: Callable[[], float | None],
        cancellation: Cancellation,
        context: RunContext,
        task_id: str,
    ) -> None:
        self._authorize = authorize
        self._authorized: Authorization | None = None
        self._emit = emit
        self._remaining = remaining
        self.cancellation: Cancellation = cancellation
        self.context: RunContext = context
        self.task_id: str = task_id

    @property
    def authorization(self) -> Authorization:
        """The authorization under which the action was entered."""
        if self._authorized is None:
            self._authorized = self._authorize()
        return self._authorized

    @property
    def action(self) -> RunAction:
        """The action itself."""
        return self.authorization.action

    @property
    def budget(self) -> RunBudget:
        """The limits of the run."""
        return self.context.budget

    @property
    def remaining_seconds(self) -> float | None:
        """Seconds until the run's deadline or the tool's timeout, whichever is first; None without either."""
        return self._remaining()

    def check(self) -> None:
        """Raise `TaskExecutionError` once the run was told to stop, so that long work can end early."""
        if self.cancellation.canceled:
            raise TaskExecutionError(self.cancellation.reason or "the run was stopped", code="canceled")

    def emit(self, event_type: str, **payload: Any) -> None:
        """Put an event of the tool's own into the run's stream.

        Raises `ValueError` for a type that is none or belongs to the runtime, and `TypeError` for a
        payload that JSON cannot carry.
        """
        if not _EVENT_TYPE.fullmatch(event_type) or event_type.startswith(_OWN_EVENTS):
            raise ValueError(
                f"{event_type!r} is no event type for a tool; write lower case words joined by dots, "
                f"and none of the runtime's own ({', '.join(_OWN_EVENTS)})"
            )
        self._emit(event_type, require_json(payload, "payload"))


def current_execution() -> ToolExecution:
    """The execution that the running tool belongs to. Raises `LookupError` outside a tool."""
    try:
        return cast("ToolExecution", running.get())
    except LookupError:
        raise LookupError("current_execution() has an answer only inside a running tool") from None


def report_progress(event_type: str, **payload: Any) -> None:
    """Emit an event from inside a tool; short for `current_execution().emit(...)`."""
    current_execution().emit(event_type, **payload)
