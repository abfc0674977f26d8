"""What parsers of foreign data cost at their worst, and every kind of record as a store could give it back."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protolink._core.codec import CodecError, decode, encode, kind_of
from protolink._json import dumps
from protolink.transport.http.encoding import LineReader, read_frame
from tests.security.measures import measured
from tests.security.test_fuzz import PARSERS
from tests.unit.core.test_codec import KINDS, of_class

LARGE = 1_000_000
"""Characters."""


def repeated(piece: str) -> str:
    """As much of a piece as makes a large text."""
    return piece * (LARGE // len(piece))


LARGE_TEXTS: dict[str, Callable[[Any], str]] = {
    "open lists": lambda _: repeated("["),
    "open objects": lambda _: repeated('{"a":'),
    "open and closed": lambda _: repeated("}{"),
    "one text": lambda _: json.dumps(repeated("x")),
    "escapes": lambda _: f'"{repeated(chr(92) + "u0041")}"',
    "backslashes": lambda _: f'"{repeated(chr(92))}"',
    "quotation marks": lambda _: repeated('"'),
    "one number": lambda _: repeated("9"),
    "many numbers": lambda _: f"[{repeated('1,')}1]",
    "many keys": lambda _: json.dumps({f"k{number}": number for number in range(LARGE // 14)}),
    "one key again and again": lambda _: f"{{{repeated(chr(34) + 'a' + chr(34) + ':1,')}}}",
    "blanks": lambda _: repeated(" "),
    "lines": lambda _: repeated("\n"),
    "fences": lambda _: repeated("```json\n"),
    "calls that are cut": lambda _: repeated('{"type":"tool_call",'),
    "calls in prose": lambda _: repeated('so {"type": "tool_call", "tool": "a", "args": {}} and '),
    "a right one with a large value": lambda sample: _grown(sample, repeated("y")),
    "a right one with a large list": lambda sample: _grown(sample, [0] * (LARGE // 3)),
    "a right one and much behind it": lambda sample: json.dumps(sample) + repeated("}"),
    "half of a character": lambda _: json.dumps(repeated("\ud800")),
}


def _grown(sample: Any, value: Any) -> str:
    """A sample, the last of whose values is large."""
    grown = json.loads(json.dumps(sample))
    holder = grown[-1] if isinstance(grown, list) else grown
    holder[list(holder)[-1]] = value
    return json.dumps(grown)


PYDANTICS = {"many numbers": 60, "many keys": 100, "a right one with a large list": 200}
"""Mebibytes that pydantic takes for so many values, or for as many errors, of the arguments of a call."""


@pytest.mark.parametrize("parser", PARSERS)
def test_a09_a_large_text_costs_a_second_and_ten_times_its_size_at_most(parser: str) -> None:
    """Twenty megabytes that are nothing, or nearly right, for each parser; but for what pydantic takes itself."""
    own = PYDANTICS if parser == "a tool's arguments" else {}
    sample, read, complaints = PARSERS[parser]
    read(json.dumps(sample))
    for shape, make in LARGE_TEXTS.items():
        text = make(sample)
        with measured() as cost, contextlib.suppress(*complaints):
            read(text)
        assert cost.seconds <= 1, shape
        assert cost.mebibytes <= own.get(shape, 10 * len(text) / 2**20 + 16), shape


def test_a09_a_line_in_a_million_pieces_costs_no_more_than_in_one() -> None:
    """A sender chooses how its stream is cut."""
    reader, piece = LineReader(LARGE), b"x" * 10
    with measured() as cost:
        for _ in range(LARGE // len(piece) - 1):
            assert list(reader.feed(piece)) == []
        (line,) = reader.feed(b"\n")

    with pytest.raises(ValueError, match="Expecting value"):
        read_frame(line, max_bytes=LARGE)
    assert cost.seconds <= 1
    assert cost.mebibytes <= 26


@pytest.mark.parametrize("cls", KINDS, ids=lambda cls: str(cls.__name__))
@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a10_every_kind_of_stored_row_is_a_record_or_a_complaint(cls: Any, data: st.DataObject) -> None:
    """With one value of it changed, dropped or added: no other exception, and no other class."""
    record = data.draw(of_class(cls))
    kind, version, plain, bodies = encode(record)
    row: dict[str, Any] = json.loads(dumps(plain))
    texts = {name: json.loads(text) for name, text in bodies.items()}
    names = [*row, *texts, "__class__", "extra"]
    baits: list[Any] = [None, True, -1, 10**30, 1.5, "", "x", [], {}, [[]], {"__reduce__": ["os.system", ["true"]]}]
    name = data.draw(st.sampled_from(names))
    match data.draw(st.integers(0, 2)):
        case 0:
            row.pop(name, None)
            texts.pop(name, None)
        case 1:
            (texts if name in texts else row)[name] = data.draw(st.sampled_from(baits))
        case _:
            kind, version = data.draw(st.sampled_from([(kind, version + 1), ("os.system", version), ("", 0)]))

    try:
        restored = decode(kind, version, row, texts)
    except CodecError:
        return
    assert type(restored) is cls
    assert kind_of(restored) == kind
