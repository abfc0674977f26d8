"""Records as JSON and back."""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protolink._core import records
from protolink._core.codec import BODY_CHARACTERS, CodecError, decode, encode, kind_of
from protolink._core.records import ActionPrepared, ModelAsked, ModelReplied, Proposal, Record
from protolink._json import dumps, reread

KINDS = get_args(Record)

texts = st.text(st.characters(codec="utf-8"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Values of an annotation that a record has."""
    origin = get_origin(hint)
    if hint is Any:
        return values
    if origin in (Union, types.UnionType):
        return st.one_of(*map(strategy, get_args(hint)))
    if origin is Literal:
        return st.sampled_from(get_args(hint))
    if origin is tuple:
        return st.lists(strategy(get_args(hint)[0]), max_size=2).map(tuple)
    if origin is dict or hint is dict:
        return st.dictionaries(texts, values, max_size=2)
    if is_dataclass(hint):
        return of_class(hint)
    plain: dict[Any, st.SearchStrategy[Any]] = {
        str: texts,
        int: st.integers(0, 10**6),
        bool: st.booleans(),
        float: st.floats(0, 1e9),
        types.NoneType: st.none(),
    }
    return plain[hint]


def of_class(cls: Any) -> st.SearchStrategy[Any]:
    """Instances of a record class, or of one that stands in a record."""
    hints = get_type_hints(cls, dict(vars(records)))
    return st.builds(cls, **{item.name: strategy(hints[item.name]) for item in fields(cls)})


def stored(record: Any) -> Any:
    """What comes back from a store."""
    kind, version, plain, bodies = encode(record)
    return decode(kind, version, reread(dumps(plain)), {name: reread(text) for name, text in bodies.items()})


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: str(cls.__name__))
@settings(max_examples=40)
@given(data=st.data())
def test_what_was_stored_comes_back(cls: Any, data: st.DataObject) -> None:
    """Every kind of record, whatever its fields hold."""
    record = data.draw(of_class(cls))

    restored = stored(record)

    assert restored == record
    assert repr(restored) == repr(record)  # 1, 1.0 and True are equal


@pytest.mark.parametrize("size", [BODY_CHARACTERS - 3, BODY_CHARACTERS])
def test_a_large_field_is_stored_apart(size: int) -> None:
    """From one length on, so that equal texts are kept once."""
    record = records.ActionCompleted(action_id="r.1", result="x" * size)

    _, _, plain, bodies = encode(record)

    assert ("result" in bodies, "result" in plain) == (size >= BODY_CHARACTERS, size < BODY_CHARACTERS)
    assert stored(record) == record


def prepared(arguments: dict[str, Any], payload: dict[str, Any]) -> ActionPrepared:
    return ActionPrepared(
        action_id="r.1",
        kind="tool.call",
        name="look",
        tool="look",
        arguments=arguments,
        payload=payload,
        capabilities=(),
        fingerprint="f",
    )


ARGUMENTS = {"number": 1}


@pytest.mark.parametrize(
    ("payload", "is_stored"),
    [
        ({"arguments": ARGUMENTS}, False),
        ({"arguments": {"number": True}}, True),
        ({"arguments": ARGUMENTS, "more": 1}, True),
        ({}, True),
    ],
)
def test_a_payload_is_stored_where_it_says_more_than_the_arguments(payload: dict[str, Any], is_stored: bool) -> None:
    """What was authorized is restored exactly: 1 and True are equal in Python, and are not the same value."""
    record = prepared(ARGUMENTS, payload)

    assert ("payload" in encode(record)[2]) is is_stored
    assert repr(stored(record)) == repr(record)


def test_a_call_that_has_its_action_s_id_is_stored_without_one() -> None:
    """One that a provider has given an id keeps it."""
    own = Proposal(action_id="r.1", call_id="r.1", tool="look", args={})
    given_one = Proposal(action_id="r.2", call_id="call_7", tool="look", args={})
    record = ModelReplied(text="", proposals=(own, given_one))

    listed = encode(record)[2]["proposals"]

    assert [proposal.get("call_id") for proposal in listed] == [None, "call_7"]
    assert stored(record) == record


ASKED = ModelAsked(step=1, provider="p", model="m", corrections_allowed=2, estimated_input_tokens=7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"step": "1"}, "ModelAsked.step is str, not int"),
        ({"step": True}, "ModelAsked.step is bool, not int"),
        ({"provider": None}, "ModelAsked.provider is NoneType, not str"),
        ({"native": 0}, "ModelAsked.native is int, not bool"),
    ],
)
def test_a_field_that_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    """Rather than restored as something that it was not."""
    kind, version, plain, _ = encode(ASKED)

    with pytest.raises(CodecError, match=says):
        decode(kind, version, {**plain, **change}, {})


def test_a_field_that_is_missing_is_named() -> None:
    """A default stands in only where the class has one."""
    kind, version, plain, _ = encode(ASKED)
    del plain["model"]

    with pytest.raises(CodecError, match="ModelAsked has no 'model'"):
        decode(kind, version, plain, {})


@pytest.mark.parametrize(
    ("kind", "version", "plain"), [("Nothing", 1, {}), ("ModelAsked", 99, {}), ("ModelAsked", 1, [])]
)
def test_what_is_no_record_of_this_release_is_refused(kind: str, version: int, plain: Any) -> None:
    """Kind, version and shape have to be known."""
    with pytest.raises(CodecError):
        decode(kind, version, plain, {})


def test_a_key_that_is_not_known_is_ignored() -> None:
    """An older release can read a newer record of the same version."""
    kind, version, plain, _ = encode(ASKED)

    assert decode(kind_of(ASKED), version, {**plain, "later": 1}, {}) == decode(kind, version, plain, {})
