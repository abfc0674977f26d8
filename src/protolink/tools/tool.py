"""Tools: what an agent can do, as plain typed functions with declarations."""

from __future__ import annotations

import copy
import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, Self, Unpack

from protolink._callables import is_async
from protolink._json import is_mapping, require_json
from protolink.action import RunAction
from protolink.context import RunContext
from protolink.errors import ToolDefinitionError
from protolink.tools.arguments import Arguments
from protolink.tools.schema import check_tool_name, inspect_callable

if TYPE_CHECKING:
    from protolink._options import ToolOptions

__all__ = ["ActionBuilder", "BaseTool", "OnError", "SyncExecution", "Tool", "check_sync_execution"]

SyncExecution = Literal["inline", "thread"]
OnError = Literal["fail", "observe"]
ActionBuilder = Callable[[dict[str, Any], RunContext], RunAction | Awaitable[RunAction]]

MAX_DESCRIPTION_CHARACTERS: Final = 16_384


def check_sync_execution(value: object, what: str) -> SyncExecution | None:
    """`value` as an execution mode, or None. Raises `ToolDefinitionError` for anything else."""
    if value is None:
        return None
    if value == "inline":
        return "inline"
    if value == "thread":
        return "thread"
    raise ToolDefinitionError(f"{what}: sync_execution must be 'inline', 'thread' or None, not {value!r}")


class BaseTool:
    """A declaration: what the model is offered, and what the runtime may assume.

    Nothing is assumed that is not declared: a tool may have effects unless it is `read_only`.
    """

    def __init__(
        self,
        *,
        name: str,
        description: str,
        arguments: Arguments,
        output_schema: Mapping[str, Any] | None = None,
        tags: Iterable[str] | None = None,
        examples: Iterable[Any] | None = None,
        capabilities: Iterable[str] | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        repeatable: bool = False,
        timeout_seconds: float | None = None,
        on_error: OnError = "fail",
    ) -> None:
        self.name: str = check_tool_name(name)
        what = f"tool {self.name!r}"
        if not isinstance(description, str) or len(description) > MAX_DESCRIPTION_CHARACTERS:
            raise ToolDefinitionError(
                f"{what}: a description is a text of at most {MAX_DESCRIPTION_CHARACTERS} characters"
            )
        self.description = description
        self.arguments = arguments
        self._output_schema = None if output_schema is None else _schema(output_schema, what)
        self.tags: tuple[str, ...] = _texts(tags, what, "tags")
        self.examples: list[Any] = _examples(examples, what)
        self.capabilities: frozenset[str] = frozenset(_texts(capabilities, what, "capabilities"))
        for flag, value in (("read_only", read_only), ("idempotent", idempotent), ("repeatable", repeatable)):
            if not isinstance(value, bool):
                raise ToolDefinitionError(f"{what}: {flag} is True or False")
        self.read_only = read_only
        self.idempotent = idempotent
        self.repeatable = repeatable
        if timeout_seconds is not None and not (
            isinstance(timeout_seconds, int | float) and math.isfinite(timeout_seconds) and timeout_seconds > 0
        ):
            raise ToolDefinitionError(f"{what}: timeout_seconds must be a positive number of seconds")
        self.timeout_seconds = timeout_seconds
        if on_error not in ("fail", "observe"):
            raise ToolDefinitionError(f"{what}: on_error must be 'fail' or 'observe', not {on_error!r}")
        self.on_error: OnError = on_error

    @functools.cached_property
    def input_schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, as a copy of one's own: changing it changes no validation."""
        return copy.deepcopy(self.arguments.schema)

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the result, or None where none was declared."""
        return self._output_schema

    def to_dict(self) -> dict[str, Any]:
        """The declaration as JSON; it holds no code."""
        return {
            "type": "tool",
            "name": self.name,
            "description": self.description,
            "input_schema": copy.deepcopy(self.arguments.schema),
            "output_schema": self.output_schema,
            "tags": list(self.tags),
            "examples": copy.deepcopy(self.examples),
            "capabilities": sorted(self.capabilities),
            "read_only": self.read_only,
            "idempotent": self.idempotent,
            "repeatable": self.repeatable,
            "timeout_seconds": self.timeout_seconds,
            "on_error": self.on_error,
        }

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


def _schema(schema: object, what: str) -> dict[str, Any]:
    if not is_mapping(schema):
        raise ToolDefinitionError(f"{what}: output_schema is a JSON schema as a dictionary")
    try:
        checked: dict[str, Any] = require_json(dict(schema), "output_schema")
    except TypeError as error:
        raise ToolDefinitionError(f"{what}: {error}") from error
    return checked


def _texts(values: Iterable[str] | None, what: str, field: str) -> tuple[str, ...]:
    if isinstance(values, str):
        raise ToolDefinitionError(f"{what}: {field} is a list of texts, not one text")
    listed = tuple(values or ())
    if not all(isinstance(value, str) and value.strip() for value in listed):
        raise ToolDefinitionError(f"{what}: {field} holds something that is no non-blank text")
    return listed


def _examples(examples: Iterable[Any] | None, what: str) -> list[Any]:
    try:
        checked: list[Any] = require_json(list(examples or ()), "examples")
    except TypeError as error:
        raise ToolDefinitionError(f"{what}: {error}") from error
    return checked


class Tool(BaseTool):
    """A tool that calls a Python function.

    The arguments' schema comes from the signature, its hints and its docstring, or from a hand-written
    `input_schema`. What cannot be called by name, or described to a model, is refused here with the
    reason, as `ToolDefinitionError`.

    Parameters
    ----------
    func
        A sync or async callable. Its signature, annotations and docstring stay as they are.
    sync_execution
        `"inline"` runs a plain function on the event loop, `"thread"` in one of the executing agent's
        worker threads; None follows the executing agent. Async functions are always awaited.
    capabilities
        Names that policies decide about, such as `files.write`.
    read_only
        Nothing changes: calls of one reply may run side by side and may be repeated.
    idempotent
        Running it again with the same action id has no further effect.
    repeatable
        An identical second call in a run is meant; otherwise the recorded result is given again.
    timeout_seconds
        How long one execution may take before it is given up as failed.
    on_error
        `"fail"` ends the run when the function raises; `"observe"` tells the model instead.
    action_builder
        Called with the validated arguments and the run's context; gives the `RunAction` that policies and
        people decide about. The function is still called with the validated arguments.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        input_schema: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
        tags: Iterable[str] | None = None,
        examples: Iterable[Any] | None = None,
        capabilities: Iterable[str] | None = None,
        action_builder: ActionBuilder | None = None,
        sync_execution: SyncExecution | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        repeatable: bool = False,
        timeout_seconds: float | None = None,
        on_error: OnError = "fail",
    ) -> None:
        signature = None
        if input_schema is None:
            signature = inspect_callable(func, name=name, description=description)
            arguments: Arguments = signature.arguments
            resolved_name, resolved_description = signature.name, signature.description
            self.is_async: bool = signature.is_async
        else:
            if not callable(func):
                raise ToolDefinitionError(f"a tool needs a callable, not {type(func).__name__}")
            resolved_name = check_tool_name(name if name is not None else str(getattr(func, "__name__", "")))
            # Hand-written schemas are rare, and their checker costs what an agent without them should not pay.
            from protolink.tools.jsonschema import JsonSchemaArguments

            arguments = JsonSchemaArguments(input_schema)
            resolved_description = description if description is not None else inspect.getdoc(func) or ""
            self.is_async = is_async(func)
        super().__init__(
            name=resolved_name,
            description=resolved_description,
            arguments=arguments,
            output_schema=output_schema,
            tags=tags,
            examples=examples,
            capabilities=capabilities,
            read_only=read_only,
            idempotent=idempotent,
            repeatable=repeatable,
            timeout_seconds=timeout_seconds,
            on_error=on_error,
        )
        self._signature = signature
        self.func = func
        self.sync_execution = check_sync_execution(sync_execution, f"tool {self.name!r}")
        if action_builder is not None and not callable(action_builder):
            raise ToolDefinitionError(f"tool {self.name!r}: action_builder must be callable")
        self.action_builder = action_builder

    @classmethod
    def from_callable(cls, func: Callable[..., Any], **options: Unpack[ToolOptions]) -> Self:
        """A tool that calls `func`; the options are those of `Tool`."""
        return cls(func, **options)

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The declared result schema, or the one of the return annotation."""
        if self._output_schema is None and self._signature is not None:
            self._output_schema = copy.deepcopy(self._signature.output_schema)
        return self._output_schema

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself: no run, no policy, no record."""
        return self.func(*args, **kwargs)
