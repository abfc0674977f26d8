"""What a run that yielded tells its application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from protolink._values import Reader
from protolink.context import BudgetUsage
from protolink.interruption import RunInterruption
from protolink.task import Task

__all__ = ["RunHandoff"]


@dataclass(frozen=True, slots=True)
class RunHandoff:
    """Progress of unfinished work: identifiers and counters, no conversation and no results."""

    run_id: str
    """The run that yielded. It can be a child's; the tree is resumed by its root's id."""

    reason: str
    """`step_slice`: the configured number of model turns was used."""

    steps: int
    """Model turns of the yielding loop so far, over all its slices."""

    usage: BudgetUsage
    """What the whole tree has used."""

    completed_action_ids: tuple[str, ...] = ()
    """Operations that succeeded, as recorded for that run."""

    @classmethod
    def from_task(cls, task: Task) -> Self | None:
        """The handoff of a task that yielded; None for any other task."""
        interruption = RunInterruption.from_task(task)
        if interruption is None or interruption.kind != "yield":
            return None
        return cls.from_dict(interruption.request or {})

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        return {
            "run_id": self.run_id,
            "reason": self.reason,
            "steps": self.steps,
            "usage": self.usage.to_dict(),
            "completed_action_ids": list(self.completed_action_ids),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a handoff back; unknown keys are ignored."""
        read = Reader(data, "RunHandoff")
        return cls(
            run_id=read.text("run_id"),
            reason=read.text("reason"),
            steps=read.integer("steps"),
            usage=BudgetUsage.from_dict(read.mapping("usage")),
            completed_action_ids=read.texts("completed_action_ids"),
        )
