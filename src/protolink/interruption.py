"""Why a run returned control before its end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from protolink._values import Reader

if TYPE_CHECKING:
    from protolink.task import Task

__all__ = ["RunInterruption"]


@dataclass(frozen=True, slots=True)
class RunInterruption:
    """Why a run returned before its end, as `task.metadata["interruption"]` carries it."""

    run_id: str
    request_id: str | None
    kind: str
    """`yield`, `approval` or `input`."""

    request: dict[str, Any] | None = None
    fingerprint: str | None = None

    @classmethod
    def from_task(cls, task: Task) -> Self | None:
        """The interruption of a paused task, or None for a task that is not paused."""
        stored = task.metadata.get("interruption")
        return None if stored is None else cls.from_dict(stored)

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name."""
        return {
            "run_id": self.run_id,
            "request_id": self.request_id,
            "kind": self.kind,
            "request": self.request,
            "fingerprint": self.fingerprint,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read an interruption back; unknown keys are ignored."""
        read = Reader(data, "RunInterruption")
        return cls(
            run_id=read.text("run_id"),
            request_id=read.optional_text("request_id"),
            kind=read.text("kind"),
            request=read.optional_mapping("request"),
            fingerprint=read.optional_text("fingerprint"),
        )
