"""What travels with a run: its serialized envelope, its budget, and the private request scope."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Self

from protolink._json import freeze, require_json
from protolink._record import new_dict, new_list
from protolink._values import Reader, new_id, now_text

if TYPE_CHECKING:
    from protolink.task import Task

__all__ = [
    "NO_LIMITS",
    "BudgetUsage",
    "RunBudget",
    "RunContext",
    "budget_from",
    "current_request_context",
    "narrow_request_context",
    "request_context",
]


@dataclass(frozen=True, slots=True)
class RunBudget:
    """Hard limits of a run and of everything it delegates. None is no limit of its own.

    Turns, calls and input tokens are reserved before they are spent, so work in parallel cannot overshoot
    them. Output tokens and cost are known only afterwards: no turn starts once they are used up, and the
    turns that are under way then may pass them. Zero permits nothing.

    Raises `ValueError` for a negative, non-finite or mistyped limit.
    """

    max_steps: int | None = None
    """Model turns. Without it a run may take ten."""

    max_llm_calls: int | None = None
    """Calls of a model, retries included."""

    max_tool_calls: int | None = None
    """Executions of tools. A proposal that is rejected before it starts costs none."""

    max_runtime_seconds: float | None = None
    """Wall clock of one attempt. A model call or tool that hangs is interrupted."""

    max_input_tokens: int | None = None
    """Tokens sent to models; estimates count where a provider reports nothing."""

    max_output_tokens: int | None = None
    """Tokens received from models; estimates count where a provider reports nothing."""

    metadata: dict[str, Any] = field(default_factory=new_dict)
    """The application's own notes, as JSON."""

    max_cost: float | None = None
    """Money, in the unit of the models' prices. Needs models whose price is known."""

    max_calls: dict[str, int] = field(default_factory=new_dict)
    """Executions allowed per tool name."""

    def __post_init__(self) -> None:
        for name in _WHOLE_LIMITS:
            if (value := getattr(self, name)) is not None:
                _check_limit(name, value, whole=True)
        for name in _OTHER_LIMITS:
            if (value := getattr(self, name)) is not None:
                _check_limit(name, value, whole=False)
        if not isinstance(self.max_calls, Mapping):
            raise ValueError("max_calls maps tool names to numbers of calls")
        for tool, limit in self.max_calls.items():
            _check_limit(f"max_calls[{tool!r}]", limit, whole=True)
        # Frozen, so that one budget can serve any number of runs.
        object.__setattr__(self, "max_calls", freeze(dict(self.max_calls)))
        object.__setattr__(self, "metadata", freeze(require_json(dict(self.metadata), "metadata")))

    def to_dict(self) -> dict[str, Any]:
        """Every limit by its name."""
        return {
            "max_steps": self.max_steps,
            "max_llm_calls": self.max_llm_calls,
            "max_tool_calls": self.max_tool_calls,
            "max_runtime_seconds": self.max_runtime_seconds,
            "max_input_tokens": self.max_input_tokens,
            "max_output_tokens": self.max_output_tokens,
            "metadata": dict(self.metadata),
            "max_cost": self.max_cost,
            "max_calls": dict(self.max_calls),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a budget back; unknown keys are ignored."""
        read = Reader(data, "RunBudget")
        return cls(
            max_steps=read.optional_integer("max_steps"),
            max_llm_calls=read.optional_integer("max_llm_calls"),
            max_tool_calls=read.optional_integer("max_tool_calls"),
            max_runtime_seconds=read.optional_number("max_runtime_seconds"),
            max_input_tokens=read.optional_integer("max_input_tokens"),
            max_output_tokens=read.optional_integer("max_output_tokens"),
            metadata=read.mapping("metadata"),
            max_cost=read.optional_number("max_cost"),
            max_calls=read.mapping("max_calls"),
        )


_WHOLE_LIMITS: Final = ("max_steps", "max_llm_calls", "max_tool_calls", "max_input_tokens", "max_output_tokens")
_OTHER_LIMITS: Final = ("max_runtime_seconds", "max_cost")


def _check_limit(name: str, value: object, *, whole: bool) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"{name} must be {'a whole number' if whole else 'a number'}, not {type(value).__name__}")
    if (isinstance(value, float) and not math.isfinite(value)) or value < 0:
        raise ValueError(f"{name} must be finite and not negative")


NO_LIMITS: Final = RunBudget()
"""The budget of a run that was given none."""


@dataclass(frozen=True, slots=True)
class BudgetUsage:
    """What a run tree has used so far; it never shrinks."""

    steps: int = 0
    llm_calls: int = 0
    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    runtime_seconds: float = 0.0
    metadata: dict[str, Any] = field(default_factory=new_dict)
    """`cost` where every price was known, and `estimated_tokens: True` where a count was estimated."""

    def to_dict(self) -> dict[str, Any]:
        """Every counter by its name."""
        return {
            "steps": self.steps,
            "llm_calls": self.llm_calls,
            "tool_calls": self.tool_calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "runtime_seconds": self.runtime_seconds,
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read usage back; unknown keys are ignored."""
        read = Reader(data, "BudgetUsage")
        return cls(
            steps=read.integer("steps", 0),
            llm_calls=read.integer("llm_calls", 0),
            tool_calls=read.integer("tool_calls", 0),
            input_tokens=read.integer("input_tokens", 0),
            output_tokens=read.integer("output_tokens", 0),
            runtime_seconds=read.number("runtime_seconds", 0.0),
            metadata=read.mapping("metadata"),
        )


_NO_LIMITS_STORED: Final = NO_LIMITS.to_dict()


def budget_from(stored: Mapping[str, Any]) -> RunBudget:
    """A stored budget; one without limits, which most are, is not read field by field."""
    return NO_LIMITS if not stored or stored == _NO_LIMITS_STORED else RunBudget.from_dict(stored)


_CONTEXT_KEY = "run_context"


@dataclass(slots=True)
class RunContext:
    """The serialized envelope of one run: identity, session, permissions, budget.

    It is recorded, sent to peers and stored, so nothing private belongs in it; private Python values
    travel in `request_context`.
    """

    run_id: str = field(default_factory=new_id)
    session_id: str | None = None
    trace_id: str | None = None
    workspace_uri: str | None = None
    parent_run_id: str | None = None
    agent_chain: list[str] = field(default_factory=new_list)
    """Names of the agents above this run, outermost first."""

    permissions: dict[str, Any] = field(default_factory=new_dict)
    """Effect by capability, as `CapabilityPolicy` understands it; it can only narrow."""

    budget: RunBudget = field(default_factory=lambda: NO_LIMITS)
    canceled: bool = False
    cancel_reason: str | None = None
    metadata: dict[str, Any] = field(default_factory=new_dict)
    created_at: str = field(default_factory=now_text)

    def __post_init__(self) -> None:
        if not isinstance(self.run_id, str) or not self.run_id.strip():
            raise ValueError("run_id must be a non-blank text")
        if not isinstance(self.budget, RunBudget):
            raise ValueError(f"budget must be a RunBudget, not {type(self.budget).__name__}")

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """The context that a task carries, or a fresh one where it carries none."""
        stored = task.metadata.get(_CONTEXT_KEY)
        return cls() if stored is None else cls.from_dict(stored)

    def attach_to_task(self, task: Task) -> Task:
        """Store this context in `task` and give the task back."""
        task.metadata[_CONTEXT_KEY] = self.to_dict()
        return task

    def child(self, agent_name: str | None = None) -> Self:
        """A context for delegated work: same session, permissions and budget under a new run id."""
        return replace(
            self,
            run_id=new_id(),
            parent_run_id=self.run_id,
            agent_chain=[*self.agent_chain, agent_name] if agent_name else list(self.agent_chain),
            permissions=require_json(self.permissions, "permissions"),
            metadata=require_json(self.metadata, "metadata"),
            created_at=now_text(),
        )

    def copy(self) -> Self:
        """An independent copy."""
        return type(self).from_dict(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        return {
            "run_id": self.run_id,
            "session_id": self.session_id,
            "trace_id": self.trace_id,
            "workspace_uri": self.workspace_uri,
            "parent_run_id": self.parent_run_id,
            "agent_chain": list(self.agent_chain),
            "permissions": require_json(self.permissions, "permissions") if self.permissions else {},
            "budget": self.budget.to_dict(),
            "canceled": self.canceled,
            "cancel_reason": self.cancel_reason,
            "metadata": require_json(self.metadata, "metadata") if self.metadata else {},
            "created_at": self.created_at,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a context back; unknown keys are ignored."""
        read = Reader(data, "RunContext")
        return cls(
            run_id=read.text("run_id"),
            session_id=read.optional_text("session_id"),
            trace_id=read.optional_text("trace_id"),
            workspace_uri=read.optional_text("workspace_uri"),
            parent_run_id=read.optional_text("parent_run_id"),
            agent_chain=list(read.texts("agent_chain")),
            permissions=require_json(read.mapping("permissions"), "permissions"),
            budget=budget_from(read.mapping("budget")),
            canceled=read.boolean("canceled", False),
            cancel_reason=read.optional_text("cancel_reason"),
            metadata=require_json(read.mapping("metadata"), "metadata"),
            created_at=read.text("created_at", now_text),
        )


@dataclass(frozen=True, slots=True)
class _Scope:
    values: Mapping[str, Any]
    inherit: frozenset[str]

    def for_child(self) -> _Scope:
        """What reaches an owned child: the listed keys, under the same list."""
        if not self.values:
            return self
        kept = {key: value for key, value in self.values.items() if key in self.inherit}
        return _Scope(MappingProxyType(kept), self.inherit)


_EMPTY = _Scope(MappingProxyType({}), frozenset())
_scope: ContextVar[_Scope] = ContextVar("protolink_request_scope", default=_EMPTY)


@contextmanager
def request_context(values: Mapping[str, Any], *, inherit: Iterable[str] = ()) -> Generator[Mapping[str, Any]]:
    """Make private Python values readable by the tools, factories and hooks of runs started inside.

    The mapping is copied and read-only; nested values are the application's own objects. Only the keys
    in `inherit` reach owned children. Nothing here is ever recorded, serialized or shown to a model.

    Raises `TypeError` for keys that are not texts or an `inherit` that is a bare text, and `ValueError`
    for an inherited key that `values` does not have.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"request values are a mapping, not {type(values).__name__}")
    copied = dict(values)
    if not all(isinstance(key, str) for key in copied):
        raise TypeError("request values have text keys only")
    if isinstance(inherit, str):
        raise TypeError("inherit lists keys; for a single key write inherit=(key,)")
    inherited = frozenset(inherit)
    if missing := sorted(str(key) for key in inherited if key not in copied):
        raise ValueError(f"inherit names keys that the values do not have: {', '.join(missing)}")
    token = _scope.set(_Scope(MappingProxyType(copied), inherited))
    try:
        yield _scope.get().values
    finally:
        _scope.reset(token)


def narrow_request_context() -> None:
    """Keep only what an owned child may see of the current scope, for the rest of the current context."""
    _scope.set(_scope.get().for_child())


def current_request_context() -> Mapping[str, Any]:
    """The private values of the request being served: a read-only mapping, empty outside any scope."""
    return _scope.get().values
