"""Foreign text on its way to a person.

Names, arguments, model output and error messages are written by others. Before a terminal, a log or an
approval dialog shows them, they pass `visible`: what would move the cursor, reorder the line or hide
itself appears as an escape instead, and what is long says how much was left out.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["describe_error", "encodable", "type_name", "visible", "visible_lines"]

# Controls, direction marks, zero-width and filler characters, line and paragraph separators, the tag block
# and the variation selectors, which can both carry hidden text, and halves of characters. U+FE0F stays: it
# only says that the character before it is an emoji, and a run of it can carry nothing.
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_SHORT = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_MAX_TYPE_NAME = 200

# The real name of a class, whatever its metaclass would answer.
_name_of: Any = type.__dict__["__name__"].__get__


def visible(text: str, *, limit: int = 2000) -> str:
    """Text as one line that a terminal can show and a person can trust.

    The first `limit` characters are shown, each hidden one as an escape such as `\\x1b` or `\\u202e`; what
    was cut is counted at the end.
    """
    if len(text) > limit:
        return f"{_escaped(text[:limit])}… (+{len(text) - limit} characters)"
    return _escaped(text)


def visible_lines(text: str, *, limit: int = 2000, lines: int = 40) -> str:
    """Like `visible`, but a line feed ends a line; at most `lines` lines and `limit` characters are shown."""
    shown = text[:limit]
    rows = shown.replace("\r\n", "\n").split("\n") if "\n" in shown else [shown]
    if len(rows) > lines:
        end = 0
        for _ in range(lines):
            end = shown.index("\n", end) + 1
        rows = rows[:lines]
        shown = shown[: end - 1]
    result = "\n".join(map(_escaped, rows))
    return result if len(shown) == len(text) else f"{result}… (+{len(text) - len(shown)} characters)"


def describe_error(error: BaseException, limit: int = 2000) -> str:
    """The type of an exception and its message, as text that can be stored and sent.

    An exception whose message cannot be read is described by its type alone. The message is data, not yet
    fit for a terminal: line ends stay, and only halves of characters are escaped.
    """
    name = type_name(error)
    try:
        message = str.__str__(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException:  # the exception's own __str__, which may do anything
        return name
    if len(message) > limit:
        message = f"{message[:limit]}… (+{len(message) - limit} characters)"
    return f"{name}: {encodable(message)}" if message and not message.isspace() else name


def encodable(text: str) -> str:
    """The text with every half of a character (a lone surrogate) as a visible escape such as `\\udce9`."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def type_name(value: object) -> str:
    """The name of the value's class; it runs none of the value's code and is never longer than 200 characters."""
    name: str = _name_of(type(value))
    return name if len(name) <= _MAX_TYPE_NAME else f"{name[: _MAX_TYPE_NAME - 1]}…"


def _escaped(text: str) -> str:
    # Beyond ASCII, what Unicode calls printable includes characters that nobody can see.
    if text.isascii() and text.isprintable():
        return text
    return _HIDDEN.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    short = _SHORT.get(character)
    if short is not None:
        return short
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
