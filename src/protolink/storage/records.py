"""A stored task or report, with the few facts that lists show and search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from protolink._json import JSON
from protolink._values import now_text
from protolink.context import RunContext
from protolink.redaction import RedactionPolicy
from protolink.report import RunReport
from protolink.task import Task, TaskState

__all__ = ["StoredRun", "of_report", "of_task"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One entry of a run store."""

    run_id: str
    task_id: str | None
    agent_name: str | None
    session_id: str | None
    status: str
    """A `TaskState` value."""

    saved_at: str
    """ISO-8601 time of the last save. Data only; lists are ordered by when it was saved, not by this."""

    data: dict[str, Any] | None
    """The task or report as a dictionary; None in lists, which stay cheap that way."""


def of_task(task: Task, policy: RedactionPolicy | None) -> StoredRun:
    """What a store keeps of a task."""
    context = RunContext.from_task(task)
    return StoredRun(
        run_id=context.run_id,
        task_id=task.id,
        agent_name=_agent_name(task.metadata),
        session_id=context.session_id,
        status=task.state.value,
        saved_at=now_text(),
        data=_redacted(task.to_dict(), policy),
    )


def of_report(report: RunReport, policy: RedactionPolicy | None) -> StoredRun:
    """What a store keeps of a report."""
    task = report.final_task
    return StoredRun(
        run_id=report.context.run_id,
        task_id=None if task is None else task.id,
        agent_name=None if task is None else _agent_name(task.metadata),
        session_id=report.context.session_id,
        status=TaskState.UNKNOWN.value if task is None else task.state.value,
        saved_at=now_text(),
        data=_redacted(report.to_dict(), policy),
    )


def _agent_name(metadata: Mapping[str, Any]) -> str | None:
    name = metadata.get("agent_name")
    return name if isinstance(name, str) else None


def _redacted(data: dict[str, Any], policy: RedactionPolicy | None) -> dict[str, Any]:
    if policy is None:
        return data
    return cast("dict[str, Any]", policy.value(cast("JSON", data)))
