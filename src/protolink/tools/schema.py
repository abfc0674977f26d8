"""What a callable's signature means as a tool: its name, its arguments, how they are checked.

Everything that is written in a signature either works or is refused while the tool is registered. The
arguments of a call are checked as JSON, strictly: what reaches the callable has the annotated type, and
nothing was converted to get there.
"""

from __future__ import annotations

import collections.abc
import copy
import datetime
import decimal
import enum
import functools
import inspect
import json
import math
import re
import sys
import types
import typing
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeGuard, cast

from protolink.errors import ToolDefinitionError
from protolink.tools.docstring import Docstring, parse

# Importing pydantic takes longer than importing everything else here, and a program that only reads
# records or serves pages never needs it. So the functions below that do need it import it themselves.
if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema, SchemaValidator

__all__ = [
    "MAX_SCHEMA_BYTES",
    "MAX_SCHEMA_DEPTH",
    "Arguments",
    "ArgumentsError",
    "CallableSignature",
    "Problem",
    "check_schema_size",
    "check_tool_name",
    "inspect_callable",
    "require_finite",
]

MAX_SCHEMA_BYTES = 256 * 1024
"""The longest JSON text a schema may have; it is sent to the model with every request."""

MAX_SCHEMA_DEPTH = 64
"""How deeply the objects and arrays of a schema may be nested."""

MAX_PROBLEMS = 20
"""How many problems an `ArgumentsError` lists; a model corrects a few and then gets the next ones."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", re.ASCII)
_LONGEST_KEY = 64
_DEEPEST_WRAPPING = 64
_MOST_LEAVES = 1000
_SELF_NAMES = ("self", "cls")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_NO_ANNOTATIONS: Mapping[str, Any] = types.MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the arguments of a call."""

    path: str
    """Where: keys and indices joined by dots, or empty for the arguments as a whole."""

    message: str
    """What, for the model and for people. It does not repeat the value."""


class ArgumentsError(Exception):
    """The arguments of a call do not fit the schema; the callable has not been entered.

    Neither the text nor `problems` repeats the value of an argument. Keys are named, cut to a sane length.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in self.problems))

    def __reduce__(self) -> tuple[type[ArgumentsError], tuple[tuple[Problem, ...]]]:
        return type(self), (self.problems,)


class Arguments(Protocol):
    """What checks the arguments of a call."""

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object. It is shared: whoever wants to change it takes a copy."""
        ...

    def validate(self, text: str) -> dict[str, Any]:
        """Check a JSON object and give the keyword arguments it stands for.

        Raises `ArgumentsError`, also for a text that is not JSON or not an object.
        """
        ...


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

    _result: _Result = field(repr=False, compare=False)

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


def check_schema_size(schema: dict[str, Any], subject: str) -> None:
    """Raise `ToolDefinitionError` for a schema that is not JSON, too long or nested too deeply."""
    level: list[Any] = [schema]
    depth = 0
    while level:
        depth += 1
        if depth > MAX_SCHEMA_DEPTH:
            raise ToolDefinitionError(f"{subject}: its JSON schema is nested more than {MAX_SCHEMA_DEPTH} deep")
        level = [inner for outer in level for inner in _containers(outer)]
    try:
        text = json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ToolDefinitionError(f"{subject}: its JSON schema is not JSON: {error}") from error
    if len(text) > MAX_SCHEMA_BYTES:
        raise ToolDefinitionError(
            f"{subject}: its JSON schema has {len(text)} bytes and {MAX_SCHEMA_BYTES} are allowed; "
            "take fewer alternatives or shorter descriptions"
        )


def _is_object(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _is_array(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_tuple(value: Any) -> TypeGuard[tuple[Any, ...]]:
    return isinstance(value, tuple)


def _containers(value: Any) -> list[Any]:
    inner: Iterable[Any] = value.values() if _is_object(value) else value
    return [item for item in inner if isinstance(item, (dict, list))]


@dataclass(frozen=True, slots=True)
class _Found:
    """The analysis of one callable. It refers to types, never to the callable itself."""

    name: str
    description: str
    is_async: bool
    arguments: Arguments
    result: _Result
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
    elif _is_partial(func) and type(func) is functools.partial:
        # What it binds cannot be changed, and may lead back to it: keeping that here would keep it alive.
        memory, key, state = _remembered_functions, func, ()
    else:
        # Other objects may call themselves equal without being alike.
        return _analyse(func, ())
    found = memory.get(key)
    if found is None or not all(map(_is, found.state, state)):
        found = memory[key] = _analyse(func, state)
    return found


def _state(func: types.FunctionType) -> tuple[Any, ...]:
    return (func.__code__, func.__defaults__, func.__kwdefaults__, func.__doc__, func.__name__, func.__annotations__)


def _is(one: object, other: object) -> bool:
    return one is other


@dataclass(slots=True)
class _Surface:
    """How a callable looks from outside: what it takes by name, wherever that was written down."""

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
    def is_open(self) -> bool:
        return any(p.kind is p.VAR_KEYWORD for p in self.parameters)


def _analyse(func: Callable[..., Any], state: tuple[Any, ...]) -> _Found:
    surface = _look_at(func)
    label = f"tool {surface.name!r}"
    entered = _entered_function(func)
    if inspect.isgeneratorfunction(entered) or inspect.isasyncgenfunction(entered):
        raise ToolDefinitionError(f"{label} is a generator, and a tool has one result: collect the pieces in a list")
    _refuse_unbound_method(func, surface, label)
    described = parse(surface.doc)
    parameters, extras = _parameters(surface, described, label)
    arguments = _TypedArguments(label, parameters, extras, surface.taken)
    if not arguments.cannot_fail():
        arguments.build()
    return _Found(
        name=surface.name,
        description=described.summary,
        is_async=inspect.iscoroutinefunction(entered),
        arguments=arguments,
        result=_Result(_result_type(surface)),
        state=state,
    )


def _entered_function(func: Any) -> Any:
    """The function whose body a call enters first. Decorators count as themselves: they may change what is returned."""
    while isinstance(func, functools.partial):
        func = func.func
    return func if inspect.isroutine(func) else _call_of(func) or func


def _is_partial(func: Any) -> TypeGuard[functools.partial[Any]]:
    return isinstance(func, functools.partial)


def _look_at(func: Any, depth: int = 0) -> _Surface:
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


def _own_surface(func: Any, depth: int) -> _Surface:
    """What `func` itself takes, before anything it wraps is considered."""
    name = getattr(func, "__name__", None)
    name = name if isinstance(name, str) else type(func).__name__
    if isinstance(func, types.FunctionType):
        signature = _signature(func, name)
        return _Surface(
            name,
            list(signature.parameters.values()),
            signature.return_annotation,
            func.__doc__,
            namespaces=[(func.__globals__, _closure(func))],
        )
    if (call := _call_of(func)) is not None:
        surface = _look_at(types.MethodType(call, func), depth + 1)
        surface.name = name
        surface.doc = surface.doc or _class_doc(func)
        return surface
    if callable(getattr(func, "__wrapped__", None)):
        # A wrapper written in C, such as `functools.lru_cache`, hands on whatever it is given.
        anything = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD)
        return _Surface(name, [anything], doc=getattr(func, "__doc__", None))
    signature = _signature(func, name)
    return _Surface(name, list(signature.parameters.values()), signature.return_annotation, func.__doc__)


def _call_of(func: Any) -> types.FunctionType | None:
    """The `__call__` that a class written in Python gives its objects."""
    call = next((vars(cls)["__call__"] for cls in type(func).__mro__ if "__call__" in vars(cls)), None)
    return call if isinstance(call, types.FunctionType) else None


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


def _class_namespaces(owner: type, surface: _Surface) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """A method's annotations may refer to its class, which may be local to a function, and to names in its body."""
    names: dict[str, Any] = {}
    for cls in reversed(owner.__mro__[:-1]):
        names.update(vars(cls))
        names[cls.__name__] = cls
    for outer, local in list(surface.namespaces):
        yield outer, {**names, **local}


def _without_first(surface: _Surface) -> _Surface:
    """The surface of a bound method: the first parameter is the object it is bound to."""
    if not surface.parameters:
        raise ToolDefinitionError(f"tool {surface.name!r} is a bound method without a parameter for the object")
    first = surface.parameters[0]
    if first.kind is first.VAR_POSITIONAL:
        return surface
    if first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
        raise ToolDefinitionError(f"tool {surface.name!r} is a bound method without a parameter for the object")
    surface.parameters = surface.parameters[1:]
    if first.kind is first.POSITIONAL_OR_KEYWORD:
        surface.taken |= {first.name}
    return surface


def _bound(partial: functools.partial[Any], surface: _Surface) -> _Surface:
    """Take what a partial has bound out of the surface."""
    own_doc = partial.__dict__.get("__doc__")
    surface.doc = own_doc if isinstance(own_doc, str) else surface.doc
    own_name = partial.__dict__.get("__name__")
    surface.name = own_name if isinstance(own_name, str) else surface.name
    placeholder = getattr(functools, "Placeholder", None)
    for value in partial.args:
        if placeholder is not None and value is placeholder:
            raise ToolDefinitionError(
                f"tool {surface.name!r}: a placeholder in a partial has to be filled by position, and a model calls "
                "by name; bind by name instead"
            )
        first = surface.parameters[0] if surface.parameters else None
        if first is None or first.kind in (first.KEYWORD_ONLY, first.VAR_KEYWORD):
            raise ToolDefinitionError(f"tool {surface.name!r}: its partial binds more arguments than it takes")
        if first.kind is first.VAR_POSITIONAL:
            break
        surface.parameters = surface.parameters[1:]
        if first.kind is first.POSITIONAL_OR_KEYWORD:
            surface.taken |= {first.name}
    for name in partial.keywords:
        others = [p for p in surface.parameters if p.name != name or p.kind not in _BY_NAME]
        if len(others) == len(surface.parameters) and not surface.is_open:
            raise ToolDefinitionError(f"tool {surface.name!r}: its partial binds {name!r}, which is no parameter of it")
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


def _refuse_unbound_method(func: Any, surface: _Surface, label: str) -> None:
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
            f"{label}: parameter {first.name!r} is the object of a method, which a model cannot supply; "
            f"pass the method of an instance, {owner.rpartition('.')[2]}(...).{surface.name}"
        )


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One argument as it will be checked."""

    name: str
    annotation: Any
    required: bool
    default: Any = inspect.Parameter.empty
    description: str | None = None


def _parameters(
    surface: _Surface, described: Docstring, label: str
) -> tuple[tuple[_Parameter, ...], _Parameter | None]:
    """The parameters that have a name, and what stands for all others where `**kwargs` takes them."""
    for parameter in surface.parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ToolDefinitionError(
                f"{label}: parameter {parameter.name!r} is positional-only, and a model calls by name; "
                "remove the '/' or bind it with functools.partial"
            )
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise ToolDefinitionError(
                f"{label}: parameter '*{parameter.name}' takes positional arguments, and a model calls by name; "
                f"take a list instead, {parameter.name}: list[...]"
            )
    hints = _hints(surface, label)
    named: list[_Parameter] = []
    extras: _Parameter | None = None
    for parameter in surface.parameters:
        hint = hints.get(parameter.name, Any)
        if parameter.kind is not parameter.VAR_KEYWORD:
            named.append(
                _Parameter(
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
            extras = _Parameter(parameter.name, hint, required=False)
    names = [each.name for each in named]
    for each in named:
        _require_copyable(each, label)
        if names.count(each.name) > 1:
            raise ToolDefinitionError(f"{label}: parameter {each.name!r} is declared twice; rename one")
    return tuple(named), extras


def _unpacked(options: Any, described: Docstring) -> Iterator[_Parameter]:
    """The keys of a TypedDict that a function takes as `**options: Unpack[Options]`."""
    for name, hint, required in _members(options):
        yield _Parameter(name, hint, required, description=described.parameters.get(name))


def _members(typed_dict: Any) -> Iterator[tuple[str, Any, bool]]:
    """The keys of a TypedDict, with their types and whether they are required."""
    for name, hint in typing.get_type_hints(typed_dict, include_extras=True).items():
        # With postponed annotations the class does not know of its own qualifiers, so they count more.
        required = name in typed_dict.__required_keys__
        while (qualifier := typing.get_origin(hint)) in (typing.Required, typing.NotRequired):
            required, hint = qualifier is typing.Required, typing.get_args(hint)[0]
        yield name, hint, required


def _portable(hint: Any, known: dict[Any, Any] | None = None) -> Any:
    """The same type in words that pydantic understands: before Python 3.12 it refuses `typing.TypedDict`."""
    if sys.version_info >= (3, 12):
        return hint
    known = {} if known is None else known
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        if hint not in known:
            from typing_extensions import TypedDict

            known[hint] = twin = cast("Any", TypedDict)(hint.__name__, {})
            twin.__doc__, twin.__module__, twin.__qualname__ = hint.__doc__, hint.__module__, hint.__qualname__
            members = list(_members(hint))
            # Filled in afterwards, so that a type may contain itself.
            twin.__annotations__ = {
                name: cast("Any", typing.Required if required else typing.NotRequired)[_portable(inner, known)]
                for name, inner, required in members
            }
            twin.__required_keys__ = frozenset(name for name, _, required in members if required)
            twin.__optional_keys__ = frozenset(name for name, _, required in members if not required)
        return known[hint]
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return cast("Any", Annotated)[(_portable(hint.__origin__, known), *hint.__metadata__)]
    if not inside or origin is typing.Literal:
        return hint
    translated = tuple(_portable(inner, known) for inner in inside)
    if all(map(_is, translated, inside)):
        return hint
    if origin in (typing.Union, types.UnionType):
        return cast("Any", typing.Union)[translated]
    return hint.copy_with(translated) if hasattr(hint, "copy_with") else origin[translated]


def _require_copyable(parameter: _Parameter, label: str) -> None:
    if _is_mutable(parameter.default):
        try:
            copy.deepcopy(parameter.default)
        except Exception as error:  # the copying is done by the default's own methods
            raise ToolDefinitionError(
                f"{label}: the default of parameter {parameter.name!r} would be shared between calls, and it cannot be "
                f"copied ({type(error).__name__}); use None and make the value in the function"
            ) from error


def _is_mutable(default: Any) -> bool:
    """Whether one call could change the default of the next. Values with a hash promise that they do not change."""
    try:
        hash(default)
    except TypeError:
        return True
    return False


def _hints(surface: _Surface, label: str) -> dict[str, Any]:
    """The parameters' annotations as types."""
    annotations = {p.name: p.annotation for p in surface.parameters if p.annotation is not p.empty}
    try:
        return _resolved(annotations, *(surface.namespaces[0] if surface.namespaces else ({}, {})))
    except Exception:  # whatever evaluating an annotation raises; the slow way finds out which one it was
        return {name: _resolved_alone(name, written, surface, label) for name, written in annotations.items()}


def _resolved_alone(name: str, written: Any, surface: _Surface, label: str) -> Any:
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
        f"{label}: the annotation of parameter {name!r} cannot be evaluated: {reason}; "
        "import the type at run time, and define it outside of functions"
    ) from reason


def _resolved(annotations: dict[str, Any], outer: dict[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    def bearer() -> None:
        """Carries annotations to where the standard library resolves them."""

    bearer.__annotations__ = annotations
    return typing.get_type_hints(bearer, outer, local, include_extras=True)


def _result_type(surface: _Surface) -> Any:
    """The annotation of the result as a type, or `inspect.Parameter.empty`."""
    if surface.returns is inspect.Parameter.empty:
        return surface.returns
    try:
        hint = _resolved_alone("return", surface.returns, surface, "")
    except ToolDefinitionError:  # a result needs no type
        return inspect.Parameter.empty
    if typing.get_origin(hint) in (collections.abc.Awaitable, collections.abc.Coroutine):
        return typing.get_args(hint)[-1]
    return hint


class _Result:
    """The schema of a result, made when somebody asks for it."""

    __slots__ = ("_annotation", "_schema")

    def __init__(self, annotation: Any) -> None:
        self._annotation = annotation
        self._schema: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any] | None:
        annotation = self._annotation
        if annotation is not inspect.Parameter.empty:
            self._schema = _output_schema(annotation)
            self._annotation = inspect.Parameter.empty
        return self._schema


def _output_schema(annotation: Any) -> dict[str, Any] | None:
    if annotation in (typing.NoReturn, typing.Never):
        return None
    from pydantic import ConfigDict, TypeAdapter

    def described(handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(_portable(annotation))

    try:
        adapter = TypeAdapter[Any](Annotated[Any, _Made(described)], config=ConfigDict(ser_json_bytes="base64"))
        schema = adapter.json_schema(mode="serialization", schema_generator=_untitled())
        check_schema_size(schema, "the result")
    except Exception:  # a result that neither pydantic nor a type's own hooks can describe has no schema
        return None
    return schema


@dataclass(frozen=True, slots=True)
class _Made:
    """Says in an annotation that the core schema is made by a function."""

    make: Callable[[GetCoreSchemaHandler], CoreSchema]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return self.make(handler)


class _TypedArguments:
    """Checks arguments against the annotations of a signature."""

    __slots__ = ("_built", "_extras", "_label", "_parameters", "_taken")

    def __init__(
        self, label: str, parameters: tuple[_Parameter, ...], extras: _Parameter | None, taken: frozenset[str]
    ) -> None:
        self._label = label
        self._parameters = parameters
        self._extras = extras
        self._taken = taken
        self._built: _Built | None = None

    def __repr__(self) -> str:
        return f"<arguments of {self._label}: {', '.join(p.name for p in self._parameters)}>"

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the arguments, an object. It is shared: whoever wants to change it takes a copy."""
        return (self._built or self.build()).schema

    def validate(self, text: str) -> dict[str, Any]:
        """Check a JSON object strictly and give the keyword arguments it stands for.

        Keys that were not given are not in the result, so that the callable's own defaults apply, except for
        mutable defaults, which are copied, and for those of a pydantic `Field`.

        Raises `ArgumentsError`. Whatever else a validator of an annotated type raises passes through.
        """
        built = self._built or self.build()
        require_finite(text)
        try:
            values: dict[str, Any] = built.check(text, strict=True)
        except ValueError as error:
            problems = _problems(error)
        else:
            for name, fresh in built.defaults:
                if name not in values:
                    values[name] = fresh(values)
            if self._extras is not None and not self._taken.isdisjoint(values):
                problems = [
                    Problem(name, "This argument is set already and cannot be given")
                    for name in sorted(self._taken.intersection(values))
                ]
            else:
                return values
        # Raised outside of the handler: pydantic's error holds the values, and would be kept as the context.
        raise ArgumentsError(problems)

    def cannot_fail(self) -> bool:
        """Whether building may wait for the first use, because all the types are known to work."""
        everything = (*self._parameters, self._extras) if self._extras else self._parameters
        return (
            len(everything) <= _MOST_PLAIN_PARAMETERS
            and all(_is_plain(p.annotation) and _is_plain_default(p.default) for p in everything)
            and sum(len(p.description or "") for p in everything) <= _LONGEST_PLAIN_DESCRIPTIONS
        )

    def build(self) -> _Built:
        """Make the validator and the schema. Two threads may do so at once: they make the same."""
        self._built = built = _build(self._label, self._parameters, self._extras)
        return built


_MOST_PLAIN_PARAMETERS = 100
_LONGEST_PLAIN_DESCRIPTIONS = 32 * 1024
_DEEPEST_PLAIN_TYPE = 8
_PLAIN_TYPES = frozenset(
    {
        Any, object, None, types.NoneType, str, int, float, bool, list, dict,
        datetime.date, datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID,
    }
)  # fmt: skip


def _is_plain(hint: Any, depth: int = 0) -> bool:
    """Whether pydantic is known to accept a type and to make a small schema of it."""
    if depth > _DEEPEST_PLAIN_TYPE:
        return False
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return not _is_mutable(hint) and hint in _PLAIN_TYPES
    if origin is Annotated:
        return all(isinstance(note, str) for note in hint.__metadata__) and _is_plain(hint.__origin__, depth + 1)
    if origin is typing.Literal:
        return len(inside) <= _MOST_PLAIN_PARAMETERS and all(_is_plain_value(v) for v in inside)
    if origin is dict:
        return inside[0] is str and _is_plain(inside[1], depth + 1)
    if origin in (list, typing.Union, types.UnionType):
        return all(_is_plain(inner, depth + 1) for inner in inside)
    return False


def _is_plain_default(value: object) -> bool:
    return _is_plain_value(value) or (type(value) in (list, dict) and not value)


def _is_plain_value(value: object) -> bool:
    if value is None or value is inspect.Parameter.empty or type(value) in (bool, int, float):
        return True
    return type(value) is str and len(value) <= 1024


@dataclass(frozen=True, slots=True)
class _Built:
    """What a call needs, and nothing of what was needed to make it."""

    check: Callable[..., dict[str, Any]]
    schema: dict[str, Any]
    defaults: tuple[tuple[str, Callable[[dict[str, Any]], Any]], ...]
    """What fills in a missing argument whose default the callable itself would share or does not have."""


def _build(label: str, parameters: tuple[_Parameter, ...], extras: _Parameter | None) -> _Built:
    fields = [_field(parameter, label) for parameter in parameters]
    _require_distinct_keys(fields, extras, label)
    validator, schema = _compile(fields, extras, label)
    properties: dict[str, Any] = schema.get("properties", {})
    for each in fields:
        if each.shown is not inspect.Parameter.empty:
            properties[each.key]["default"] = each.shown
    whole: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": schema.get("additionalProperties", False),
    }
    if "$defs" in schema:
        whole["$defs"] = schema["$defs"]
    check_schema_size(whole, label)
    fresh = tuple((each.name, each.fresh) for each in fields if each.fresh is not None)
    return _Built(validator.validate_json, whole, fresh)


@dataclass(frozen=True, slots=True)
class _Field:
    """A parameter in pydantic's terms."""

    name: str
    key: str
    annotation: Any
    required: bool
    shown: Any
    fresh: Callable[[dict[str, Any]], Any] | None


def _field(parameter: _Parameter, label: str) -> _Field:
    """Sort out what the annotation, a `Field` as the default and the docstring say about a parameter."""
    from pydantic import AliasChoices, AliasPath, Field
    from pydantic.fields import FieldInfo
    from pydantic_core import PydanticUndefined

    base, notes = parameter.annotation, list[Any]()
    if typing.get_origin(base) is Annotated:
        base, notes = base.__origin__, list(base.__metadata__)
    default, required = parameter.default, parameter.required
    if isinstance(default, FieldInfo):
        notes.append(default)
        default, required = inspect.Parameter.empty, True
    key, described, factory = parameter.name, False, None
    kept: list[Any] = []
    for note in notes:
        if not isinstance(note, FieldInfo):
            kept.append(note)
            continue
        # Alias and default are this module's to apply: outside of a model pydantic would warn and ignore them.
        alias = note.validation_alias if note.validation_alias is not None else note.alias
        if isinstance(alias, (AliasChoices, AliasPath)):
            raise ToolDefinitionError(
                f"{label}: parameter {parameter.name!r} has several aliases, and a schema has one name; keep one"
            )
        key = alias or key
        described = described or note.description is not None
        if required and note.default_factory is not None:
            factory = note.default_factory
        elif required and note.default is not PydanticUndefined and note.default is not ...:
            default = note.default
        kept.extend(note.metadata)
        kept.append(
            Field(
                title=note.title,
                description=note.description,
                examples=note.examples,
                discriminator=note.discriminator,
                deprecated=note.deprecated,
                json_schema_extra=note.json_schema_extra,
            )
        )
    if not described:
        texts = (note if isinstance(note, str) else getattr(note, "documentation", None) for note in notes)
        description = next((text for text in texts if isinstance(text, str)), None) or parameter.description
        if description:
            kept.append(Field(description=inspect.cleandoc(description)))
    fills = factory is not None or default is not parameter.default or _is_mutable(default)
    return _Field(
        name=parameter.name,
        key=key,
        annotation=cast("Any", Annotated)[(base, *kept)] if kept else base,
        required=required and factory is None and default is inspect.Parameter.empty,
        shown=inspect.Parameter.empty if factory is not None else _as_json(default),
        fresh=_filler(factory, default) if fills and (factory or default is not inspect.Parameter.empty) else None,
    )


def _filler(factory: Any, default: Any) -> Callable[[dict[str, Any]], Any]:
    if factory is None:
        return lambda values: copy.deepcopy(default) if _is_mutable(default) else default
    takes_values = bool(inspect.signature(factory).parameters) if not isinstance(factory, type) else False
    return (lambda values: factory(dict(values))) if takes_values else (lambda values: factory())


def _as_json(default: Any) -> Any:
    """A default as the schema shows it, or `inspect.Parameter.empty` for one that JSON cannot carry."""
    from pydantic_core import to_jsonable_python

    if default is inspect.Parameter.empty:
        return default
    try:
        shown = to_jsonable_python(default, bytes_mode="base64", inf_nan_mode="constants", serialize_unknown=False)
        json.dumps(shown, allow_nan=False)
    except Exception:  # what the default's type makes of itself is not ours; the schema does without
        return inspect.Parameter.empty
    return shown


def _require_distinct_keys(fields: list[_Field], extras: _Parameter | None, label: str) -> None:
    seen: set[str] = set()
    for each in fields:
        if each.key in seen or (each.key != each.name and extras is not None):
            raise ToolDefinitionError(
                f"{label}: the alias {each.key!r} of parameter {each.name!r} can be mistaken for another argument; "
                "use the parameter's own name"
            )
        seen.add(each.key)


def _compile(fields: list[_Field], extras: _Parameter | None, label: str) -> tuple[SchemaValidator, dict[str, Any]]:
    try:
        return _compiled(fields, extras)
    except Exception as error:  # pydantic's errors, and those of the types' own hooks
        _blame(fields, extras, label)
        raise ToolDefinitionError(
            f"{label}: its parameters cannot be described together: {_first_line(error)}"
        ) from error


def _blame(fields: list[_Field], extras: _Parameter | None, label: str) -> None:
    """Say which parameter it is that cannot be described."""
    alone: list[tuple[str, list[_Field], _Parameter | None]] = [(f"{each.name!r}", [each], None) for each in fields]
    if extras is not None:
        alone.append((f"'**{extras.name}'", [], extras))
    for name, only, rest in alone:
        try:
            _compiled(only, rest)
        except Exception as error:  # as above
            raise ToolDefinitionError(
                f"{label}: parameter {name} has a type that JSON cannot carry: {_first_line(error)}; use plain types, "
                "a dataclass, a TypedDict or a pydantic model, or bind the argument with functools.partial"
            ) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, _UnsupportedError):
        return str(error)
    lines = str(error).strip().splitlines()
    return f"{lines[0]} ({type(error).__name__})" if lines else type(error).__name__


class _UnsupportedError(Exception):
    """A type that pydantic has a schema for, although no JSON value ever fits it."""


def _compiled(fields: list[_Field], extras: _Parameter | None) -> tuple[SchemaValidator, dict[str, Any]]:
    from pydantic import ConfigDict, TypeAdapter
    from pydantic_core import SchemaValidator, core_schema

    # Without a configuration of its own a typed dict does not take the adapter's.
    core_config = core_schema.CoreConfig(
        strict=True,
        allow_inf_nan=False,
        val_json_bytes="base64",
        hide_input_in_errors=True,
        cache_strings="keys",  # pydantic's cache of strings is global, and values are private
    )
    config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        val_json_bytes="base64",
        ser_json_bytes="base64",
        hide_input_in_errors=True,
        cache_strings="keys",
    )

    def made(handler: GetCoreSchemaHandler) -> CoreSchema:
        known: dict[Any, Any] = {}
        return core_schema.typed_dict_schema(
            {
                each.name: core_schema.typed_dict_field(
                    handler.generate_schema(_portable(each.annotation, known)),
                    required=each.required,
                    validation_alias=None if each.key == each.name else each.key,
                )
                for each in fields
            },
            extra_behavior="forbid" if extras is None else "allow",
            extras_schema=None if extras is None else handler.generate_schema(_portable(extras.annotation, known)),
            config=core_config,
        )

    adapter = TypeAdapter[Any](Annotated[Any, _Made(made)], config=config)
    schema = adapter.json_schema(schema_generator=_untitled())
    for name, definition in schema.get("$defs", {}).items():
        if "title" in definition and name.endswith(definition["title"]):  # an enum's, which is added late
            del definition["title"]
    original = adapter.core_schema
    exact = _exact(original)
    if exact is original:
        return cast("SchemaValidator", adapter.validator), schema
    return SchemaValidator(exact, core_config), schema


_NOT_A_SCHEMA = frozenset({"cls", "config", "default", "metadata", "serialization"})


def _exact(schema: Any) -> Any:
    """Close three gaps between what pydantic calls strict and what a tool may rely on.

    An iterable is checked while it is consumed, which would be inside of the tool: it is read at once. The
    members of an enum and a Literal are compared as Python does, where true equals 1: they are compared with
    their types. And a class is described in JSON although nothing in JSON is one: it is refused.

    The models of the application stay as they are. They were compiled when their class was made.
    """
    if _is_array(schema) or _is_tuple(schema):
        items = [_exact(item) for item in schema]
        return schema if all(map(_is, items, schema)) else type(schema)(items)
    if not _is_object(schema) or schema.get("type") == "model":
        return schema
    made = {key: value if key in _NOT_A_SCHEMA else _exact(value) for key, value in schema.items()}
    match schema.get("type"):
        case "json-or-python":  # what may be done with Python objects does not matter
            made["python_schema"] = schema["python_schema"]
        case "lax-or-strict":
            made["lax_schema"] = schema["lax_schema"]
        case "is-subclass":
            raise _UnsupportedError("it wants a class")
        case "generator":
            made["type"] = "list"
            made.setdefault("items_schema", {"type": "any"})
        case "literal":
            made = _with_types(made, schema["expected"])
        case "enum":
            made = _with_types(made, [member.value for member in schema["members"]])
        case _:
            pass
    return schema if made.keys() == schema.keys() and all(made[key] is schema[key] for key in made) else made


def _with_types(schema: dict[str, Any], expected: list[Any]) -> dict[str, Any]:
    """The schema of one out of several values, for which true is not 1 and 1.0 is not either."""
    if not any(isinstance(value, (bool, int, float)) for value in expected):
        return schema
    from pydantic_core import PydanticKnownError, core_schema

    words = ", ".join(repr(value) for value in expected)

    def check(value: Any) -> Any:
        if isinstance(value, (bool, int, float)):
            kinds = {bool: (bool,), int: (int, float), float: (float,)}[type(value)]
            if not any(type(_bare(each)) in kinds and each == value for each in expected):
                raise PydanticKnownError("literal_error", {"expected": words})
        return value

    inner = {key: value for key, value in schema.items() if key != "ref"}
    wrapped: Any = core_schema.no_info_before_validator_function(check, cast("Any", inner), ref=schema.get("ref"))
    return cast("dict[str, Any]", wrapped)


def _bare(value: Any) -> Any:
    """The plain value of a member of an `IntEnum`, which is a number itself."""
    return value.value if isinstance(value, enum.Enum) else value


@functools.cache
def _untitled() -> Any:
    """A generator of JSON schemas that leaves out the titles which only repeat a name."""
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def model_schema(self, schema: Any) -> dict[str, Any]:
            return _without_title(super().model_schema(schema), schema)

        def dataclass_schema(self, schema: Any) -> dict[str, Any]:
            return _without_title(super().dataclass_schema(schema), schema)

        def typed_dict_schema(self, schema: Any) -> dict[str, Any]:
            return _without_title(super().typed_dict_schema(schema), schema)

        def enum_schema(self, schema: Any) -> dict[str, Any]:
            return _without_title(super().enum_schema(schema), schema)

    return Untitled


def _without_title(made: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    cls = schema.get("cls")
    if cls is not None and made.get("title") == cls.__name__:
        made = {key: value for key, value in made.items() if key != "title"}
    return made


# Infinity is what a number becomes that is too large for a float, and it is accepted wherever any value is.
_UNUSUAL_NUMBER = re.compile(r"NaN|Infinity|\d[eE]\+?\d{3}|(?<!\d)\d{300}")


def require_finite(text: str) -> None:
    """Raise `ArgumentsError` when a JSON text holds a number that is not finite, or becomes so."""
    if _UNUSUAL_NUMBER.search(text) is None:
        return

    def refuse(_: str) -> float:
        raise ArgumentsError([Problem("", "Input should hold finite numbers only")])

    def finite(number: str) -> float:
        return value if math.isfinite(value := float(number)) else refuse(number)

    try:
        json.loads(text, parse_constant=refuse, parse_float=finite, parse_int=len)
    except (ValueError, RecursionError):  # not JSON or too deep: the validator says so, with the place
        return


def _problems(error: ValueError) -> list[Problem]:
    """Say what is wrong in pydantic's words, without the values it quotes."""
    from pydantic_core import ValidationError

    if not isinstance(error, ValidationError):
        raise error
    details = error.errors(include_url=False)
    problems = [Problem(_path(detail["loc"]), _message(detail)) for detail in details[:MAX_PROBLEMS]]
    if len(details) > MAX_PROBLEMS:
        problems.append(Problem("", f"and {len(details) - MAX_PROBLEMS} more"))
    return problems


def _path(keys: Iterable[int | str]) -> str:
    return ".".join(text if len(text := str(key)) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}…" for key in keys)


def _message(detail: Any) -> str:
    match detail["type"]:
        case "dict_type" if not detail["loc"]:
            return "Input should be an object"
        case "union_tag_invalid":
            return "Input should have one of the tags {expected_tags} as {discriminator}".format(**detail["ctx"])
        case "uuid_parsing":
            return "Input should be a valid UUID"
        case "bytes_invalid_encoding":
            return "Input should be valid base64"
        case kind if kind in _quiet_kinds():
            return str(detail["msg"])
        case _:
            return _masked(detail["msg"], detail["input"])


@functools.cache
def _quiet_kinds() -> frozenset[str]:
    """The errors whose text is pydantic's own, and does not depend on the value."""
    from pydantic_core.core_schema import ErrorType

    return frozenset[str](typing.get_args(ErrorType)) - {"value_error", "assertion_error"}


def _masked(message: str, value: Any) -> str:
    """A message from someone's own validator, with the values it quotes blotted out."""
    for text in sorted(_leaves(value), key=len, reverse=True):
        message = re.sub(rf"(?<!\w){re.escape(text)}(?!\w)", "…", message)
    return message


def _leaves(value: Any) -> set[str]:
    found: set[str] = set()
    todo: list[Any] = [value]
    while todo and len(found) < _MOST_LEAVES:
        item = todo.pop()
        if _is_object(item):
            todo.extend(item.values())
        elif _is_array(item):
            todo.extend(item)
        elif item is not None and item is not True and item is not False and str(item):
            found.add(str(item))
    return found
