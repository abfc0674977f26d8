"""The parts, messages and artifacts that tasks are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from protolink._record import new_dict, new_list
from protolink._values import Reader, new_id, now_text

__all__ = ["Artifact", "Message", "Part"]


@dataclass(slots=True)
class Part:
    """One piece of content: its type says how to read it."""

    type: str
    """`text`, `json`, `infer`, `infer_output`, `tool_call`, `tool_output`, or an application's own word."""

    content: Any = None
    """JSON."""

    def __post_init__(self) -> None:
        if not isinstance(self.type, str) or not self.type:
            raise ValueError("a part's type is a non-empty text")

    def to_dict(self) -> dict[str, Any]:
        """`type` and `content`."""
        return {"type": self.type, "content": self.content}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a part back; unknown keys are ignored."""
        read = Reader(data, "Part")
        return cls(type=read.text("type"), content=read.any("content", None))

    @classmethod
    def text(cls, content: str) -> Self:
        """A part of plain text."""
        return cls("text", content)


@dataclass(slots=True)
class Message:
    """Parts that one side said at one time."""

    id: str = field(default_factory=new_id)
    role: str = "user"
    """`user`, `agent` or `system`."""

    parts: list[Part] = field(default_factory=new_list)
    timestamp: str = field(default_factory=now_text)

    @classmethod
    def user(cls, text: str) -> Self:
        """A message of one text part from the user."""
        return cls(parts=[Part.text(text)])

    def add_part(self, part: Part) -> Self:
        """Append a part and give the message back."""
        self.parts.append(part)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name."""
        return {
            "id": self.id,
            "role": self.role,
            "parts": [part.to_dict() for part in self.parts],
            "timestamp": self.timestamp,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a message back; unknown keys are ignored."""
        read = Reader(data, "Message")
        return cls(
            id=read.text("id", new_id),
            role=read.text("role", "user"),
            parts=[Part.from_dict(part) for part in read.items("parts")],
            timestamp=read.text("timestamp", now_text),
        )


@dataclass(slots=True)
class Artifact:
    """Something a task produced: a result, a file, or the receipt of an action."""

    id: str = field(default_factory=new_id)
    parts: list[Part] = field(default_factory=new_list)
    metadata: dict[str, Any] = field(default_factory=new_dict)
    timestamp: str = field(default_factory=now_text)
    kind: str = "result"
    """`result`, or `action_result` and `action_rejection` for receipts."""

    name: str | None = None
    uri: str | None = None
    media_type: str | None = None
    action_id: str | None = None
    """The action that this is the receipt of, or that produced it."""

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name."""
        return {
            "id": self.id,
            "parts": [part.to_dict() for part in self.parts],
            "metadata": dict(self.metadata),
            "timestamp": self.timestamp,
            "kind": self.kind,
            "name": self.name,
            "uri": self.uri,
            "media_type": self.media_type,
            "action_id": self.action_id,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read an artifact back; unknown keys are ignored."""
        read = Reader(data, "Artifact")
        return cls(
            id=read.text("id", new_id),
            parts=[Part.from_dict(part) for part in read.items("parts")],
            metadata=read.mapping("metadata"),
            timestamp=read.text("timestamp", now_text),
            kind=read.text("kind", "result"),
            name=read.optional_text("name"),
            uri=read.optional_text("uri"),
            media_type=read.optional_text("media_type"),
            action_id=read.optional_text("action_id"),
        )
