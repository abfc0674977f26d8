"""Keyword parameters that several verbs hand on to another one, as type checkers see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from protolink.context import RunBudget, RunContext
    from protolink.llms.choice import ToolChoice
    from protolink.redaction import RedactionPolicy
    from protolink.storage.port import RunStore
    from protolink.tools.tool import ActionBuilder, OnError, SyncExecution

__all__ = ["ResumeOptions", "RunOptions", "Settlement", "ToolDeclarations", "ToolOptions"]


class RunOptions(TypedDict, total=False):
    """Those of `Agent.start_run`."""

    session_id: str | None
    budget: RunBudget | None
    context: RunContext | None
    store: RunStore | None
    redaction_policy: RedactionPolicy | None
    tool_choice: ToolChoice | None


class ResumeOptions(TypedDict, total=False):
    """Those of `Agent.resume_task`."""

    request_id: str | None
    approved: bool | None
    answer: Any
    fingerprint: str | None
    accept_changes: bool


class Settlement(TypedDict, total=False):
    """Those of `Agent.reconcile`."""

    result: Any
    happened: bool


class ToolDeclarations(TypedDict, total=False):
    """What a `Tool` declares of its behaviour."""

    read_only: bool
    idempotent: bool
    repeatable: bool
    timeout_seconds: float | None
    on_error: OnError


class ToolOptions(ToolDeclarations, total=False):
    """Those of `Tool`."""

    name: str | None
    description: str | None
    input_schema: Mapping[str, Any] | None
    output_schema: Mapping[str, Any] | None
    tags: Iterable[str] | None
    examples: Iterable[Any] | None
    capabilities: Iterable[str] | None
    action_builder: ActionBuilder | None
    sync_execution: SyncExecution | None
