"""The exception that a caller in this process sees for a run that did not complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protolink._core.records import ActionRejected, BudgetExceeded, ErrorInfo, RunPaused
from protolink.errors import (
    ActionDeniedError,
    ApprovalRequiredError,
    BudgetExceededError,
    CompletionFailedError,
    InferParseError,
    ModelFailedError,
    ProtolinkError,
    RunInterrupted,
    SubagentLimitError,
    TaskExecutionError,
    ToolCorrectionLimitError,
    ToolFailedError,
    ToolRejectedError,
    UncertainExecutionError,
)

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver
    from protolink._runtime.views import Views

__all__ = ["failure_of"]


def failure_of(driver: Driver, views: Views) -> ProtolinkError | None:
    """Why the run gave no output, as the exception to raise; None for a completed run."""
    if driver.journal.failure is not None:
        return driver.journal.failure
    finished = driver.run.finished
    if finished is not None and finished.status == "completed":
        return None
    rest = driver.run.rest
    if finished is None and rest is None and driver.journal.broken is not None:
        return driver.journal.broken
    task = views.task
    if isinstance(rest, RunPaused):
        return RunInterrupted(task)
    if finished is None and rest is None:
        return TaskExecutionError("the run was left by its event loop", task=task, code="abandoned")
    if finished is not None and finished.status == "canceled":
        reason = finished.reason
        return TaskExecutionError(f"the run was canceled: {reason or 'no reason given'}", task=task, code="canceled")
    ended = finished or rest
    error = (ended.error if ended is not None else None) or ErrorInfo(code="task_failed", message="the run failed")
    if views.policy is not None:
        error = ErrorInfo(code=error.code, message=views.policy.text(error.message), type=error.type)
    failure = _from(error, driver)
    if isinstance(failure, TaskExecutionError | UncertainExecutionError):
        failure.task = task
    cause = driver.cause
    if cause is not None and cause is not failure:
        failure.__cause__ = cause
    return failure


def _from(error: ErrorInfo, driver: Driver) -> ProtolinkError:
    while driver.failed_child is not None:
        driver = driver.failed_child
    message = error.message
    record = None if driver.run.stop is None else driver.run.stop.record
    action_id: str | None = getattr(record, "action_id", None)
    if isinstance(driver.cause, ToolRejectedError) and error.type == "ToolRejectedError":
        return driver.cause
    match error.code:
        case "tool_failed" | "tool_timeout" | "preparation_failed":
            return ToolFailedError(message, action_id=action_id)
        case "model_failed" | "model_factory_failed":
            return ModelFailedError(message)
        case "action_denied":
            return ActionDeniedError(message, action_id=action_id)
        case "approval_required":
            return ApprovalRequiredError(message, action_id=action_id)
        case "budget_exceeded":
            exceeded = record if isinstance(record, BudgetExceeded) else None
            return BudgetExceededError(
                message,
                limit="" if exceeded is None else exceeded.limit,
                allowed=None if exceeded is None else exceeded.allowed,
            )
        case "completion_failed":
            checks = () if driver.run.checked is None else driver.run.checked.checks
            return CompletionFailedError(message, failed=tuple(check.name for check in checks if not check.passed))
        case "tool_correction_limit":
            concerned, last = driver.run.last_mistake
            return ToolCorrectionLimitError(
                tool_name=concerned,
                attempts=driver.run.corrections,
                limit=driver.run.corrections_allowed,
                last_error=last,
            )
        case "subagent_limit":
            return SubagentLimitError(message)
        case "infer_parse_error":
            return InferParseError(message)
        case "uncertain_execution":
            return _uncertain(message, action_id, driver)
        case code:
            if isinstance(record, ActionRejected):
                return ToolRejectedError(
                    message, code=record.code, details=record.details, suggestion=record.suggestion
                )
            return TaskExecutionError(message, code=code)


def _uncertain(message: str, action_id: str | None, driver: Driver) -> UncertainExecutionError:
    """The error with everything that a person needs to look at the action."""
    action = driver.journal.action(action_id) if action_id is not None else None
    prepared = None if action is None else action.prepared
    return UncertainExecutionError(
        message,
        root_run_id=driver.journal.tree.root_id,
        run_id=driver.run_id,
        action_id=action_id,
        tool_name=None if prepared is None else prepared.tool,
        arguments=None if prepared is None else prepared.arguments,
    )
