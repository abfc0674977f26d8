"""A signature either works as written, or is refused while it is registered."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import gc
import json
import pathlib
import subprocess
import sys
import threading
import types
import typing
import uuid
import weakref
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Generic, Literal, NamedTuple, Optional, Required, TypeVar, Union, Unpack

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from protolink.errors import ToolDefinitionError
from protolink.tools.arguments import ArgumentsError
from protolink.tools.schema import CallableSignature, check_tool_name, inspect_callable

T = TypeVar("T")
Small = TypeVar("Small", bound=int)


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Node(BaseModel):
    """A node of a tree."""

    title: str = Field(description="What it is called.")
    kids: list[Node] = []


class Box(BaseModel, Generic[T]):
    item: T


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0


@pydantic.dataclasses.dataclass
class Checked:
    x: int


class Row(typing.TypedDict):
    id: int
    note: typing.NotRequired[str]
    below: typing.NotRequired[list[Row]]


class Options(typing.TypedDict, total=False):
    limit: Required[int]
    order: str


class Pair(NamedTuple):
    left: int
    right: int = 2


class Plain:
    """No JSON value is one of these."""


def taking(annotation: Any, *default: Any) -> Callable[..., None]:
    """A function with one parameter `x`."""

    def tool(x: Any) -> None:
        """Take x."""

    tool.__annotations__ = {"x": annotation}
    tool.__defaults__ = default or None
    return tool


def given_json(func: Callable[..., Any], text: str) -> dict[str, Any]:
    return inspect_callable(func).arguments.validate(text)


def refused(func: Callable[..., Any], text: str) -> str:
    with pytest.raises(ArgumentsError) as caught:
        given_json(func, text)
    return str(caught.value)


def shape(annotation: Any) -> Any:
    return inspect_callable(taking(annotation)).arguments.schema["properties"]["x"]


def book(guests: int, name: str = "walk-in", *, wishes: list[str] | None = None) -> str:
    """Book a table.

    Args:
        guests: How many will come.
    """
    return f"{guests} {name} {wishes}"


def test_a_function_becomes_a_schema() -> None:
    """This is what the model reads."""
    found = inspect_callable(book)

    assert (found.name, found.description, found.is_async) == ("book", "Book a table.", False)
    assert found.output_schema == {"type": "string"}
    assert found.arguments.schema == {
        "type": "object",
        "properties": {
            "guests": {"type": "integer", "description": "How many will come."},
            "name": {"type": "string", "default": "walk-in"},
            "wishes": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}], "default": None},
        },
        "required": ["guests"],
        "additionalProperties": False,
    }


def test_only_given_keys_are_passed_on() -> None:
    """A default is the function's own affair."""
    assert given_json(book, '{"guests": 2}') == {"guests": 2}


ARRIVES: list[tuple[Any, str, Any]] = [
    (int, "4", 4),
    (float, "1", 1.0),
    (bool, "true", True),
    (None, "null", None),
    (Any, '[{"a": null}]', [{"a": None}]),
    (object, "1.5", 1.5),
    (int | str, '"4"', "4"),
    (int | float, "1.0", 1.0),
    (Literal["a", 1], "1", 1),
    (Literal[True], "true", True),
    (Literal[1.5], "1.5", 1.5),
    (Color, '"red"', Color.RED),
    (Level, "1", Level.LOW),
    (Node, '{"title": "a", "kids": [{"title": "b"}]}', Node(title="a", kids=[Node(title="b")])),
    (Box[int], '{"item": 1}', Box[int](item=1)),
    (Point, '{"x": 1}', Point(1)),
    (Checked, '{"x": 1}', Checked(1)),
    (Row, '{"id": 1, "below": [{"id": 2}]}', {"id": 1, "below": [{"id": 2}]}),
    (Pair, "[1]", Pair(1)),
    (dt.date, '"2024-05-06"', dt.date(2024, 5, 6)),
    (dt.datetime, '"2024-05-06T07:08:09"', dt.datetime(2024, 5, 6, 7, 8, 9)),
    (dt.time, '"07:08"', dt.time(7, 8)),
    (dt.timedelta, '"PT90S"', dt.timedelta(seconds=90)),
    (decimal.Decimal, '"1.10"', decimal.Decimal("1.10")),
    (uuid.UUID, '"12345678-1234-5678-1234-567812345678"', uuid.UUID("12345678-1234-5678-1234-567812345678")),
    (bytes, '"aGk="', b"hi"),
    (list[bytes], '["aGk="]', [b"hi"]),
    (pathlib.Path, '"a/b"', pathlib.Path("a/b")),
    (set[int], "[1, 1]", {1}),
    (frozenset[str], '["a"]', frozenset({"a"})),
    (tuple[int, ...], "[1, 2]", (1, 2)),
    (dict[int, str], '{"1": "a"}', {1: "a"}),
    (Iterable[int], "[1, 2]", [1, 2]),
    (Mapping[str, int], '{"a": 1}', {"a": 1}),
    (T, '"a"', "a"),
    (Small, "1", 1),
    (Annotated[int, Field(ge=1)], "1", 1),
]


@pytest.mark.parametrize(("annotation", "text", "value"), ARRIVES, ids=lambda value: str(value)[:40])
def test_values_arrive_as_their_python_types(annotation: Any, text: str, value: Any) -> None:
    """A function that asks for a date is not given a text."""
    arrived = given_json(taking(annotation), f'{{"x": {text}}}')["x"]

    assert arrived == value
    assert type(arrived) is type(value)


CONVERTED: list[tuple[Any, str]] = [
    (int, "true"),
    (int, '"4"'),
    (int, "4.5"),
    (int, "4.0"),
    (int, "null"),
    (float, '"1"'),
    (float, "true"),
    (str, "4"),
    (bool, "1"),
    (int | None, '"4"'),
    (int | bool, '"true"'),
    (str | int, "4.5"),
    (list[int], '"1"'),
    (list[int], '["1"]'),
    (set[int], '["1"]'),
    (tuple[int, str], "[1]"),
    (Iterable[int], '["1"]'),
    (dict[str, int], '{"a": true}'),
    (Literal[1], "true"),
    (Literal[1], "1.0"),
    (Literal[True], "1"),
    (Level, "true"),
    (list[Level], "[true]"),
    (Color, '"RED"'),
    (Node, '{"title": 1}'),
    (Point, '{"x": "1"}'),
    (Point, '{"x": 1, "z": 1}'),
    (Row, '{"id": 1, "z": 1}'),
    (Row, '{"id": 1, "below": [{"id": true}]}'),
    (dt.date, "20240506"),
    (dt.datetime, "5"),
    (dt.timedelta, "5"),
    (bytes, '"!"'),
    (decimal.Decimal, "true"),
    (decimal.Decimal, '"NaN"'),
    (uuid.UUID, '"1"'),
    (pathlib.Path, "1"),
    (None, "0"),
    (Small, '"1"'),
    (Annotated[int, Field(ge=1)], "0"),
]


@pytest.mark.parametrize(("annotation", "text"), CONVERTED, ids=str)
def test_nothing_is_converted(annotation: Any, text: str) -> None:
    """A guess about what the model meant can be wrong, and the model can be asked."""
    assert refused(taking(annotation), f'{{"x": {text}}}').startswith("x")


@pytest.mark.parametrize("annotation", [int | None, Optional[int], Union[None, int], "Optional[int]", "int | None"])  # noqa: UP007, UP045
def test_a_nullable_parameter_is_not_an_optional_one(annotation: Any) -> None:
    """Null is a value; leaving something out is something else. All spellings agree."""
    tool = taking(annotation)

    assert given_json(tool, '{"x": null}') == {"x": None}
    assert refused(tool, "{}") == "x: Field required"
    assert given_json(taking(annotation, None), "{}") == {}


@pytest.mark.parametrize("annotation", [Any, float, dict[str, Any], Box[Any], list[object]])
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1E+0400", "9" * 400 + ".5"])
def test_numbers_are_finite_whatever_the_type(annotation: Any, number: str) -> None:
    """No journal could hold them as JSON."""
    for text in (number, f"[{number}]", f'{{"item": {number}}}'):
        assert refused(taking(annotation), f'{{"x": {text}}}')


def test_words_and_large_numbers_are_no_infinities() -> None:
    """What only looks unusual passes."""
    assert given_json(taking(Any), '{"x": ["NaN 1e999", 1e300, ' + "9" * 400 + "]}")["x"][1:] == [1e300, int("9" * 400)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"x"',
        "7",
        '{"x": ' + "[" * 10_000 + "]" * 10_000 + "}",
        '{"x": "\\ud800"}',
        '{"x": "\ud800"}',
    ],
    ids=["empty", "cut", "array", "null", "text", "number", "deep", "half a character", "surrogate"],
)
@pytest.mark.parametrize("annotation", [Any, Node])
def test_hostile_texts_are_problems_of_the_arguments(annotation: Any, text: str) -> None:
    """Whatever a model writes ends as a correction, never as a crash."""
    assert refused(taking(annotation), text)


def test_deep_values_of_a_recursive_model_are_refused() -> None:
    """The interpreter's stack is not the model's to use up."""
    assert refused(taking(Node), '{"x": ' + '{"title": "", "kids": [' * 10_000 + "]}" * 10_000 + "}")


def test_problems_name_the_place_and_not_the_value() -> None:
    """Corrections are recorded where a value may be private."""

    def charge(item_id: int, node: Node) -> None: ...

    message = refused(charge, '{"item_id": "hunter2", "node": {"title": ["hunter2"]}, "x": "hunter2"}')

    assert message == (
        "item_id: Input should be a valid integer; node.title: Input should be a valid string; "
        "x: Extra inputs are not permitted"
    )


class Secretive(BaseModel):
    word: str

    @pydantic.field_validator("word")
    @classmethod
    def weak(cls, word: str) -> str:
        raise ValueError(f"{word!r} is too weak, add a digit")


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (Secretive, '{"word": "hunter2"}'),
        (Annotated[Cat | Dog, Field(discriminator="kind")], '{"kind": "hunter2"}'),
        (uuid.UUID, '"hunter2"'),
        (Literal["a", 1], '"hunter2"'),
    ],
)
def test_quoted_values_are_blotted_out(annotation: Any, text: str) -> None:
    """Some messages quote what they complain about, the application's own among them."""
    with pytest.raises(ArgumentsError) as caught:
        given_json(taking(annotation), f'{{"x": {text}}}')

    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


def test_a_validators_own_words_reach_the_model() -> None:
    """They say best how to do it right."""
    assert "is too weak, add a digit" in refused(taking(Secretive), '{"x": {"word": "abc"}}')


def test_problems_are_bounded() -> None:
    """A hundred thousand wrong items are not a hundred thousand lines for the model."""
    message = refused(taking(list[int]), json.dumps({"x": ["a"] * 1000, "k" * 1000: 1}))

    assert message.endswith("and 981 more")
    assert len(message) < 2000


@pytest.mark.parametrize(
    "name",
    ["model_config", "schema", "copy", "json", "dict", "_x", "__class__", "validate", "title", "größe", "values"],
)
def test_any_parameter_name_works(name: str) -> None:
    """Names that mean something to a library underneath mean nothing here."""
    tool = taking(int)
    tool.__code__ = tool.__code__.replace(co_varnames=(name,))
    tool.__annotations__ = {name: int}

    assert given_json(tool, json.dumps({name: 1})) == {name: 1}
    assert inspect_callable(tool).arguments.schema["properties"] == {name: {"type": "integer"}}


def tagged(x: int, **tags: int) -> None: ...


def anything(**rest: Any) -> None: ...


def test_open_keywords_are_open_and_checked() -> None:
    """`**tags: int` takes any name and no other type, names that are Python's words included."""
    text = '{"x": 1, "self": 2, "class": 3, "_y": 4, "a b": 5}'

    assert given_json(tagged, text) == json.loads(text)
    assert refused(tagged, '{"x": 1, "y": "2"}') == "y: Input should be a valid integer"
    assert inspect_callable(tagged).arguments.schema["additionalProperties"] == {"type": "integer"}
    assert inspect_callable(anything).arguments.schema["additionalProperties"] is True


def optional(**options: Unpack[Options]) -> None: ...


def test_unpacked_keywords_are_parameters() -> None:
    """Their names are known, so the model is told."""
    assert inspect_callable(optional).arguments.schema["required"] == ["limit"]
    assert given_json(optional, '{"limit": 1}') == {"limit": 1}
    assert refused(optional, '{"limit": 1, "z": 1}') == "z: Extra inputs are not permitted"


class Shop:
    """A shop."""

    def sell(self, units: int) -> None:
        """Sell some."""

    async def order(self, units: int) -> None:
        """Order some."""

    @classmethod
    def open(cls, units: int) -> None: ...

    @staticmethod
    def close(units: int) -> None: ...

    def label(self, **words: str) -> None: ...

    def like(self, other: Shop.Card) -> None: ...

    class Card(BaseModel):
        units: int


class Seller:
    """Sell some."""

    def __init__(self, till: object = None) -> None:
        self.till = till

    def __call__(self, units: int) -> None: ...


class AsyncSeller(Seller):
    async def __call__(self, units: int) -> None:  # type: ignore[override]
        """Sell some later."""


class Static:
    """Called without itself."""

    @staticmethod
    def __call__(units: int) -> None: ...


class Descriptor:
    """What a decorator written as a class often is."""

    def __get__(self, instance: object, owner: object = None) -> Descriptor:
        return self

    async def __call__(self, units: int) -> None: ...


def counted(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


@counted
def decorated(units: int) -> None: ...


class Decorated:
    @counted
    def sell(self, units: int) -> None: ...


def two(first: str, units: int) -> None: ...


async def later(units: int) -> None: ...


CALLABLES: list[tuple[Callable[..., Any], str, bool]] = [
    (Shop().sell, "sell", False),
    (Shop().order, "order", True),
    (Shop.open, "open", False),
    (Shop().open, "open", False),
    (Shop.close, "close", False),
    (Seller(), "Seller", False),
    (AsyncSeller(), "AsyncSeller", True),
    (Descriptor(), "Descriptor", True),
    (Static(), "Static", False),
    (decorated, "decorated", False),
    (Decorated().sell, "sell", False),
    (functools.lru_cache(decorated), "decorated", False),
    (functools.partial(two, "a"), "two", False),
    (functools.partial(two, first="a"), "two", False),
    (functools.partial(functools.partial(two), "a"), "two", False),
    (functools.partial(Shop().sell), "sell", False),
    (later, "later", True),
    (functools.partial(later), "later", True),
]


@pytest.mark.parametrize(("func", "name", "is_async"), CALLABLES)
def test_every_kind_of_callable_works(func: Callable[..., Any], name: str, is_async: bool) -> None:
    """What is called has one parameter left, and the model is told about that one only."""
    found = inspect_callable(func)

    assert (found.name, found.is_async) == (name, is_async)
    assert found.arguments.schema["properties"] == {"units": {"type": "integer"}}
    result = func(**found.arguments.validate('{"units": 1}'))
    assert (asyncio.run(result) if is_async else result) is None


def test_annotations_may_name_the_class_of_a_method() -> None:
    """They are read where they were written."""
    assert given_json(Shop().like, '{"other": {"units": 1}}') == {"other": Shop.Card(units=1)}


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (functools.partial(tagged, 5), "x"),
        (functools.partial(tagged, x=5), "x"),
        (functools.partial(tagged, y=5), "y"),
        (Shop().label, "self"),
    ],
)
def test_what_is_bound_cannot_be_given(func: Callable[..., Any], name: str) -> None:
    """The application has decided about it; open keywords are no way around."""
    assert refused(func, json.dumps({name: 1 if name != "self" else "a"} | ({"x": 1} if name == "y" else {}))) == (
        f"{name}: This argument is set already and cannot be given"
    )


def test_a_wrapper_counts_as_it_is_called() -> None:
    """A decorator that supplies an argument takes it away from the model."""

    @functools.wraps(two)
    def wrapper(units: int) -> None:
        two("a", units)

    assert list(inspect_callable(wrapper).arguments.schema["properties"]) == ["units"]


def positional_only(x: int, /) -> None: ...
def star(*x: int) -> None: ...
def missing(x: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821
def generator(x: int) -> Iterator[int]:
    yield x


async def async_generator(x: int) -> AsyncIterator[int]:
    yield x


def locked(x: list[Any] = [threading.Lock()]) -> None: ...  # noqa: B006, B008


@functools.singledispatch
def dispatched(x: int) -> None: ...


nameless: Callable[[Any], Any] = lambda units: units  # noqa: E731
surplus: Any = two
REFUSED: list[tuple[Any, str]] = [
    (positional_only, "parameter 'x' is positional-only"),
    (star, "take a list instead"),
    (missing, "parameter 'x'"),
    (generator, "collect the pieces"),
    (async_generator, "collect the pieces"),
    (functools.partial(generator), "collect the pieces"),
    (locked, "default of parameter 'x'"),
    (taking(Plain), "parameter 'x'"),
    (taking(list[Plain]), "parameter 'x'"),
    (taking(Callable[[], int]), "parameter 'x'"),
    (taking(type[int]), "parameter 'x'"),
    (taking(5), "parameter 'x'"),
    (taking("not a type"), "parameter 'x'"),
    (taking(Literal[tuple(f"{n:0>9}" for n in range(30_000))]), "bytes"),
    (taking(functools.reduce(lambda inner, _: list[inner], range(70), int)), "deep"),  # type: ignore[valid-type,arg-type,return-value]
    (nameless, "name="),
    (len, "positional-only"),
    (max, "wrap it"),
    (Shop, "is a class"),
    (Shop.sell, "method of an instance"),
    (vars(Shop)["open"], "not callable"),
    (5, "not callable"),
    (dispatched, "singledispatch"),
    (functools.partial(surplus, 1, 2, 3), "more arguments"),
    (functools.partial(surplus, third=3), "'third'"),
]


@pytest.mark.parametrize(("func", "reason"), REFUSED)
def test_what_cannot_work_is_refused_at_once(func: Any, reason: str) -> None:
    """A tool that is offered but can never run wastes the model's turns, and hides the mistake."""
    with pytest.raises(ToolDefinitionError, match=reason):
        inspect_callable(func)


@pytest.mark.parametrize("name", ["", "1a", "a b", "a\n", "\uff41", "é", "a" * 65, "a.b", "a\0", None, 5])
def test_a_name_that_providers_refuse_is_refused_here(name: Any) -> None:
    """Better at the desk than in production."""
    with pytest.raises(ToolDefinitionError, match="name"):
        check_tool_name(name)


def test_a_name_and_a_description_can_be_given() -> None:
    """A lambda needs a name; everything else may have a better one."""
    found = inspect_callable(nameless, name="sell-2", description="Sell.")

    assert (found.name, found.description) == ("sell-2", "Sell.")
    assert found.arguments.schema["properties"] == {"units": {}}


def test_a_local_class_is_found_where_the_function_uses_it() -> None:
    """Postponed annotations are texts, and the function's closure knows what they mean."""

    class Local(BaseModel):
        x: int

    def tool(item: Local) -> object:
        return Local

    assert given_json(tool, '{"item": {"x": 1}}') == {"item": Local(x=1)}


def test_a_local_class_that_cannot_be_found_is_named() -> None:
    """Python has forgotten it by then."""

    class Local(BaseModel):
        x: int

    def tool(item: Local) -> None: ...

    with pytest.raises(ToolDefinitionError, match="'item'"):
        inspect_callable(tool)


def fielded(
    x: Annotated[int, Field(description="From the field.", ge=0)],
    y: Annotated[str, "From a note."] = "a",
    z: int = Field(5, le=10, title="Zed"),
    tags: list[str] = Field(default_factory=list),  # noqa: B008
    from_: Annotated[str, Field(alias="from")] = "b",
) -> None:
    """Go.

    Args:
        x: From the docstring.
        y: From the docstring.
        z: From the docstring.
    """


def test_fields_mean_what_they_mean_in_a_model() -> None:
    """Description, bounds, default and alias are understood, and closer words win."""
    schema = inspect_callable(fielded).arguments.schema

    assert schema["required"] == ["x"]
    assert schema["properties"] == {
        "x": {"type": "integer", "minimum": 0, "description": "From the field."},
        "y": {"type": "string", "default": "a", "description": "From a note."},
        "z": {"type": "integer", "maximum": 10, "default": 5, "title": "Zed", "description": "From the docstring."},
        "tags": {"type": "array", "items": {"type": "string"}},
        "from": {"type": "string", "default": "b"},
    }
    assert given_json(fielded, '{"x": 1, "from": "me"}') == {"x": 1, "from_": "me", "z": 5, "tags": []}


def collecting(
    tags: list[str] = [],  # noqa: B006
    point: Point = Point(1),  # noqa: B008
    made: list[str] = Field(default_factory=list),  # noqa: B008
) -> None: ...


def test_no_two_calls_share_a_default() -> None:
    """What one call appends, the next would find, and it may be another customer's."""
    first, second = given_json(collecting, "{}"), given_json(collecting, "{}")

    assert first == second == {"tags": [], "point": Point(1), "made": []}
    assert all(first[name] is not second[name] for name in first)


def test_titles_that_only_repeat_a_name_are_left_out() -> None:
    """They cost tokens; a property that is called title stays."""
    assert '"title": "' not in json.dumps(inspect_callable(taking(Color | Node | Point | Row)).arguments.schema)
    assert "title" in inspect_callable(taking(Node)).arguments.schema["$defs"]["Node"]["properties"]


def test_one_type_is_defined_once() -> None:
    """Also where a TypedDict had to be translated for pydantic."""

    def tool(a: Row, b: list[Row]) -> None: ...

    assert list(inspect_callable(tool).arguments.schema["$defs"]) == ["Row"]


@pytest.mark.parametrize(
    ("default", "shown"), [(Color.RED, "red"), (dt.date(2024, 5, 6), "2024-05-06"), (b"hi", "aGk="), ({1}, [1])]
)
def test_a_default_is_shown_as_json(default: Any, shown: Any) -> None:
    """The model knows what happens when it says nothing."""
    assert inspect_callable(taking(Any, default)).arguments.schema["properties"]["x"] == {"default": shown}


@pytest.mark.parametrize("default", [object(), float("nan"), Plain])
def test_a_default_that_json_cannot_carry_is_not_shown(default: Any) -> None:
    """It still applies: Python does that."""
    tool = taking(Any, default)

    assert inspect_callable(tool).arguments.schema["properties"]["x"] == {}
    assert given_json(tool, "{}") == {}


def returning(annotation: Any) -> CallableSignature:
    def tool() -> None: ...

    tool.__annotations__ = {} if annotation is ... else {"return": annotation}
    return inspect_callable(tool)


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (..., None),
        (None, {"type": "null"}),
        (int, {"type": "integer"}),
        (Plain, None),
        ("Nowhere", None),
        (bytes, {"type": "string", "contentEncoding": "base64"}),
    ],
)
def test_a_result_is_described_where_that_is_possible(annotation: Any, schema: Any) -> None:
    """A result needs no type, so nothing is refused because of it."""
    assert returning(annotation).output_schema == schema


def test_the_analysis_of_a_function_is_remembered() -> None:
    """Agents are made for every request, from the same functions."""
    assert inspect_callable(book).arguments is inspect_callable(book, name="other").arguments
    assert inspect_callable(Shop().sell).arguments is inspect_callable(Shop().sell).arguments


def test_a_changed_function_is_looked_at_again() -> None:
    """A docstring may be written by a program."""
    tool = taking(int)
    before = inspect_callable(tool).description
    tool.__doc__ = "Now different."

    assert (before, inspect_callable(tool).description) == ("Take x.", "Now different.")


def test_the_memory_lets_go_of_functions() -> None:
    """A function made for one request goes with it."""
    tool = taking(Node)
    inspect_callable(tool).arguments.validate('{"x": {"title": ""}}')
    gone = weakref.ref(tool)

    del tool
    gc.collect()
    assert gone() is None


def test_the_memory_lets_go_of_objects_that_hold_their_own_tools() -> None:
    """An object often keeps a partial of its own method."""

    class Owner:
        def __init__(self) -> None:
            self.tool = functools.partial(self.sell, place="north")

        def sell(self, place: str, units: int) -> None: ...

    owner = Owner()
    assert inspect_callable(owner.tool).arguments is inspect_callable(owner.tool).arguments
    gone = weakref.ref(owner)

    del owner
    gc.collect()
    assert gone() is None


def test_plain_signatures_do_not_load_pydantic() -> None:
    """A program that only registers tools starts quickly."""
    code = (
        "import sys\n"
        "from protolink.tools.schema import inspect_callable\n"
        "def tool(a: int, b: list[str] | None = None, *, c: dict[str, float] = {}): 'Go.'\n"
        "inspect_callable(tool)\n"
        "assert 'pydantic' not in sys.modules and 'pydantic_core' not in sys.modules\n"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr == ""


def inside(kinds: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    """Types made of other types, each with its values."""

    def many(kind: tuple[Any, Any]) -> tuple[Any, Any]:
        return types.GenericAlias(list, (kind[0],)), st.lists(kind[1], max_size=3)

    def named(kind: tuple[Any, Any]) -> tuple[Any, Any]:
        return types.GenericAlias(dict, (str, kind[0])), st.dictionaries(st.text(), kind[1], max_size=3)

    def nullable(kind: tuple[Any, Any]) -> tuple[Any, Any]:
        return typing.cast("Any", Optional)[kind[0]], st.none() | kind[1]

    return kinds.map(many) | kinds.map(named) | kinds.map(nullable)


PLAIN: st.SearchStrategy[tuple[Any, Any]] = st.recursive(
    st.sampled_from(
        [(int, st.integers(-(2**70), 2**70)), (str, st.text()), (bool, st.booleans()), (type(None), st.none())]
    ),
    inside,
    max_leaves=3,
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_what_fits_arrives_unchanged(data: st.DataObject) -> None:
    """Checking is not converting."""
    annotation, values = data.draw(PLAIN)
    value = data.draw(values)

    assert given_json(taking(annotation), json.dumps({"x": value})) == {"x": value}


def fits(annotation: Any, value: Any) -> bool:
    """Whether a value has a type, said another way."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list:
        items: Iterable[Any] = value
        return isinstance(value, list) and all(fits(inner[0], item) for item in items)
    if origin is dict:
        members: dict[str, Any] = value
        return isinstance(value, dict) and all(fits(inner[1], item) for item in members.values())
    if inner:
        return any(fits(kind, value) for kind in inner)
    return type(value) is annotation


@given(PLAIN, JSON)
def test_a_wrong_type_never_arrives(pair: tuple[Any, Any], value: Any) -> None:
    """The function needs no checks of its own."""
    annotation = pair[0]
    try:
        arrived = given_json(taking(annotation), json.dumps({"x": value}))
    except ArgumentsError:
        assert not fits(annotation, value)
    else:
        assert fits(annotation, arrived["x"])
