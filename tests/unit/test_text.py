"""Foreign text is shown so that it cannot act on whoever looks at it."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolink._text import describe_error, encodable, type_name, visible, visible_lines

any_text = st.text(st.characters(exclude_categories=()), max_size=60)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("crème 東京 ❤\ufe0f", "crème 東京 ❤\ufe0f"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u200bb\ufeff\u2060", "a\\u200bb\\ufeff\\u2060"),
        ("a\u2028b\u2029", "a\\u2028b\\u2029"),
        ("\U000e0041\U000e0100", "\\U000e0041\\U000e0100"),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_what_hides_or_moves_is_shown_as_an_escape(text: str, shown: str) -> None:
    """A person approves what the line says, so nothing on it may reorder, erase or hide the rest."""
    assert visible(text) == shown


@given(any_text)
def test_a_visible_text_has_no_character_that_acts(text: str) -> None:
    """The list of dangerous characters is checked against Unicode's own categories."""
    shown = visible(text)

    assert not {unicodedata.category(character) for character in shown} & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(shown) & set("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u061c\ufeff")


def test_a_cut_text_says_how_much_is_missing() -> None:
    """Nobody should take a beginning for the whole."""
    assert visible("x" * 30, limit=10) == "xxxxxxxxxx… (+20 characters)"
    assert visible("x" * 10, limit=10) == "xxxxxxxxxx"


def test_lines_stay_lines_where_they_are_wanted() -> None:
    """A rendering of several lines keeps them, and a carriage return alone cannot overwrite one."""
    assert visible_lines("one\r\ntwo\n\x1bthree\rfour") == "one\ntwo\n\\x1bthree\\rfour"


def test_a_flood_of_blank_lines_is_cut() -> None:
    """Blank lines must not push what matters off the screen."""
    assert visible_lines("a" + "\n" * 10_000, limit=20_000, lines=3) == "a\n\n… (+9998 characters)"


@given(any_text, st.integers(0, 30), st.integers(1, 5))
def test_the_bounds_of_lines_hold(text: str, limit: int, lines: int) -> None:
    """Whatever the text, no more lines appear than were allowed, and what is missing is counted."""
    shown = visible_lines(text, limit=limit, lines=lines)

    assert len(shown.split("\n")) <= lines
    assert ("characters)" in shown) == (len(text) > limit or text.count("\n") >= lines)


class SilentError(Exception):
    def __str__(self) -> str:
        raise SystemExit


class WrongError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("error", "description"),
    [
        (ValueError("bad"), "ValueError: bad"),
        (ValueError(), "ValueError"),
        (ValueError("  "), "ValueError"),
        (OSError(2, "No such file", "caf\udce9"), "FileNotFoundError: [Errno 2] No such file: 'caf\\udce9'"),
        (ValueError("a\nb"), "ValueError: a\nb"),
        (SilentError(), "SilentError"),
        (WrongError(), "WrongError"),
    ],
)
def test_every_exception_can_be_described(error: BaseException, description: str) -> None:
    """The description of a failure must not fail, whoever wrote the exception."""
    assert describe_error(error) == description


def test_a_long_message_is_bounded() -> None:
    """A response body in an exception does not fill the log."""
    assert describe_error(ValueError("x" * 5000), limit=3) == "ValueError: xxx… (+4997 characters)"


@given(any_text)
def test_encodable_text_is_utf8_and_unchanged_where_it_was(text: str) -> None:
    """Half a character becomes visible; everything else stays as it is."""
    result = encodable(text)

    assert result.encode().decode() == result
    assert result == "".join(f"\\u{ord(c):04x}" if "\ud800" <= c <= "\udfff" else c for c in text)


def test_a_type_name_is_the_real_one() -> None:
    """A value cannot borrow the name of another class, nor use an endless one."""

    class Liar:
        __class__ = property(lambda self: int)  # pyright: ignore[reportIncompatibleMethodOverride]

    assert type_name(Liar()) == "Liar"
    assert len(type_name(type("A" * 5000, (), {})())) == 200
