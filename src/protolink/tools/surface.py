"""How a callable looks from outside: what it takes by name, under which types, and what it gives back.

Functions, methods, partials, objects with `__call__` and decorated versions of them are followed down to the
parameters that count. What a model could not call by name is refused here, with the parameter that is the
reason and what to do.
"""

from __future__ import annotations

import collections.abc
import copy
import functools
import inspect
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, TypeGuard

from protolink._record import command, state
from protolink.errors import ToolDefinitionError
from protolink.tools.docstring import Docstring

__all__ = ["Parameter", "Surface", "is_mutable", "look_at", "parameters_of", "result_type", "typed_dict_members"]

_DEEPEST_WRAPPING = 64
_SELF_NAMES = ("self", "cls")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NO_ANNOTATIONS: Mapping[str, Any] = types.MappingProxyType({})


@state
class Surface:
    """The parameters of one callable that are still free, and what is known about them."""

    name: str
    parameters: list[inspect.Parameter]
    returns: Any = inspect.Parameter.empty
    doc: str | None = None

    taken: frozenset[str] = frozenset()
    """Names that are bound already: giving one of them again would be a TypeError."""

    namespaces: list[tuple[dict[str, Any], dict[str, Any]]] = field(
        default_factory=list[tuple[dict[str, Any], dict[str, Any]]]
    )
    """Globals and locals that an annotation may refer to, the likeliest first."""

    @property
    def label(self) -> str:
        """What the callable is called in an error."""
        return f"tool {self.name!r}"

    @property
    def is_open(self) -> bool:
        """Whether it takes names that it does not list."""
        return any(p.kind is p.VAR_KEYWORD for p in self.parameters)


@command
class Parameter:
    """One argument as it will be checked."""

    name: str
    annotation: Any
    required: bool
    default: Any = inspect.Parameter.empty
    description: str | None = None


def look_at(func: Any) -> Surface:
    """Find out what `func` takes and gives back, wherever that was written down.

    Raises `ToolDefinitionError` when it is nothing that a model can call. Whether each parameter can be given
    by name is for `parameters_of` to say.
    """
    surface = _look_at(func)
    entered = _entered_function(func)
    if inspect.isgeneratorfunction(entered) or inspect.isasyncgenfunction(entered):
        raise ToolDefinitionError(
            f"{surface.label} is a generator, and a tool has one result: collect the pieces in a list"
        )
    _refuse_unbound_method(func, surface)
    return surface


def parameters_of(surface: Surface, described: Docstring) -> tuple[tuple[Parameter, ...], Parameter | None]:
    """The parameters that have a name, and what stands for all others where `**kwargs` takes them.

    Raises `ToolDefinitionError` for one that cannot be given by name, whose annotation cannot be evaluated or
    whose default cannot be copied.
    """
    for parameter in surface.parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolDefinitionError(
                f"{surface.label}: parameter {parameter.name!r} is positional-only, and a model calls by name; "
                "remove the '/' or bind it with functools.partial"
            )
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise ToolDefinitionError(
                f"{surface.label}: parameter '*{parameter.name}' takes positional arguments, and a model calls by "
                f"name; take a list instead, {parameter.name}: list[...]"
            )
    hints = _hints(surface)
    named: list[Parameter] = []
    extras: Parameter | None = None
    for parameter in surface.parameters:
        hint = hints.get(parameter.name, Any)
        if parameter.kind is not parameter.VAR_KEYWORD:
            named.append(
                Parameter(
                    parameter.name,
                    hint,
                    required=parameter.default is parameter.empty,
                    default=parameter.default,
                    description=described.parameters.get(parameter.name),
                )
            )
        elif typing.get_origin(hint) is typing.Unpack:
            named.extend(_unpacked(typing.get_args(hint)[0], described))
        else:
            extras = Parameter(parameter.name, hint, required=False)
    names = [each.name for each in named]
    for each in named:
        _require_copyable(each, surface)
        if names.count(each.name) > 1:
            raise ToolDefinitionError(f"{surface.label}: parameter {each.name!r} is declared twice; rename one")
    return tuple(named), extras


def result_type(surface: Surface) -> Any:
    """The annotation of the result as a type, or `inspect.Parameter.empty`."""
    if surface.returns is inspect.Parameter.empty:
        return surface.returns
    try:
        hint = _resolved_alone("return", surface.returns, surface)
    except ToolDefinitionError:  # a result needs no type
        return inspect.Parameter.empty
    if typing.get_origin(hint) in (collections.abc.Awaitable, collections.abc.Coroutine):
        return typing.get_args(hint)[-1]
    return hint


def typed_dict_members(typed_dict: Any) -> Iterator[tuple[str, Any, bool]]:
    """The keys of a TypedDict, with their types and whether they are required."""
    for name, hint in typing.get_type_hints(typed_dict, include_extras=True).items():
        # With postponed annotations the class does not know of its own qualifiers, so they count more.
        required = name in typed_dict.__required_keys__
        while (qualifier := typing.get_origin(hint)) in (typing.Required, typing.NotRequired):
            required, hint = qualifier is typing.Required, typing.get_args(hint)[0]
        yield name, hint, required


def is_mutable(default: Any) -> bool:
    """Whether one call could change the default of the next. Values with a hash promise that they do not change."""
    try:
        hash(default)
    except TypeError:
        return True
    return False


def _look_at(func: Any, depth: int = 0) -> Surface:
    """Follow methods, partials, callable objects and decorators down to the parameters that count."""
    if depth > _DEEPEST_WRAPPING:
        raise ToolDefinitionError("the callable wraps itself")
    if _is_partial(func):
        return _bound(func, _look_at(func.func, depth + 1))
    if isinstance(func, types.MethodType):
        surface = _look_at(func.__func__, depth + 1)
        owner = func.__self__ if isinstance(func.__self__, type) else type(func.__self__)
        surface.namespaces.extend(_class_namespaces(owner, surface))
        return _without_first(surface)
    if isinstance(func, staticmethod):
        return _look_at(func.__func__, depth + 1)
    if isinstance(func, type):
        raise ToolDefinitionError(f"{func.__name__!r} is a class: pass a function that returns what the model needs")
    if not callable(func):
        raise ToolDefinitionError(
            f"a {type(func).__name__} is not callable: pass a function, a bound method or an object with __call__"
        )
    if hasattr(func, "dispatch") and hasattr(func, "registry"):
        raise ToolDefinitionError(
            "functools.singledispatch chooses by the first positional argument, and a model calls by name; "
            "pass the implementation that is wanted"
        )
    surface = _own_surface(func, depth)
    wrapped = getattr(func, "__wrapped__", None)
    if callable(wrapped) and not isinstance(wrapped, type):
        inner = _look_at(wrapped, depth + 1)
        surface.namespaces[:0] = inner.namespaces
        if surface.is_open and "__signature__" not in getattr(func, "__dict__", _NO_ANNOTATIONS):
            surface.parameters = _merged(surface.parameters, inner.parameters)
            surface.taken |= inner.taken
            if surface.returns is inspect.Parameter.empty:
                surface.returns = inner.returns
    return surface


def _own_surface(func: Any, depth: int) -> Surface:
    """What `func` itself takes, before anything it wraps is considered."""
    name = getattr(func, "__name__", None)
    name = name if isinstance(name, str) else type(func).__name__
    if isinstance(func, types.FunctionType):
        signature = _signature(func, name)
        return Surface(
            name,
            list(signature.parameters.values()),
            signature.return_annotation,
            func.__doc__,
            namespaces=[(func.__globals__, _closure(func))],
        )
    if (call := _call_of(func)) is not None:
        surface = _look_at(call, depth + 1)
        surface.name = name
        surface.doc = surface.doc or _class_doc(func)
        return surface
    if callable(getattr(func, "__wrapped__", None)):
        # A wrapper written in C, such as `functools.lru_cache`, hands on whatever it is given.
        anything = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
        return Surface(name, [anything], doc=getattr(func, "__doc__", None))
    signature = _signature(func, name)
    return Surface(name, list(signature.parameters.values()), signature.return_annotation, func.__doc__)


def _entered_function(func: Any) -> Any:
    """The function whose body a call enters first. Decorators count as themselves: they may change what is returned."""
    while isinstance(func, functools.partial):
        func = func.func
    return func if inspect.isroutine(func) else _call_of(func) or func


def _is_partial(func: Any) -> TypeGuard[functools.partial[Any]]:
    return isinstance(func, functools.partial)


def _call_of(func: Any) -> Any:
    """The `__call__` that a class written in Python gives its objects, as it is called; None for any other."""
    call = next((vars(cls)["__call__"] for cls in type(func).__mro__ if "__call__" in vars(cls)), None)
    if isinstance(call, types.FunctionType):
        return types.MethodType(call, func)
    return call.__func__ if isinstance(call, staticmethod) else None


def _class_doc(instance: Any) -> str | None:
    doc = type(instance).__doc__
    # A dataclass without a docstring is given its signature as one.
    return None if isinstance(doc, str) and doc.startswith(f"{type(instance).__name__}(") else doc


def _signature(func: Any, name: str) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            return inspect.signature(func, follow_wrapped=False, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(func, follow_wrapped=False)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(
            f"tool {name!r}: Python does not know its parameters ({error}); wrap it in a function that names them"
        ) from error


def _closure(func: types.FunctionType) -> dict[str, Any]:
    """The local names of an enclosing function that the body uses, and the function's own type parameters."""
    names: dict[str, Any] = {p.__name__: p for p in getattr(func, "__type_params__", ())}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return names


def _class_namespaces(owner: type, surface: Surface) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """A method's annotations may refer to its class, which may be local to a function, and to names in its body."""
    names: dict[str, Any] = {}
    for cls in reversed(owner.__mro__[:-1]):
        names.update(vars(cls))
        names[cls.__name__] = cls
    for outer, local in list(surface.namespaces):
        yield outer, {**names, **local}


def _without_first(surface: Surface) -> Surface:
    """The surface of a bound method: the first parameter is the object it is bound to."""
    if not surface.parameters:
        raise ToolDefinitionError(f"{surface.label} is a bound method without a parameter for the object")
    first = surface.parameters[0]
    if first.kind is first.VAR_POSITIONAL:
        return surface
    if first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        raise ToolDefinitionError(f"{surface.label} is a bound method without a parameter for the object")
    surface.parameters = surface.parameters[1:]
    if first.kind is first.POSITIONAL_OR_KEYWORD:
        surface.taken |= {first.name}
    return surface


def _bound(partial: functools.partial[Any], surface: Surface) -> Surface:
    """Take what a partial has bound out of the surface."""
    own_doc = partial.__dict__.get("__doc__")
    surface.doc = own_doc if isinstance(own_doc, str) else surface.doc
    own_name = partial.__dict__.get("__name__")
    surface.name = own_name if isinstance(own_name, str) else surface.name
    placeholder = getattr(functools, "Placeholder", None)
    for value in partial.args:
        if placeholder is not None and value is placeholder:
            raise ToolDefinitionError(
                f"{surface.label}: a placeholder in a partial has to be filled by position, and a model calls "
                "by name; bind by name instead"
            )
        first = surface.parameters[0] if surface.parameters else None
        if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
            raise ToolDefinitionError(f"{surface.label}: its partial binds more arguments than it takes")
        if first.kind is first.VAR_POSITIONAL:
            break
        surface.parameters = surface.parameters[1:]
        if first.kind is first.POSITIONAL_OR_KEYWORD:
            surface.taken |= {first.name}
    for name in partial.keywords:
        others = [p for p in surface.parameters if p.name != name or p.kind not in _BY_NAME]
        if len(others) == len(surface.parameters) and not surface.is_open:
            raise ToolDefinitionError(f"{surface.label}: its partial binds {name!r}, which is no parameter of it")
        surface.parameters = others
        surface.taken |= {name}
    return surface


def _merged(own: list[inspect.Parameter], inner: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """What a wrapper takes that hands its keyword arguments on: its own parameters and those of the wrapped one."""
    explicit = [p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    names = {p.name for p in explicit}
    if explicit and inner and explicit[0].name not in {p.name for p in inner} and inner[0].name in _SELF_NAMES:
        inner = inner[1:]  # a wrapper of methods that has another word for self
    return [*explicit, *(p for p in inner if p.name not in names)]


def _refuse_unbound_method(func: Any, surface: Surface) -> None:
    if not isinstance(func, types.FunctionType) or not surface.parameters:
        return
    first, (owner, _, _) = surface.parameters[0], func.__qualname__.rpartition(".")
    if (
        first.name in _SELF_NAMES
        and first.annotation is first.empty
        and owner
        and not owner.endswith("<locals>")
        and first.kind in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    ):
        raise ToolDefinitionError(
            f"{surface.label}: parameter {first.name!r} is the object of a method, which a model cannot supply; "
            f"pass the method of an instance, {owner.rpartition('.')[2]}(...).{surface.name}"
        )


def _unpacked(options: Any, described: Docstring) -> Iterator[Parameter]:
    """The keys of a TypedDict that a function takes as `**options: Unpack[Options]`."""
    for name, hint, required in typed_dict_members(options):
        yield Parameter(name, hint, required, description=described.parameters.get(name))


def _require_copyable(parameter: Parameter, surface: Surface) -> None:
    if is_mutable(parameter.default):
        try:
            copy.deepcopy(parameter.default)
        except Exception as error:  # the copying is done by the default's own methods
            raise ToolDefinitionError(
                f"{surface.label}: the default of parameter {parameter.name!r} would be shared between calls, "
                f"and it cannot be copied ({type(error).__name__}); use None and make the value in the function"
            ) from error


def _hints(surface: Surface) -> dict[str, Any]:
    """The parameters' annotations as types."""
    annotations = {p.name: p.annotation for p in surface.parameters if p.annotation is not p.empty}
    try:
        return _resolved(annotations, *(surface.namespaces[0] if surface.namespaces else ({}, {})))
    except Exception:  # whatever evaluating an annotation raises; the slow way finds out which one it was
        return {name: _resolved_alone(name, written, surface) for name, written in annotations.items()}


def _resolved_alone(name: str, written: Any, surface: Surface) -> Any:
    reason: Exception | None = None
    for outer, local in surface.namespaces or [({}, {})]:
        try:
            return _resolved({name: written}, outer, local)[name]
        except NameError as error:  # another namespace may have it
            reason = reason or error
        except Exception as error:  # an annotation is an expression, and may raise anything
            reason = error
            break
    raise ToolDefinitionError(
        f"{surface.label}: the annotation of parameter {name!r} cannot be evaluated: {reason}; "
        "import the type at run time, and define it outside of functions"
    ) from reason


def _resolved(annotations: dict[str, Any], outer: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    def bearer() -> None:
        """Carries annotations to where the standard library resolves them."""

    bearer.__annotations__ = annotations
    return typing.get_type_hints(bearer, outer, local, include_extras=True)
