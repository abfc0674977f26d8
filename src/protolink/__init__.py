"""Run a team of LLM agents inside a Python application.

Every public name is here and loaded when it is first used, so that `import protolink` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protolink.action import RunAction, current_action
    from protolink.agent import Agent
    from protolink.card import AgentCard
    from protolink.completion import Completion, CompletionCheck, CompletionValidator
    from protolink.context import BudgetUsage, RunBudget, RunContext, current_request_context, request_context
    from protolink.durable.store import SQLiteDurableStore
    from protolink.errors import (
        ActionDeniedError,
        ApprovalRequiredError,
        BudgetExceededError,
        CheckpointMismatchError,
        CompletionFailedError,
        ConfigurationError,
        DurableExecutionError,
        InferParseError,
        ModelFailedError,
        ProtolinkError,
        RunBusyError,
        RunInterrupted,
        SubagentLimitError,
        TaskExecutionError,
        ToolCorrectionLimitError,
        ToolDefinitionError,
        ToolFailedError,
        ToolRejectedError,
        UncertainExecutionError,
    )
    from protolink.events import RunEvent
    from protolink.evidence import ToolEvidence, collect_tool_evidence
    from protolink.group import AgentGroup
    from protolink.handle import RunHandle, RunResult, SubagentHandle
    from protolink.handoff import RunHandoff
    from protolink.hooks import AgentHooks, Compaction, FinalResponse, ModelRequest, ToolObservation
    from protolink.interruption import RunInterruption
    from protolink.limits import SubagentLimits
    from protolink.llms.create import create_llm
    from protolink.manager import RunManager, UncertainAction
    from protolink.message import Artifact, Message, Part
    from protolink.policy.approvals import ApprovalDecision, ApprovalHandler, ApprovalRequest
    from protolink.policy.policies import CapabilityPolicy, Policy, PolicyDecision, PolicyEffect
    from protolink.redaction import RedactionPolicy
    from protolink.report import RunReport
    from protolink.storage.runs import SQLiteRunStore
    from protolink.task import Task, TaskState
    from protolink.tools.tool import Tool

_HOMES = {
    "action": ("RunAction", "current_action"),
    "agent": ("Agent",),
    "card": ("AgentCard",),
    "completion": ("Completion", "CompletionCheck", "CompletionValidator"),
    "context": ("BudgetUsage", "RunBudget", "RunContext", "current_request_context", "request_context"),
    "durable.store": ("SQLiteDurableStore",),
    "errors": (
        "ActionDeniedError",
        "ApprovalRequiredError",
        "BudgetExceededError",
        "CheckpointMismatchError",
        "CompletionFailedError",
        "ConfigurationError",
        "DurableExecutionError",
        "InferParseError",
        "ModelFailedError",
        "ProtolinkError",
        "RunBusyError",
        "RunInterrupted",
        "SubagentLimitError",
        "TaskExecutionError",
        "ToolCorrectionLimitError",
        "ToolDefinitionError",
        "ToolFailedError",
        "ToolRejectedError",
        "UncertainExecutionError",
    ),
    "events": ("RunEvent",),
    "evidence": ("ToolEvidence", "collect_tool_evidence"),
    "group": ("AgentGroup",),
    "handle": ("RunHandle", "RunResult", "SubagentHandle"),
    "handoff": ("RunHandoff",),
    "hooks": ("AgentHooks", "Compaction", "FinalResponse", "ModelRequest", "ToolObservation"),
    "interruption": ("RunInterruption",),
    "limits": ("SubagentLimits",),
    "llms.create": ("create_llm",),
    "manager": ("RunManager", "UncertainAction"),
    "message": ("Artifact", "Message", "Part"),
    "policy.approvals": ("ApprovalDecision", "ApprovalHandler", "ApprovalRequest"),
    "policy.policies": ("CapabilityPolicy", "Policy", "PolicyDecision", "PolicyEffect"),
    "redaction": ("RedactionPolicy",),
    "report": ("RunReport",),
    "storage.runs": ("SQLiteRunStore",),
    "task": ("Task", "TaskState"),
    "tools.tool": ("Tool",),
}
_HOME = {name: f"protolink.{module}" for module, names in _HOMES.items() for name in names}

__all__ = [
    "ActionDeniedError",
    "Agent",
    "AgentCard",
    "AgentGroup",
    "AgentHooks",
    "ApprovalDecision",
    "ApprovalHandler",
    "ApprovalRequest",
    "ApprovalRequiredError",
    "Artifact",
    "BudgetExceededError",
    "BudgetUsage",
    "CapabilityPolicy",
    "CheckpointMismatchError",
    "Compaction",
    "Completion",
    "CompletionCheck",
    "CompletionFailedError",
    "CompletionValidator",
    "ConfigurationError",
    "DurableExecutionError",
    "FinalResponse",
    "InferParseError",
    "Message",
    "ModelFailedError",
    "ModelRequest",
    "Part",
    "Policy",
    "PolicyDecision",
    "PolicyEffect",
    "ProtolinkError",
    "RedactionPolicy",
    "RunAction",
    "RunBudget",
    "RunBusyError",
    "RunContext",
    "RunEvent",
    "RunHandle",
    "RunHandoff",
    "RunInterrupted",
    "RunInterruption",
    "RunManager",
    "RunReport",
    "RunResult",
    "SQLiteDurableStore",
    "SQLiteRunStore",
    "SubagentHandle",
    "SubagentLimitError",
    "SubagentLimits",
    "Task",
    "TaskExecutionError",
    "TaskState",
    "Tool",
    "ToolCorrectionLimitError",
    "ToolDefinitionError",
    "ToolEvidence",
    "ToolFailedError",
    "ToolObservation",
    "ToolRejectedError",
    "UncertainAction",
    "UncertainExecutionError",
    "collect_tool_evidence",
    "create_llm",
    "current_action",
    "current_request_context",
    "request_context",
]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'protolink' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
