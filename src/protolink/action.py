"""The one value that is validated, judged, approved, executed and receipted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self

from protolink._json import canonical, digest, freeze, is_mapping, require_json, thaw
from protolink._record import new_dict
from protolink._values import Reader, new_id, now_text
from protolink.message import Artifact

__all__ = ["RunAction", "action_fingerprint", "current_action", "is_inside_a_tool", "running"]


def action_fingerprint(kind: str, name: str, payload: Any, capabilities: Iterable[str]) -> str:
    """The digest that binds a decision to one exact operation: SHA-256 over canonical JSON, as hexadecimal.

    It covers what will happen (kind, name, payload, capabilities) and leaves out who asked and when, so
    the same operation has the same fingerprint wherever it is proposed.
    """
    return digest(canonical([kind, name, payload, sorted(capabilities)]))


@dataclass(frozen=True, slots=True)
class RunAction:
    """A concrete operation, frozen through and through.

    Raises `ValueError` for a blank kind or name and `TypeError` for a payload that JSON cannot carry.
    """

    kind: str
    """`tool.call`, `agent.call`, or an application's own word."""

    name: str
    payload: Mapping[str, Any] = field(default_factory=new_dict)
    """What the executor will read, as JSON. Changing it is refused."""

    capabilities: frozenset[str] = frozenset()
    artifacts: tuple[Artifact, ...] = ()
    """Previews for whoever decides; they are not part of the fingerprint."""

    description: str = ""
    metadata: Mapping[str, Any] = field(default_factory=new_dict)
    action_id: str = field(default_factory=new_id)
    """Identifies this proposal everywhere; a tool can use it as its idempotency key."""

    created_at: str = field(default_factory=now_text)

    def __post_init__(self) -> None:
        for name in ("kind", "name", "action_id"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"an action's {name} is a non-blank text")
        if isinstance(self.capabilities, str) or not all(isinstance(word, str) and word for word in self.capabilities):
            raise ValueError("an action's capabilities are a collection of non-empty texts")
        for name in ("payload", "metadata"):
            content: object = getattr(self, name)
            if not is_mapping(content):
                raise TypeError(f"an action's {name} is a mapping, not {type(content).__name__}")
            object.__setattr__(self, name, freeze(require_json(dict(content), name)))
        object.__setattr__(self, "capabilities", frozenset(self.capabilities))
        object.__setattr__(self, "artifacts", tuple(self.artifacts))

    @property
    def fingerprint(self) -> str:
        """What an approval is bound to; see `action_fingerprint`."""
        return action_fingerprint(self.kind, self.name, self.payload, self.capabilities)

    def with_payload(self, payload: Mapping[str, Any]) -> Self:
        """The same proposal with another payload, and so with another fingerprint."""
        return replace(self, payload=payload)

    def with_capabilities(self, capabilities: Iterable[str]) -> Self:
        """The same proposal with other capabilities."""
        return replace(self, capabilities=frozenset(capabilities))

    def with_artifacts(self, artifacts: Iterable[Artifact]) -> Self:
        """The same proposal with other previews."""
        return replace(self, artifacts=tuple(artifacts))

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as plain JSON."""
        return {
            "kind": self.kind,
            "name": self.name,
            "payload": thaw(self.payload),
            "capabilities": sorted(self.capabilities),
            "artifacts": [artifact.to_dict() for artifact in self.artifacts],
            "description": self.description,
            "metadata": thaw(self.metadata),
            "action_id": self.action_id,
            "created_at": self.created_at,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read an action back; unknown keys are ignored."""
        read = Reader(data, "RunAction")
        return cls(
            kind=read.text("kind"),
            name=read.text("name"),
            payload=read.mapping("payload"),
            capabilities=frozenset(read.texts("capabilities")),
            artifacts=tuple(Artifact.from_dict(item) for item in read.items("artifacts")),
            description=read.text("description", ""),
            metadata=read.mapping("metadata"),
            action_id=read.text("action_id", new_id),
            created_at=read.text("created_at", now_text),
        )


class ActionScope(Protocol):
    """What a running tool runs in; see `protolink.tools.ToolExecution`."""

    @property
    def action(self) -> RunAction:
        """The action that is being executed."""
        ...


running: ContextVar[ActionScope] = ContextVar("protolink_running_action")
"""Set by the executor around a tool's code, in its thread too."""


def is_inside_a_tool() -> bool:
    """Whether the current code was called by a running tool."""
    return running.get(None) is not None


def current_action() -> RunAction:
    """The action that the running tool belongs to, in its thread too.

    Its `action_id` is the tool's idempotency key. Raises `LookupError` outside a tool.
    """
    try:
        return running.get().action
    except LookupError:
        raise LookupError("current_action() has an answer only inside a running tool") from None
