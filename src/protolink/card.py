"""An agent's public description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from protolink._record import new_dict, new_list
from protolink._values import Reader

__all__ = ["AgentCard"]


@dataclass(slots=True)
class AgentCard:
    """Who an agent is and what it offers, as others may see it."""

    name: str
    description: str = ""
    url: str | None = None
    version: str = "1.0.0"
    skills: list[dict[str, Any]] = field(default_factory=new_list)
    """Declared tools: `name`, `description`, `tags` and `examples` of each."""

    metadata: dict[str, Any] = field(default_factory=new_dict)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError("an agent needs a non-blank name")

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name."""
        return {
            "name": self.name,
            "description": self.description,
            "url": self.url,
            "version": self.version,
            "skills": [dict(skill) for skill in self.skills],
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a card back; unknown keys are ignored."""
        read = Reader(data, "AgentCard")
        return cls(
            name=read.text("name"),
            description=read.text("description", ""),
            url=read.optional_text("url"),
            version=read.text("version", "1.0.0"),
            skills=read.items("skills"),
            metadata=read.mapping("metadata"),
        )
