"""The one encoder of streams, as server-sent events and as lines of JSON, and the reader of such lines.

Whatever a model, a tool or a peer wrote, it can neither end a message nor begin one: names and ids come from
closed sets, data is split at every end of a line, and in JSON each character that some reader takes for the end
of a line is an escape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from protolink._json import JSON, dumps, parse
from protolink.transport.port import FRAME_KINDS, Frame

__all__ = [
    "NDJSON",
    "NDJSON_SIGN_OF_LIFE",
    "SSE",
    "SSE_SIGN_OF_LIFE",
    "LineReader",
    "ndjson_line",
    "ndjson_message",
    "read_frame",
    "sse_frame",
    "sse_message",
]

SSE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
SSE_SIGN_OF_LIFE: Final = b": \n\n"
NDJSON_SIGN_OF_LIFE: Final = b"\n"

# The ends of a line that server-sent events know; `splitlines` knows more of them.
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
# What JSON may leave as it is and some reader of lines does not: C1 controls, separators, halves of characters.
_FRAGILE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def sse_message(data: str, *, event: str, number: int | None = None) -> bytes:
    """One server-sent event. Raises `ValueError` for a name or an id outside the closed sets.

    A reader joins the lines of `data` by line feeds, and each half of a character arrives as a replacement.
    """
    if event not in FRAME_KINDS:
        raise ValueError(f"a stream has no messages of that name, only {', '.join(FRAME_KINDS)}")
    if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 0):
        raise ValueError("the id of a message is its number")
    lines = [f"event: {event}"]
    if number is not None:
        lines.append(f"id: {number}")
    # JSON, which is nearly all that is sent, has no ends of lines; looking for them is dear.
    parts = _LINE_END.split(data) if "\n" in data or "\r" in data else (data,)
    lines += [f"data: {line}" for line in parts]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def sse_frame(frame: Frame) -> bytes:
    """A frame as a server-sent event."""
    return sse_message(_line(frame.data), event=frame.kind, number=frame.number)


def ndjson_message(frame: Frame) -> bytes:
    """A frame as a line of JSON: an object with its kind as the only key."""
    if frame.kind not in FRAME_KINDS:
        raise ValueError(f"a stream has no messages of that name, only {', '.join(FRAME_KINDS)}")
    return ndjson_line({frame.kind: frame.data})


def ndjson_line(value: JSON) -> bytes:
    """A value as a line of JSON."""
    return (_line(value) + "\n").encode()


def _line(value: JSON) -> str:
    text = dumps(value)
    return (
        text if text.isascii() and "\x7f" not in text else _FRAGILE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    )


def read_frame(line: bytes, *, max_bytes: int) -> Frame:
    """A line back as a frame. Raises `ValueError` for anything else."""
    value = parse(line.decode(), max_bytes=max_bytes)
    if not isinstance(value, dict) or len(value) != 1:
        raise ValueError("a message of a stream is an object with one key")
    ((name, data),) = value.items()
    for kind in FRAME_KINDS:
        if kind == name:
            return Frame(kind, data)
    raise ValueError("a message of a stream has an unknown kind")


class LineReader:
    """Cuts bytes into lines that end with a line feed. Raises `ValueError` for a line that is too long."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that are complete by now, without the empty ones."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            whole = bytes(self._rest)
            self._rest.clear()
            if whole:
                yield whole
        self._add(rest)

    def _add(self, part: bytes) -> None:
        if len(self._rest) + len(part) > self._max_bytes:
            raise ValueError(f"a message of a stream has more than {self._max_bytes} bytes")
        self._rest += part
