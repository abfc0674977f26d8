"""Checking an answer against what was really executed, instead of believing the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from protolink.context import RunContext
from protolink.errors import ConfigurationError
from protolink.evidence import ToolEvidence

__all__ = ["Completion", "CompletionCheck", "CompletionPredicate", "CompletionValidator"]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a run is about to answer, with the receipts that it has. A copy: changing it changes no run."""

    output: Any
    """The answer, after hooks and schema: the model's word."""

    receipts: tuple[ToolEvidence, ...]
    """What became of every tool call of the run and of its workers, in the order of their ends.

    Results are here whether or not they are public. Calls that somebody has settled count as they were
    settled, and those of earlier attempts are here as well.
    """

    context: RunContext

    def executed(self, tool: str | None = None) -> tuple[ToolEvidence, ...]:
        """The receipts of calls that completed: of one tool, or of all."""
        return tuple(
            receipt for receipt in self.receipts if receipt.outcome == "completed" and tool in (None, receipt.tool_name)
        )


CompletionPredicate = Callable[[Completion], "bool | Awaitable[bool]"]
"""Says whether the work is done. A plain function runs in one of the agent's worker threads."""


@dataclass(frozen=True, slots=True)
class CompletionCheck:
    """One condition that finished work meets.

    Only True passes. False, anything that is no bool, and an exception are failures of this check, and the
    other checks are evaluated all the same. Raises `ConfigurationError` for parts that cannot be a check.
    """

    name: str
    """What is checked, as reports and errors name it."""

    predicate: CompletionPredicate

    require_execution: bool = True
    """Whether the check fails, and the predicate is not asked, where no tool call has completed at all.

    A predicate over no receipts is easily true by accident.
    """

    message: str = ""
    """What a person reads where the predicate says False; empty for a general text."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ConfigurationError("a completion check needs a name: a non-blank text")
        if not callable(self.predicate):
            kind = type(self.predicate).__name__
            raise ConfigurationError(f"the predicate of completion check {self.name!r} must be callable, not {kind}")
        if not isinstance(self.require_execution, bool):
            raise ConfigurationError(f"require_execution of completion check {self.name!r} must be True or False")
        if not isinstance(self.message, str):
            raise ConfigurationError(f"the message of completion check {self.name!r} must be a text")


@dataclass(frozen=True, slots=True)
class CompletionValidator:
    """The checks that an agent's answers have to pass; all of them are evaluated, in their order.

    Raises `ConfigurationError` for what is no check, for two of one name, and for no check at all, which
    would let everything pass.
    """

    checks: tuple[CompletionCheck, ...]

    def __init__(self, checks: Iterable[CompletionCheck]) -> None:
        listed = (checks,) if isinstance(checks, CompletionCheck) else tuple(checks)
        for check in listed:
            if not isinstance(check, CompletionCheck):
                raise ConfigurationError(f"a completion check is a CompletionCheck, not {type(check).__name__}")
        names = [check.name for check in listed]
        if not names:
            raise ConfigurationError("a completion validator without checks would let everything pass")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"there are two completion checks {twice!r}; names are unique")
        object.__setattr__(self, "checks", listed)
