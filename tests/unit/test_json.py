"""Any value becomes strict JSON once; text from elsewhere is read strictly."""

from __future__ import annotations

import array
import base64
import collections
import copy
import dataclasses
import enum
import json
import math
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from protolink._json import (
    JSON,
    MAX_DEPTH,
    MAX_RENDERED_BYTES,
    JSONError,
    canonical,
    digest,
    dumps,
    freeze,
    parse,
    render,
    require_json,
    thaw,
)

json_values: st.SearchStrategy[JSON] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
any_text = st.text(st.characters(exclude_categories=()), max_size=8)
scalars: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers() | st.floats() | any_text | st.binary(max_size=8) | st.dates()
)
foreign_values: st.SearchStrategy[object] = st.recursive(
    scalars | st.decimals() | st.timedeltas() | st.uuids() | st.complex_numbers() | st.builds(object),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(collections.deque)
        | st.sets(scalars, max_size=4)
        | st.dictionaries(scalars | st.tuples(scalars), inner, max_size=4)
    ),
    max_leaves=12,
)


def nested(depth: int) -> list[JSON]:
    value: list[JSON] = []
    for _ in range(depth - 1):
        value = [value]
    return value


class Color(enum.Enum):
    RED = (1, 2)


class Level(enum.IntEnum):
    HIGH = 3


class Unit(enum.StrEnum):
    KM = "km"


class Point(NamedTuple):
    x: int
    y: float


@dataclasses.dataclass
class Order:
    id: int
    when: date


class Account(BaseModel):
    name: str
    password: SecretStr
    opened: datetime


class Text(str):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class Endless(Sequence[int]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        return index


class Enormous(Endless):
    def __len__(self) -> int:
        return 10**12


class Liar(Mapping[str, int]):
    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[str]:
        yield from ("a", "b")

    def __getitem__(self, key: str) -> int:
        return 1


class Bomb:
    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(name)


@dataclasses.dataclass
class HalfBuilt:
    field: int = dataclasses.field(init=False)


class Secretive(type):
    def __getattribute__(cls, name: str) -> Any:
        raise OSError(name)


class Chameleon(metaclass=Secretive):
    __class__ = property(lambda self: dict)  # pyright: ignore[reportIncompatibleMethodOverride]


def loop() -> list[object]:
    value: list[object] = [1]
    value.append(value)
    return value


@given(json_values)
def test_json_renders_as_itself(value: JSON) -> None:
    """What JSON can carry is not touched, and the copy shares nothing with the original."""
    rendered, changed = render(value)

    assert canonical(rendered) == canonical(value)
    assert not changed
    assert rendered is not value or not isinstance(value, (dict, list))


@given(foreign_values)
def test_any_value_renders_as_strict_json(value: object) -> None:
    """A finished operation stays finished: whatever a tool returned can be stored and sent."""
    rendered, _ = render(value)

    assert json.loads(json.dumps(rendered, allow_nan=False)) == rendered
    assert parse(canonical(rendered)) == rendered
    assert render(rendered) == (rendered, False)


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        (math.nan, "NaN"),
        ([math.inf, -math.inf], ["Infinity", "-Infinity"]),
        ("caf\udce9", "caf\\udce9"),
        ({"\ud83d": 1}, {"\\ud83d": 1}),
        (datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), "2024-05-06T07:08:09+00:00"),
        (date(2024, 5, 6), "2024-05-06"),
        (time(7, 8), "07:08:00"),
        (timedelta(days=1, hours=2, minutes=3, seconds=4.5), "P1DT2H3M4.5S"),
        (timedelta(days=-2), "-P2D"),
        (timedelta(0), "PT0S"),
        (Decimal("1.50"), "1.50"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (PurePosixPath("/tmp/x\udce9"), "/tmp/x\\udce9"),
        (b"abc", "YWJj"),
        (bytearray(b"abc"), "YWJj"),
        (memoryview(b"a-b-c-")[::2], "YWJj"),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", "a", 1}), ["a", "b", 1]),
        (collections.deque([1, (2,)]), [1, [2]]),
        (range(3), [0, 1, 2]),
        (array.array("i", [1, 2]), [1, 2]),
        ({"a": 1}.keys(), ["a"]),
        ({"a": 1}.values(), [1]),
        (collections.UserDict(a={1}), {"a": [1]}),
        (Color.RED, [1, 2]),
        (Point(1, math.nan), {"x": 1, "y": "NaN"}),
        (Order(7, date(2024, 1, 1)), {"id": 7, "when": "2024-01-01"}),
        (ValueError("bad \ud800"), "ValueError: bad \\ud800"),
        ([10**5000], ["<int of 16610 bits>"]),
        ((number for number in [1]), "<generator>"),
        (object, "<type>"),
        (1j, "<complex>"),
        (loop(), [1, "<cycle>"]),
    ],
)
def test_a_foreign_value_has_one_rendering(value: object, rendered: JSON) -> None:
    """The model, the record and every view see the same standard text, and the record says that it is one."""
    assert render(value) == (rendered, True)


@pytest.mark.parametrize(
    ("value", "rendered"),
    [
        ((1, (2,)), [1, [2]]),
        (Level.HIGH, 3),
        (Unit.KM, "km"),
        (Text("t"), "t"),
        ({Text("k"): collections.OrderedDict(a=1)}, {"k": {"a": 1}}),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
    ],
)
def test_a_subclass_becomes_its_plain_type(value: object, rendered: JSON) -> None:
    """JSON carries these as they are, so nothing counts as changed; their own methods are not asked."""
    copied, changed = render(value)

    assert (copied, changed) == (rendered, False)
    assert type(copied) in (int, str, list, dict)


def test_a_pydantic_model_is_rendered_by_its_fields() -> None:
    """A secret type of pydantic stays a secret, because only its type name appears."""
    account = Account(name="a", password=SecretStr("hunter22"), opened=datetime(2024, 1, 1, tzinfo=UTC))

    assert render([account]) == (
        [{"name": "a", "password": "<SecretStr>", "opened": "2024-01-01T00:00:00+00:00"}],
        True,
    )


def test_keys_become_text_and_none_is_lost() -> None:
    """Keys that look alike as text stay apart, and a key that was a text keeps its spelling."""
    value = {1: "int", "1": "text", None: 0, (1, 2): "tuple", math.nan: "nan", b"1": "bytes", Unit.KM: "unit"}

    assert render(value) == (
        {"1 (2)": "int", "1": "text", "null": 0, "[1,2]": "tuple", "NaN": "nan", "MQ==": "bytes", "km": "unit"},
        True,
    )


def test_many_keys_of_one_spelling_stay_apart() -> None:
    """Each gets a number of its own without counting from the start again."""
    rendered, _ = render({object(): number for number in range(20_000)})

    assert isinstance(rendered, dict)
    assert list(rendered.values()) == list(range(20_000))
    assert "<object> (20000)" in rendered


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Endless, "<Endless>"),
        (Enormous, "<Enormous>"),
        (Liar, "<Liar>"),
        (Bomb, "<Bomb>"),
        (HalfBuilt, "<HalfBuilt>"),
        (lambda: Chameleon(), "<Chameleon>"),
        (lambda: range(10**12), "<range>"),
        (lambda: iter([1]), "<list_iterator>"),
    ],
)
def test_a_value_that_misbehaves_is_known_by_its_type(make: Callable[[], object], name: str) -> None:
    """Neither an endless nor a lying object can stop the record of an effect that has happened."""
    assert render([make(), 1]) == ([name, 1], True)


def test_depth_is_bounded() -> None:
    """What is rendered can be read again, however deep the value was."""
    assert render(nested(MAX_DEPTH)) == (nested(MAX_DEPTH), False)

    rendered, changed = render(nested(MAX_DEPTH + 5))

    assert changed
    assert canonical(rendered) == "[" * MAX_DEPTH + '"<too deep>"' + "]" * MAX_DEPTH


def test_a_value_that_grows_by_sharing_is_cut() -> None:
    """Sixty lists can stand for more items than there are atoms; the walk counts what it copies."""
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]

    rendered, changed = render(value)

    assert isinstance(rendered, dict)
    assert changed
    assert (rendered["truncated"], rendered["type"]) == (True, "list")


def test_a_huge_text_is_cut_where_it_stands() -> None:
    """The exit code beside an enormous output survives, and a preview tells what the output was."""
    size = MAX_RENDERED_BYTES + 1

    rendered, changed = render({"code": 0, "output": "x" * size, "raw": bytes(size)})

    assert changed
    assert rendered == {
        "code": 0,
        "output": {"truncated": True, "type": "str", "bytes": size, "preview": "x" * 65536},
        "raw": {"truncated": True, "type": "bytes", "bytes": size * 4 // 3},
    }


def test_a_rendering_is_not_changed_by_its_source() -> None:
    """A tool that keeps its result cannot rewrite the record afterwards."""
    source: dict[str, Any] = {"a": [1], "b": {2}}
    rendered, _ = render(source)

    source["a"].append(9)
    source["b"].clear()

    assert rendered == {"a": [1], "b": [2]}


@given(json_values)
def test_text_round_trips(value: JSON) -> None:
    """Both spellings read back as the value, types included."""
    for text in (canonical(value), dumps(value)):
        assert canonical(parse(text)) == canonical(value)


def test_canonical_text_does_not_depend_on_order() -> None:
    """A fingerprint is the same whoever built the object."""
    assert canonical({"b": [1, 1.0, "é"], "a": None}) == canonical({"a": None, "b": [1, 1.0, "é"]})
    assert canonical({"b": "é", "a": None}) == '{"a":null,"b":"é"}'
    assert dumps({"b": 1, "a": 2}) == '{"b":1,"a":2}'
    assert digest("abc").startswith("ba7816bf")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a":1,"a":2}', "duplicate"),
        ('[{"a":{"b":1,"b":1}}]', "duplicate"),
        ("NaN", "no text"),
        ("[-Infinity]", "no text"),
        ("1e999", "too large"),
        ('"\\ud800"', "half"),
        ('{"\\udc00":1}', "half"),
        ('"\ud800"', "half"),
        ("1" * 4301, "digits"),
        ("[" * 10**5, "levels"),
        ('{"a":' * 10**4, "levels"),
        ("[1,]", "Expecting value|Illegal trailing comma"),
        ("{'a':1}", "Expecting property name"),
        ("[1] 2", "Extra data"),
        ('"\n"', "control character"),
        ("\ufeff1", "Expecting value"),
        ("", "Expecting value"),
        ('"' + "x" * 30 + '"', "longer than 20 bytes"),
        ('"' + "é" * 12 + '"', "longer than 20 bytes"),
    ],
)
def test_ambiguous_or_costly_text_is_refused(text: str, reason: str) -> None:
    """Two readers may disagree about such text, so the one who checks it and the one who acts must not get it."""
    limit = 20 if "longer" in reason else MAX_RENDERED_BYTES

    with pytest.raises(JSONError, match=reason) as caught:
        parse(text, max_bytes=limit)

    assert caught.value.__cause__ is None


def test_a_refusal_says_where_and_repeats_nothing() -> None:
    """The text may hold a secret, and the message goes to logs and to the model."""
    with pytest.raises(JSONError) as caught:
        parse('{"key": "hunter22", oops}')

    assert caught.value.position == 20
    assert "at character 20" in str(caught.value)
    assert "hunter22" not in str(caught.value) + repr(caught.value)


@given(st.text(st.sampled_from('[]{}",:\\u0d8n1e ')) | any_text)
def test_any_text_is_read_or_refused(text: str) -> None:
    """There is no third ending, and what is read can be written."""
    try:
        value = parse(text)
    except JSONError:
        return

    assert parse(canonical(value)) == value


@pytest.mark.parametrize("text", ['"[[[["', '"\\ud83d\\ude00"', '"\\\\ud800"', '{"a":{"b":1},"c":{"b":1}}', " [1e3] "])
def test_unusual_but_clear_text_is_read(text: str) -> None:
    """Strict does not mean fussy: brackets in texts, pairs of surrogates and equal keys apart are fine."""
    assert parse(text, max_depth=2) == json.loads(text)


@given(json_values)
def test_plain_json_is_accepted_and_copied(value: JSON) -> None:
    """The copy is the value, and later changes to the original do not reach it."""
    accepted = require_json({"value": value}, "it")

    assert canonical(accepted) == canonical({"value": value})
    assert accepted["value"] is not value or not isinstance(value, (dict, list))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1, {2}]}, r"details\['a'\]\[1\] is a set$"),
        ({"a": math.nan}, r"details\['a'\] is a number"),
        ({"a": {1: 2}}, r"details\['a'\] is an object with a key of type int$"),
        ({"a": "\ud800"}, r"details\['a'\] is a text with half"),
        ({"\ud800": 1}, r"details is a text with half"),
        ([10**5000], r"details\[0\] is an integer with too many digits"),
        (b"secret", r"details is a bytes$"),
        (loop(), r"\[1\]\[…\]\[1\].* is nested too deeply, or inside itself"),
        ([Bomb()], r"details\[0\] is a Bomb$"),
        (["x" * MAX_RENDERED_BYTES], "at most"),
        (["x" * (MAX_RENDERED_BYTES + 1)], r"details\[0\] is too much: at most"),
    ],
)
def test_what_is_not_plain_json_is_refused_with_its_place(value: object, message: str) -> None:
    """Whoever built the value finds the culprit, and no value is repeated."""
    with pytest.raises(TypeError, match=message):
        require_json(value, "details")


def test_subclasses_of_plain_types_are_accepted_as_plain() -> None:
    """A string enumeration or an ordered dictionary is what it looks like, minus its methods."""
    accepted = require_json(collections.OrderedDict({Text("k"): (Unit.KM, Level.HIGH)}), "it")

    assert accepted == {"k": ["km", 3]}
    assert [type(item) for item in accepted["k"]] == [str, int]


frozen_dict: Any = freeze({"a": [1, {"b": 2}]})
frozen_list: Any = freeze([3, [1], 2])


@pytest.mark.parametrize(
    "change",
    [
        lambda: frozen_dict.__setitem__("a", 1),
        lambda: frozen_dict.__delitem__("a"),
        lambda: frozen_dict.__ior__({"a": 1}),
        lambda: frozen_dict.__init__({"c": 1}),
        lambda: frozen_dict.update(a=1),
        lambda: frozen_dict.setdefault("c", 1),
        lambda: frozen_dict.pop("a"),
        lambda: frozen_dict.popitem(),
        lambda: frozen_dict.clear(),
        lambda: frozen_dict["a"].append(2),
        lambda: frozen_dict["a"][1].update(b=3),
        lambda: frozen_list.__setitem__(0, 1),
        lambda: frozen_list.__delitem__(0),
        lambda: frozen_list.__iadd__([1]),
        lambda: frozen_list.__imul__(2),
        lambda: frozen_list.__init__([1]),
        lambda: frozen_list.extend([1]),
        lambda: frozen_list.insert(0, 1),
        lambda: frozen_list.pop(),
        lambda: frozen_list.remove(3),
        lambda: frozen_list.reverse(),
        lambda: frozen_list.sort(),
        lambda: frozen_list.clear(),
        lambda: setattr(frozen_list, "x", 1),
    ],
)
def test_a_frozen_value_refuses_every_change(change: Callable[[], object]) -> None:
    """What a policy judged and a person approved is what runs."""
    with pytest.raises((TypeError, AttributeError)):
        change()

    assert (frozen_dict, frozen_list) == ({"a": [1, {"b": 2}]}, [3, [1], 2])


@given(json_values)
def test_a_frozen_value_is_equal_to_the_plain_one(value: JSON) -> None:
    """Freezing changes what can be done with a value, not what it says."""
    frozen = freeze(value)

    assert frozen == value
    assert json.dumps(frozen) == json.dumps(value)
    assert freeze(frozen) is frozen
    assert render(frozen) == (value, False)


@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, thaw, lambda value: pickle.loads(pickle.dumps(value)), lambda value: render(value)[0]]
)
def test_a_copy_of_a_frozen_value_is_plain(duplicate: Callable[[Any], Any]) -> None:
    """Whoever wants to change a value takes a copy, and gets one that can be changed at any depth."""
    copied = duplicate(frozen_dict)
    copied["a"][1]["b"] = 3

    assert copied == {"a": [1, {"b": 3}]}
    assert [type(copied), type(copied["a"]), type(copied["a"][1])] == [dict, list, dict]
    assert [type(copy.copy(frozen_dict)), type(copy.copy(frozen_list))] == [dict, list]


@pytest.mark.parametrize("value", [frozen_dict, frozen_list])
def test_a_frozen_value_has_no_hash(value: object) -> None:
    """It is equal to plain containers, which have none either."""
    with pytest.raises(TypeError, match="unhashable"):
        hash(value)


def test_bytes_are_not_cut_below_the_limit() -> None:
    """Base64 of a file of some megabytes is still the file."""
    content = bytes(range(256)) * 4096

    rendered, _ = render(content)

    assert isinstance(rendered, str)
    assert base64.b64decode(rendered) == content
