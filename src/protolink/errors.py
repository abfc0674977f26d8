"""Every error the library raises, grouped by what the caller does next.

::

    ProtolinkError
    ├── ConfigurationError (ValueError)   fix the wiring: nothing has run
    │   └── ToolDefinitionError           a tool's signature, schema or name cannot be offered to a model
    ├── ToolRejectedError                 let the model try again: nothing changed
    ├── TaskExecutionError                read the outcome: the run ended without an answer
    │   ├── ActionDeniedError             a policy or a person said no
    │   ├── ApprovalRequiredError         an approval is needed and nobody is there to give it
    │   ├── BudgetExceededError           a hard limit of the run was reached
    │   ├── CompletionFailedError         the answer was given, and the receipts do not bear it out
    │   ├── InferParseError               the model's replies could not be understood
    │   ├── ToolCorrectionLimitError      the model used up its allowance of corrections
    │   ├── ToolFailedError               a tool raised; the cause is its own exception
    │   ├── ModelFailedError              the model or its factory failed; the run itself is unharmed
    │   └── SubagentLimitError            more children, or deeper ones, than the application allows
    ├── UncertainExecutionError           look before retrying: an effect may have happened
    ├── RunInterrupted                    decide: the run waits for an answer or another slice
    └── DurableExecutionError             look at the store: the attempt stopped, the run did not end
        ├── RunBusyError                  somebody else drives this run
        ├── RunExistsError                a root run of this id is there already
        ├── UnknownRunError               the store knows no root run of this id
        ├── LostRunError                  somebody else took the run over
        ├── CheckpointMismatchError       the configuration is not the one that was stored
        └── StoreError                    the store itself could not do it
            ├── StoreBusyError            its write lock was held for too long
            ├── StoreFullError            there is no room left
            ├── StoreReadOnlyError        it cannot be written
            ├── StoreDamagedError         it was changed by somebody else, or is no store
            ├── StoreKeyError             it was written with another integrity key, or none was given
            ├── StoreVersionError         it was written by a newer release
            └── StoreClosedError          it was closed

Those of one port alone live beside it: `TransportError` in `protolink.transport`, `StorageError` in
`protolink.storage`, `ModelCallError` in `protolink.llms`. Messages name the thing, what was wrong and what to do.
They carry no argument values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protolink._json import require_json
from protolink.interruption import RunInterruption

if TYPE_CHECKING:
    from protolink.task import Task

__all__ = [
    "ActionDeniedError",
    "ApprovalRequiredError",
    "BudgetExceededError",
    "CheckpointMismatchError",
    "CompletionFailedError",
    "ConfigurationError",
    "DurableExecutionError",
    "InferParseError",
    "LostRunError",
    "ModelFailedError",
    "ProtolinkError",
    "RunBusyError",
    "RunExistsError",
    "RunInterrupted",
    "StoreBusyError",
    "StoreClosedError",
    "StoreDamagedError",
    "StoreError",
    "StoreFullError",
    "StoreKeyError",
    "StoreReadOnlyError",
    "StoreVersionError",
    "SubagentLimitError",
    "TaskExecutionError",
    "ToolCorrectionLimitError",
    "ToolDefinitionError",
    "ToolFailedError",
    "ToolRejectedError",
    "UncertainExecutionError",
    "UnknownRunError",
]


class ProtolinkError(Exception):
    """The root of every error that this library raises on purpose."""


class ConfigurationError(ProtolinkError, ValueError):
    """Something was put together in a way that cannot work; nothing has run."""


class ToolDefinitionError(ConfigurationError):
    """A callable, schema or name cannot become a tool; the message says which part and why."""


class ToolRejectedError(ProtolinkError):
    """A tool looked at a request, changed nothing, and says how to improve it.

    Raise it while preparing an action, or from an executor that is certain to have changed nothing.
    Whatever may have had an effect is a failure or an `UncertainExecutionError`, never this.

    Raises `ValueError` for a blank message or code, and `TypeError` for details that JSON cannot carry.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "tool_rejected",
        details: Mapping[str, Any] | None = None,
        suggestion: str | None = None,
    ) -> None:
        if not isinstance(message, str) or not message.strip():
            raise ValueError("a rejection needs a message that tells the model what is wrong")
        if not isinstance(code, str) or not code.strip():
            raise ValueError("a rejection's code is a short non-blank text")
        if suggestion is not None and not isinstance(suggestion, str):
            raise TypeError("a rejection's suggestion is a text or None")
        super().__init__(message)
        self.message = message
        self.code = code
        self.details: dict[str, Any] | None = None if details is None else require_json(dict(details), "details")
        self.suggestion = suggestion

    def to_dict(self) -> dict[str, Any]:
        """The rejection as the model and the receipts see it."""
        return {
            "status": "rejected",
            "changes_made": False,
            "code": self.code,
            "message": self.message,
            "details": self.details,
            "suggestion": self.suggestion,
        }


class TaskExecutionError(ProtolinkError):
    """A run ended failed. `task` is its final snapshot, where one exists."""

    def __init__(self, message: str, *, task: Task | None = None, code: str = "task_failed") -> None:
        super().__init__(message)
        self.task = task
        self.code = code


class ActionDeniedError(TaskExecutionError):
    """A policy denied an action, or an approval for it was declined; it was not executed."""

    def __init__(self, message: str, *, task: Task | None = None, action_id: str | None = None) -> None:
        super().__init__(message, task=task, code="action_denied")
        self.action_id = action_id


class ApprovalRequiredError(TaskExecutionError):
    """A policy requires approval, and the run has neither a handler nor a store to wait in."""

    def __init__(self, message: str, *, task: Task | None = None, action_id: str | None = None) -> None:
        super().__init__(message, task=task, code="approval_required")
        self.action_id = action_id


class BudgetExceededError(TaskExecutionError):
    """A hard limit was reached. `limit` names it, `allowed` is its value."""

    def __init__(
        self, message: str, *, task: Task | None = None, limit: str = "", allowed: float | None = None
    ) -> None:
        super().__init__(message, task=task, code="budget_exceeded")
        self.limit = limit
        self.allowed = allowed


class CompletionFailedError(TaskExecutionError):
    """The agent's completion checks do not accept the answer, so it was not given. `failed` names them.

    `__cause__` is what a predicate raised, where one did so in this process.
    """

    def __init__(self, message: str, *, task: Task | None = None, failed: tuple[str, ...] = ()) -> None:
        super().__init__(message, task=task, code="completion_failed")
        self.failed = failed


class InferParseError(TaskExecutionError):
    """The model's output is neither an action nor an answer that the request asked for."""

    def __init__(self, message: str, *, task: Task | None = None) -> None:
        super().__init__(message, task=task, code="infer_parse_error")


class ToolCorrectionLimitError(TaskExecutionError):
    """The model made more correctable mistakes than `llm.max_tool_corrections` allows.

    `attempts` counts the mistakes, `limit` the corrections that were allowed, and `last_error` is the
    feedback that the model would have been given next.
    """

    def __init__(
        self,
        *,
        tool_name: str,
        attempts: int,
        limit: int,
        last_error: str,
        task: Task | None = None,
    ) -> None:
        super().__init__(
            f"{attempts} proposals were rejected and {limit} corrections are allowed; "
            f"the last one concerned {tool_name!r}: {last_error}",
            task=task,
            code="tool_correction_limit",
        )
        self.tool_name = tool_name
        self.attempts = attempts
        self.limit = limit
        self.last_error = last_error


class ToolFailedError(TaskExecutionError):
    """A tool raised. `__cause__` is its own exception, where it happened in this process."""

    def __init__(self, message: str, *, task: Task | None = None, action_id: str | None = None) -> None:
        super().__init__(message, task=task, code="tool_failed")
        self.action_id = action_id


class ModelFailedError(TaskExecutionError):
    """The provider, or the factory that should have given one, failed; no action was entered."""

    def __init__(self, message: str, *, task: Task | None = None) -> None:
        super().__init__(message, task=task, code="model_failed")


class SubagentLimitError(TaskExecutionError):
    """A child would exceed the configured number or depth of children; it was not started."""

    def __init__(self, message: str, *, task: Task | None = None) -> None:
        super().__init__(message, task=task, code="subagent_limit")


class UncertainExecutionError(ProtolinkError):
    """An action was entered and nobody knows whether its effect happened.

    A tool raises it when, say, a network reply was lost after the request went out. The library raises
    it for a run that holds such an action; the attributes then say which one to look at.
    """

    def __init__(
        self,
        message: str = "the effect of an operation is unknown",
        *,
        root_run_id: str | None = None,
        run_id: str | None = None,
        action_id: str | None = None,
        tool_name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(message)
        self.root_run_id = root_run_id
        self.run_id = run_id
        self.action_id = action_id
        self.tool_name = tool_name
        self.arguments: dict[str, Any] | None = None if arguments is None else dict(arguments)
        self.task = task


class RunInterrupted(ProtolinkError):  # noqa: N818 - the name is part of the documented API
    """A run returned control before its end: it waits for an answer, an approval or another slice."""

    def __init__(self, task: Task) -> None:
        interruption = RunInterruption.from_task(task)
        if interruption is None:
            raise ValueError(f"task {task.id!r} is not interrupted")
        super().__init__(f"run {interruption.run_id!r} is paused ({interruption.kind}); resume it through its root")
        self.task = task
        self.run_id: str = interruption.run_id
        self.interruption = interruption


class DurableExecutionError(ProtolinkError):
    """The execution store refused or failed; the run has not ended and can be taken up again."""


class RunBusyError(DurableExecutionError):
    """Another owner drives the run. `owner` says who, `since` since when."""

    def __init__(self, message: str, *, owner: str | None = None, since: str | None = None) -> None:
        super().__init__(message)
        self.owner = owner
        self.since = since


class CheckpointMismatchError(DurableExecutionError):
    """The stored run belongs to another configuration. `differences` names the parts."""

    def __init__(self, message: str, *, differences: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.differences = differences


class StoreError(DurableExecutionError):
    """The execution store could not do what was asked; what was not done is in the message."""


class StoreBusyError(StoreError):
    """Somebody else held the store's write lock for longer than its busy timeout."""


class StoreFullError(StoreError):
    """There is no room left on the device, or the store's own limit is reached."""


class StoreReadOnlyError(StoreError):
    """The store, or its folder, cannot be written."""


class StoreDamagedError(StoreError):
    """Something that was stored has been changed by somebody else, or the file is no such store."""


class StoreKeyError(StoreError):
    """A durable store's file and the integrity key that it was opened with do not belong together."""


class StoreVersionError(StoreError):
    """The file was written by a newer release, whose version is named."""


class StoreClosedError(StoreError):
    """The store was closed."""


class UnknownRunError(DurableExecutionError):
    """The store knows no root run of this id."""


class RunExistsError(DurableExecutionError, ValueError):
    """A root run of this id exists already, stored or at work."""


class LostRunError(DurableExecutionError):
    """Somebody else took the run over; nothing was stored and nothing more will be done here."""
