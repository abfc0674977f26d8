"""Where an application looks at, and changes, what the model will see."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from protolink.context import RunContext

__all__ = ["AgentHooks", "Compaction", "FinalResponse", "ModelRequest", "ToolObservation"]


@dataclass(slots=True)
class ModelRequest:
    """What is about to be sent to the model. A hook may change `history` and `tools` in place."""

    history: list[dict[str, Any]]
    """Messages as `{"role", "content", ...}`; a copy, so changes concern this request alone."""

    tools: list[dict[str, Any]]
    """The declarations the model is offered: `name`, `description`, `input_schema`. A tool that is removed is
    not offered in this turn; adding one that is not declared is refused."""

    context: RunContext
    step: int


@dataclass(slots=True)
class ToolObservation:
    """A tool's result on its way to the model. A hook may change `result`; the record keeps the real one."""

    name: str
    result: Any
    context: RunContext
    step: int


@dataclass(slots=True)
class FinalResponse:
    """The answer on its way to the application. A hook may change `content`; the model's reply is kept."""

    content: Any
    context: RunContext
    step: int


@dataclass(slots=True)
class Compaction:
    """Messages that will not be sent any more, because the context window would not hold them all.

    A hook may set `summary`, which is sent in their place from then on; without one nothing is.
    """

    messages: list[dict[str, Any]]
    """The oldest ones, in whole exchanges; an earlier summary is the first of them. A copy."""

    context: RunContext
    step: int
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class AgentHooks:
    """Callables at four places of the loop, sync or async.

    Each changes its request in place and returns None; returning anything else is an error, so that a
    hook written for another convention is noticed. A hook that raises fails the run.
    """

    before_model: Callable[[ModelRequest], Awaitable[None] | None] | None = None
    after_tool: Callable[[ToolObservation], Awaitable[None] | None] | None = None
    before_complete: Callable[[FinalResponse], Awaitable[None] | None] | None = None
    on_compaction: Callable[[Compaction], Awaitable[None] | None] | None = None

    def __post_init__(self) -> None:
        for name in ("before_model", "after_tool", "before_complete", "on_compaction"):
            hook = getattr(self, name)
            if hook is not None and not callable(hook):
                raise TypeError(f"{name} must be callable, not {type(hook).__name__}")
