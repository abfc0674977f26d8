"""No text ends a message of a stream or begins one."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from protolink.transport.http.encoding import (
    NDJSON_SIGN_OF_LIFE,
    SSE_SIGN_OF_LIFE,
    LineReader,
    ndjson_message,
    read_frame,
    sse_frame,
    sse_message,
)
from protolink.transport.port import FRAME_KINDS, Frame

NASTY = [
    *("\r", "\n", "\r\n", "\n\n", "\r\r", "\u2028", "\u2029", "\x85", "\x00", "\x0b", "\x0c", "\x1c", "\x7f", "\ufeff"),
    *("event: task\n", "id: 7\r", "data: x", "retry: 1\n", ": ", ":", " ", '"', "\\", "}", "{", "\\n", "\\u000a"),
    *("\ud800", "\udfff", "é", "𝄞", "\u202e", "\x1b[2J", "</script>"),
]


def random_text(chance: random.Random) -> str:
    """Up to twelve pieces, most of them meant to break something."""
    return "".join(
        chance.choice(NASTY) if chance.random() < 0.8 else chr(chance.randrange(0x110000))
        for _ in range(chance.randrange(12))
    )


def whole(chance: random.Random) -> str:
    """Such a text in which two halves that make a character are one, as in JSON."""
    return random_text(chance).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def events_of(stream: bytes) -> list[dict[str, str]]:
    """Server-sent events as the HTML standard reads them, and strictly: no other field, no broken UTF-8."""
    found: list[dict[str, str]] = []
    fields: dict[str, str] = {}
    data: list[str] = []
    for line in re.split("\r\n|\r|\n", stream.decode("utf-8"))[:-1]:
        if not line:
            if data:
                found.append({**fields, "data": "\n".join(data)})
            fields, data = {}, []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            data.append(value)
        elif name:
            assert name in ("event", "id")
            assert name not in fields
            fields[name] = value
    assert not data
    return found


def test_c07_ten_thousand_streams_say_what_was_said() -> None:
    """As events and as lines: the same frames come out that went in, whatever the texts hold."""
    chance = random.Random(7)
    for _ in range(2_500):
        frames = [
            Frame(chance.choice(FRAME_KINDS), {whole(chance): [whole(chance)]}, chance.randrange(99)) for _ in range(2)
        ]
        said = [(frame.kind, str(frame.number), frame.data) for frame in frames]
        events = events_of(SSE_SIGN_OF_LIFE.join(map(sse_frame, frames)))
        assert [(event["event"], event["id"], json.loads(event["data"])) for event in events] == said

        lines = NDJSON_SIGN_OF_LIFE.join(map(ndjson_message, frames))
        # The most generous idea of what ends a line finds no more lines.
        assert [json.loads(line) for line in lines.decode().splitlines() if line] == [
            {frame.kind: frame.data} for frame in frames
        ]


def test_c07_ten_thousand_raw_texts_stay_one_event() -> None:
    """Data that is no JSON is split at each end of a line, and joined again by the reader."""
    chance = random.Random(8)
    for _ in range(10_000):
        text = random_text(chance)
        heard = re.sub("\r\n|\r", "\n", text).encode("utf-8", "replace").decode()
        assert events_of(sse_message(text, event="event", number=3)) == [{"event": "event", "id": "3", "data": heard}]


@pytest.mark.parametrize("name", ["", "message", "event\n", "task\r\ndata: x", "Event", None, 7])
def test_c07_names_come_from_a_closed_set(name: Any) -> None:
    """A name that somebody else chose could end its line."""
    with pytest.raises(ValueError, match="no messages of that name"):
        sse_message("", event=name)
    with pytest.raises(ValueError, match="no messages of that name"):
        ndjson_message(Frame(name, None))


@pytest.mark.parametrize("number", ["1", "1\n", -1, 1.5, True])
def test_c07_ids_are_numbers(number: Any) -> None:
    """So is the text of an id."""
    with pytest.raises(ValueError, match="number"):
        sse_message("", event="event", number=number)


def test_c07_lines_are_read_however_they_are_cut() -> None:
    """A connection delivers bytes in any portions."""
    frames = [Frame("event", {"text": "a\u2028b\r\nü𝄞"}), Frame("task", None), Frame("error", [])]
    data = b"\n".join(map(ndjson_message, frames))
    for size in range(1, 9):
        reader = LineReader(100)
        portions = [data[start : start + size] for start in range(0, len(data), size)]
        lines = [line for portion in portions for line in reader.feed(portion)]
        assert [read_frame(line, max_bytes=100) for line in lines] == frames


def test_c07_a_line_without_an_end_is_given_up() -> None:
    """Before it fills the memory."""
    reader = LineReader(10)
    assert list(reader.feed(b"123456")) == []
    with pytest.raises(ValueError, match="more than 10 bytes"):
        list(reader.feed(b"78901"))


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[]", b"null", b'{"event":1,"task":2}', b'{"receipt":1}', b'{"event":NaN}', b'{"event":"\xff"}'],
)
def test_c07_what_is_no_frame_is_refused(line: bytes) -> None:
    """A peer's stream has nothing in it that is guessed at."""
    with pytest.raises(ValueError):  # noqa: PT011 - the kinds of ValueError differ, and all of them are caught
        read_frame(line, max_bytes=100)
