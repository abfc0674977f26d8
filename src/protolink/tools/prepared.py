"""Prepared tools: describe the operation, authorize exactly that, then execute it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from protolink.action import RunAction
from protolink.context import RunContext
from protolink.errors import ToolDefinitionError
from protolink.tools.execution import ToolExecution
from protolink.tools.tool import OnError, SyncExecution, Tool

__all__ = ["Executor", "Preparation", "PreparedTool"]

Preparation = Callable[[dict[str, Any], RunContext], RunAction | Awaitable[RunAction]]
Executor = Callable[[ToolExecution], Awaitable[Any]]


class PreparedTool(Tool):
    """A tool in three stages.

    `prepare(arguments, context)`, sync or async, looks at the application's state and returns the concrete
    `RunAction`; the arguments are validated JSON. It has no effects, for it may run again; what it cannot
    accept it refuses with `ToolRejectedError`. Policies and people then decide about that very action,
    with this tool's `capabilities` added, and `execute(execution)` carries it out:
    `execution.authorization.action` is the value that was authorized.

    `signature` is a function whose name, parameters and docstring describe the tool; it is never called.

    Raises `ToolDefinitionError` for parts that cannot work.
    """

    def __init__(
        self,
        signature: Callable[..., Any],
        *,
        prepare: Preparation,
        execute: Executor,
        capabilities: Iterable[str],
        name: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        tags: Iterable[str] | None = None,
        examples: Iterable[Any] | None = None,
        sync_execution: SyncExecution | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        repeatable: bool = False,
        timeout_seconds: float | None = None,
        on_error: OnError = "fail",
    ) -> None:
        for part, value in (("prepare", prepare), ("execute", execute)):
            if not callable(value):
                raise ToolDefinitionError(f"a prepared tool's {part} must be callable, not {type(value).__name__}")
        super().__init__(
            signature,
            name=name,
            description=description,
            input_schema=input_schema,
            output_schema=output_schema,
            tags=tags,
            examples=examples,
            capabilities=capabilities,
            sync_execution=sync_execution,
            read_only=read_only,
            idempotent=idempotent,
            repeatable=repeatable,
            timeout_seconds=timeout_seconds,
            on_error=on_error,
        )
        self.prepare = prepare
        self.execute = execute

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: the signature describes the tool, and executing it needs an authorization."""
        raise TypeError(f"prepared tool {self.name!r} runs only through an agent, which authorizes its action first")
