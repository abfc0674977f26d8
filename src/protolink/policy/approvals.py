"""Approvals: a person's decision about one exact action."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from protolink._json import is_list, is_mapping
from protolink._record import new_dict
from protolink._text import visible
from protolink._values import Reader, new_id, now_text
from protolink.action import RunAction
from protolink.context import RunContext
from protolink.policy.policies import PolicyDecision

__all__ = ["ApprovalDecision", "ApprovalHandler", "ApprovalRequest"]

MAX_FIELD_CHARACTERS = 500
MAX_FIELDS = 50


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What somebody is asked to approve: the very action that would be executed."""

    action: RunAction
    policy_decision: PolicyDecision
    run_id: str
    request_id: str = field(default_factory=new_id)
    created_at: str = field(default_factory=now_text)
    metadata: dict[str, Any] = field(default_factory=new_dict)
    """`agent_name` and, for a child, `root_run_id`."""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the action, which an answer is bound to."""
        return self.action.fingerprint

    def render(self) -> str:
        """The request as text for a person.

        The runtime writes it from the action itself: kind, name and capabilities first, then each field
        of the payload on a line of its own with control and bidirectional characters made visible and
        long values cut (saying so). What a tool or a model wrote as a description comes last, labelled.
        """
        action = self.action
        lines = [
            f"Action:       {visible(action.kind, limit=100)} {visible(action.name, limit=200)}",
            f"Capabilities: {visible(', '.join(sorted(action.capabilities)) or 'none', limit=MAX_FIELD_CHARACTERS)}",
            f"Run:          {visible(self.run_id, limit=100)}",
            f"Fingerprint:  {action.fingerprint}",
        ]
        leaves = list(_leaves(action.payload, "payload"))
        lines += [f"  {path} = {text}" for path, text in leaves[:MAX_FIELDS]]
        if len(leaves) > MAX_FIELDS:
            lines.append(f"  … and {len(leaves) - MAX_FIELDS} more fields")
        if action.description:
            lines.append(f"Described by the tool as: {visible(action.description, limit=MAX_FIELD_CHARACTERS)}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        return {
            "action": self.action.to_dict(),
            "policy_decision": self.policy_decision.to_dict(),
            "run_id": self.run_id,
            "request_id": self.request_id,
            "created_at": self.created_at,
            "metadata": dict(self.metadata),
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a request back; unknown keys are ignored."""
        read = Reader(data, "ApprovalRequest")
        return cls(
            action=RunAction.from_dict(read.mapping("action")),
            policy_decision=PolicyDecision.from_dict(read.mapping("policy_decision")),
            run_id=read.text("run_id"),
            request_id=read.text("request_id"),
            created_at=read.text("created_at", now_text),
            metadata=read.mapping("metadata"),
        )


def _leaves(value: Any, path: str) -> list[tuple[str, str]]:
    """Every scalar below `value` with its path, both safe to show."""
    found: list[tuple[str, str]] = []
    waiting: list[tuple[Any, str]] = [(value, path)]
    while waiting:
        current, where = waiting.pop()
        if is_mapping(current) and current:
            inner = [(item, f"{where}.{visible(str(key), limit=100)}") for key, item in current.items()]
            waiting.extend(reversed(inner))
        elif is_list(current) and current:
            waiting.extend(reversed([(item, f"{where}[{index}]") for index, item in enumerate(current)]))
        else:
            text = (
                repr(current) if not isinstance(current, str) else f'"{visible(current, limit=MAX_FIELD_CHARACTERS)}"'
            )
            found.append((where, text))
    return found


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """Somebody's answer to one request."""

    approved: bool
    request_id: str
    reason: str | None = None
    decided_by: str | None = None
    metadata: dict[str, Any] = field(default_factory=new_dict)
    decided_at: str = field(default_factory=now_text)

    def __post_init__(self) -> None:
        if not isinstance(self.approved, bool):
            raise TypeError("approved is True or False; anything else is no decision")

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        return {
            "approved": self.approved,
            "request_id": self.request_id,
            "reason": self.reason,
            "decided_by": self.decided_by,
            "metadata": dict(self.metadata),
            "decided_at": self.decided_at,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a decision back; unknown keys are ignored."""
        read = Reader(data, "ApprovalDecision")
        return cls(
            approved=read.boolean("approved", False),
            request_id=read.text("request_id"),
            reason=read.optional_text("reason"),
            decided_by=read.optional_text("decided_by"),
            metadata=read.mapping("metadata"),
            decided_at=read.text("decided_at", now_text),
        )


class ApprovalHandler(Protocol):
    """Whoever answers requests while the run waits: a sync or async callable.

    A plain function runs in a worker thread, for it may wait for a person. True and False are short for
    a decision about the request that was asked.
    """

    def __call__(
        self, request: ApprovalRequest, context: RunContext, /
    ) -> ApprovalDecision | bool | Awaitable[ApprovalDecision | bool]:
        """Decide about `request`."""
        ...
