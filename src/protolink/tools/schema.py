"""What a callable's signature means as a tool: its name, its arguments, how they are checked.

Everything that is written in a signature either works or is refused while the tool is registered. The
arguments of a call are checked as JSON, strictly: what reaches the callable has the annotated type, and
nothing was converted to get there.
"""

from __future__ import annotations

import functools
import operator
import re
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from protolink._callables import is_async
from protolink._record import command
from protolink.errors import ToolDefinitionError
from protolink.tools.arguments import Arguments
from protolink.tools.docstring import parse
from protolink.tools.surface import look_at, parameters_of, result_type
from protolink.tools.typed_arguments import ResultSchema, TypedArguments

__all__ = ["CallableSignature", "check_tool_name", "inspect_callable"]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class CallableSignature:
    """What inspection found out about a callable. It does not keep the callable alive."""

    name: str
    """The name under which a model calls it."""

    description: str
    """What it does, from the docstring; empty when there is none."""

    is_async: bool
    """Whether calling it gives an awaitable. A plain wrapper around an async function may give one too."""

    arguments: Arguments
    """What checks the arguments of a call."""

    _result: ResultSchema = field(repr=False, compare=False)

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the annotated result, or None when there is none or JSON cannot express it."""
        return self._result.schema


def check_tool_name(name: str) -> str:
    """Give back a name that every model provider accepts.

    Raises `ToolDefinitionError` for any other.
    """
    if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ToolDefinitionError(f"a tool's name is a text, not {type(name).__name__!r}")
    if _NAME.fullmatch(name) is None:
        raise ToolDefinitionError(
            f"{name[:100]!r} cannot be a tool's name: use 1 to 64 of the letters a-z and A-Z, digits, '_' and '-', "
            "beginning with a letter or '_'; pass another one with name="
        )
    return name


def inspect_callable(
    func: Callable[..., Any], *, name: str | None = None, description: str | None = None
) -> CallableSignature:
    """Find out how a model can call `func`: a function, method, partial or object with `__call__`, sync or async.

    What was found is remembered for as long as the function lives, so registering the same function for
    every request costs next to nothing. Signatures of plain types do not even load pydantic before their
    first call; all others are built here, because they may have to be refused.

    Arguments that a `functools.partial` has bound are neither in the schema nor accepted. A mutable default
    is copied for each call.

    Raises `ToolDefinitionError` when the signature cannot be called by name with JSON arguments. It says
    which parameter is the reason, and what to do.
    """
    found = _remembered(func)
    if name is None:
        name = found.name
        if name == "<lambda>":
            raise ToolDefinitionError("a lambda has no name that a model could use: pass one with name=")
    if description is None:
        description = found.description
    return CallableSignature(check_tool_name(name), description, found.is_async, found.arguments, found.result)


@command
class _Found:
    """The analysis of one callable. It refers to types, never to the callable itself."""

    name: str
    description: str
    is_async: bool
    arguments: Arguments
    result: ResultSchema
    state: tuple[Any, ...]
    """What the analysis was made from; when one of these is another object, it is made again."""


_remembered_functions: weakref.WeakKeyDictionary[Any, _Found] = weakref.WeakKeyDictionary()
_remembered_methods: weakref.WeakKeyDictionary[Any, _Found] = weakref.WeakKeyDictionary()


def _remembered(func: Callable[..., Any]) -> _Found:
    # Methods are bound anew at each access, so the function is what counts.
    memory: weakref.WeakKeyDictionary[Any, _Found]
    key: Any
    if isinstance(func, types.FunctionType):
        memory, key, state = _remembered_functions, func, _state(func)
    elif isinstance(func, types.MethodType) and isinstance(func.__func__, types.FunctionType):
        memory, key, state = _remembered_methods, func.__func__, _state(func.__func__)
    elif type(func) is functools.partial:
        # What it binds cannot be changed, and may lead back to it: keeping that here would keep it alive.
        memory, key, state = _remembered_functions, func, ()
    else:
        # Other objects may call themselves equal without being alike.
        return _analyse(func, ())
    found = memory.get(key)
    if found is None or not all(map(operator.is_, found.state, state)):
        found = memory[key] = _analyse(func, state)
    return found


def _state(func: types.FunctionType) -> tuple[Any, ...]:
    return (func.__code__, func.__defaults__, func.__kwdefaults__, func.__doc__, func.__name__, func.__annotations__)


def _analyse(func: Callable[..., Any], state: tuple[Any, ...]) -> _Found:
    surface = look_at(func)
    described = parse(surface.doc)
    parameters, extras = parameters_of(surface, described)
    arguments = TypedArguments(surface.label, parameters, extras, surface.taken)
    if not arguments.cannot_fail():
        arguments.build()
    return _Found(
        name=surface.name,
        description=described.summary,
        is_async=is_async(func),
        arguments=arguments,
        result=ResultSchema(result_type(surface)),
        state=state,
    )
