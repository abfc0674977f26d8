"""What leaves a run is searched for values that must not leave.

A policy knows secrets by value and by the name of the field that holds them. It changes copies on their way
out: events, reports, errors and evidence. The records that a run resumes from stay as they are.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, quote_plus

from protolink._json import JSON
from protolink._text import encodable

__all__ = ["DEFAULT_SENSITIVE_KEYS", "RedactionPolicy", "StreamRedactor"]

DEFAULT_SENSITIVE_KEYS: frozenset[str] = frozenset(
    {
        "access_key",
        "access_token",
        "api_key",
        "api_secret",
        "api_token",
        "auth_token",
        "authorization",
        "aws_secret_access_key",
        "aws_session_token",
        "bearer_token",
        "client_secret",
        "connection_string",
        "cookie",
        "credential",
        "credentials",
        "csrf_token",
        "encryption_key",
        "id_token",
        "jwt",
        "passphrase",
        "passwd",
        "password",
        "private_key",
        "proxy_authorization",
        "pwd",
        "refresh_token",
        "secret",
        "secret_access_key",
        "secret_key",
        "secrets",
        "session_cookie",
        "session_token",
        "set_cookie",
        "signing_key",
        "token",
        "webhook_secret",
        "x_api_key",
        "x_auth_token",
    }
)
"""Whole names of fields whose value is redacted, whatever it is; `input_tokens` is not one of them."""

_MIN_CHARACTERS = 4
# Below this many characters the middle of a base64 text is too short to be told from an ordinary word.
_MIN_EMBEDDED = 8


@dataclass(frozen=True, kw_only=True, init=False, repr=False)
class RedactionPolicy:
    """Replaces secrets in text and JSON that leave a run.

    A sensitive value is found as it is, and in its JSON, URL and base64 spelling. A sensitive key hides the
    whole value beside it, also in a text that holds JSON, such as a model's call; case, `-` and `_` do not matter,
    and only a whole name matches.
    """

    sensitive_values: frozenset[str]
    sensitive_keys: frozenset[str]
    replacement: str
    _spellings: tuple[str, ...] = field(init=False, compare=False)
    _keys: frozenset[str] = field(init=False, compare=False)
    _numeric: bool = field(init=False, compare=False)

    def __init__(
        self,
        *,
        sensitive_values: Iterable[str] = (),
        sensitive_keys: Iterable[str] = DEFAULT_SENSITIVE_KEYS,
        replacement: str = "[redacted]",
    ) -> None:
        """Take any collections of texts.

        Raises `TypeError` for a single text in place of a collection, and `ValueError` for a value that is
        blank or so short that it would match ordinary text, for a blank key, and for a replacement that
        holds a value itself. No message repeats a value.
        """
        values = _texts(sensitive_values, "sensitive_values")
        keys = _texts(sensitive_keys, "sensitive_keys")
        if any(len(value) < _MIN_CHARACTERS for value in values):
            raise ValueError(
                f"a sensitive value needs at least {_MIN_CHARACTERS} characters; a shorter one would be found "
                "in ordinary words and numbers, and every replacement would give it away"
            )
        spellings = tuple(sorted({spelling for value in values for spelling in _spellings_of(value)}))
        if any(spelling in replacement for spelling in spellings):
            raise ValueError("the replacement contains a sensitive value")
        set_field = object.__setattr__
        set_field(self, "sensitive_values", values)
        set_field(self, "sensitive_keys", keys)
        set_field(self, "replacement", replacement)
        set_field(self, "_spellings", spellings)
        set_field(self, "_keys", frozenset(map(_normal, keys)))
        set_field(self, "_numeric", any(value.strip("0123456789.+-e") == "" for value in values))

    def __repr__(self) -> str:
        return (
            f"RedactionPolicy({len(self.sensitive_values)} sensitive values, "
            f"{len(self.sensitive_keys)} sensitive keys, replacement={self.replacement!r})"
        )

    def text(self, text: str) -> str:
        """The text without any sensitive value, and without what stands beside sensitive keys where it holds JSON.

        Values that overlap are replaced together.
        """
        for spelling in self._spellings:
            if spelling in text:
                text = _cut(text, len(text), 0, self._spellings, self.replacement)[0]
                break
        if not self._keys or '"' not in text:
            return text
        mask = _KeyMask(self._keys, self.replacement)
        return mask.feed(text) + mask.close()

    def value(self, value: JSON) -> JSON:
        """A copy of a JSON value without any sensitive value, and without what stands beside sensitive keys.

        Keys are searched as well. Two that become the same stay apart by a number.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if self._numeric and isinstance(value, (int, float)) and not isinstance(value, bool):
            written = json.dumps(value)
            return value if self.text(written) == written else self.replacement
        return value

    def stream(self) -> StreamRedactor:
        """A redactor for text that arrives in fragments."""
        return StreamRedactor(self)

    def _object(self, members: dict[str, JSON]) -> JSON:
        redacted: dict[str, JSON] = {}
        for key, item in members.items():
            name = self.text(key) if self._spellings else key
            if name in redacted or (name is not key and name in members):
                number = 2
                while f"{name} ({number})" in redacted or f"{name} ({number})" in members:
                    number += 1
                name = f"{name} ({number})"
            redacted[name] = self.replacement if _normal(key) in self._keys else self.value(item)
        return redacted


class StreamRedactor:
    """Redacts a text that arrives in fragments, also where a secret is split between them.

    What `feed` and `close` return is, joined, what `RedactionPolicy.text` makes of the whole. A fragment's
    end is held back only while it could be the beginning of a secret. Made by `RedactionPolicy.stream`.
    """

    __slots__ = ("_closed", "_covered", "_held", "_mask", "_policy")

    def __init__(self, policy: RedactionPolicy) -> None:
        self._policy = policy
        self._held = ""
        # How much of what is held belongs to a secret whose replacement has been given out already.
        self._covered = 0
        self._mask = _KeyMask(policy._keys, policy.replacement)  # pyright: ignore[reportPrivateUsage]
        self._closed = False

    def __repr__(self) -> str:
        held = len(self._held) + len(self._mask.held)
        return f"StreamRedactor({'closed' if self._closed else f'holding {held} characters'})"

    def feed(self, text: str) -> str:
        """The part that can be shown by now. Raises `RuntimeError` after `close`."""
        if self._closed:
            raise RuntimeError("the stream is closed")
        spellings = self._policy._spellings  # pyright: ignore[reportPrivateUsage] - the policy made this object
        if spellings:
            held = self._held + text
            text = self._advance(held, _settled(held, spellings), spellings)
        return self._mask.feed(text)

    def close(self) -> str:
        """What was held back, since nothing more will come. Closing again gives nothing."""
        if self._closed:
            return ""
        self._closed = True
        spellings = self._policy._spellings  # pyright: ignore[reportPrivateUsage] - the policy made this object
        rest = self._advance(self._held, len(self._held), spellings)
        return self._mask.feed(rest) + self._mask.close()

    def _advance(self, held: str, end: int, spellings: tuple[str, ...]) -> str:
        shown, self._covered = _cut(held, end, self._covered, spellings, self._policy.replacement)
        self._held = held[end:]
        return shown


_KEY = re.compile(r'"([^"\\]{1,128})"\s*:')
_KEY_TO_COME = re.compile(r'"[^"\\]{0,128}(?:"\s*)?')
_BARE_END = re.compile(r"[,}\]\s]")


class _KeyMask:
    """Hides what stands beside a sensitive key in a text that may be JSON, and arrives in fragments.

    Whether a quotation mark begins a text or ends one is not asked: a reply may be prose, with JSON in it, and what
    looks like a member of an object is taken for one.
    """

    __slots__ = ("_depth", "_escaped", "_in_text", "_keys", "_replacement", "_state", "held")

    def __init__(self, keys: frozenset[str], replacement: str) -> None:
        self._keys = keys
        self._replacement = json.dumps(replacement, ensure_ascii=False)
        self.held = ""
        self._state: Literal["outside", "before", "bare", "nested"] = "outside"
        self._depth = 0
        self._in_text = self._escaped = False

    def feed(self, text: str) -> str:
        """The part that can be shown by now."""
        if not self._keys:
            return text
        text, self.held = self.held + text, ""
        shown: list[str] = []
        while text:
            text = self._search(text, shown) if self._state == "outside" else self._skip(text, shown)
        return "".join(shown)

    def close(self) -> str:
        """What was held back, since nothing more will come."""
        rest, self.held = self.held, ""
        return rest

    def _search(self, text: str, shown: list[str]) -> str:
        """Show the text up to a value that is hidden, and give what comes behind its key."""
        start = 0
        while found := _KEY.search(text, start):
            if _normal(found[1]) in self._keys:
                shown.append(text[: found.end()])
                self._state = "before"
                return text[found.end() :]
            start = found.start() + 1
        end = len(text)
        last = text.rfind('"')
        for mark in (last, text.rfind('"', 0, max(last, 0))):
            if mark >= 0 and _KEY_TO_COME.fullmatch(text, mark):
                end = mark
        shown.append(text[:end])
        self.held = text[end:]
        return ""

    def _skip(self, text: str, shown: list[str]) -> str:
        """Show something else than the value, and give what comes behind it."""
        if self._state == "before":
            value = text.lstrip()
            shown.append(text[: len(text) - len(value)])
            if not value:
                return ""
            shown.append(self._replacement)
            self._state = "nested" if value[0] in '"[{' else "bare"
            text = value
        if self._state == "bare":
            end = _BARE_END.search(text)
            if end is None:
                return ""
            self._state = "outside"
            return text[end.start() :]
        for place, letter in enumerate(text, 1):
            if self._escaped:
                self._escaped = False
            elif self._in_text:
                self._escaped = letter == "\\"
                self._in_text = letter != '"'
            elif letter == '"':
                self._in_text = True
            else:
                self._depth += (letter in "[{") - (letter in "]}")
            if not (self._depth or self._in_text):
                self._state = "outside"
                return text[place:]
        return ""


def _cut(text: str, end: int, covered: int, spellings: tuple[str, ...], replacement: str) -> tuple[str, int]:
    """Replace what begins before `end`; give the result and how far the last secret reaches behind `end`.

    The first `covered` characters belong to a secret that has been replaced. Overlapping occurrences count as
    one, because what one of them left over would be a piece of the other.
    """
    found: list[tuple[int, int]] = []
    for spelling in spellings:
        start = text.find(spelling)
        while 0 <= start < end:
            found.append((start, start + len(spelling)))
            start = text.find(spelling, start + 1)
    found.sort()
    shown: list[str] = []
    for start, stop in found:
        if start >= covered:
            shown += (text[covered:start], replacement)
        covered = max(covered, stop)
    if covered < end:
        shown.append(text[covered:end])
        covered = end
    return "".join(shown), covered - end


def _settled(text: str, spellings: tuple[str, ...]) -> int:
    """Where the longest ending of the text starts that more text could make a secret of."""
    length = len(text)
    settled = length
    for spelling in spellings:
        first = spelling[0]
        start = text.find(first, max(0, length - len(spelling) + 1), settled)
        while start >= 0:
            if text.startswith(spelling[: length - start], start):
                settled = start
                break
            start = text.find(first, start + 1, settled)
    return settled


def _texts(values: Iterable[str], what: str) -> frozenset[str]:
    if isinstance(values, (str, bytes)):
        raise TypeError(f"{what} is a collection of texts, not a single one")
    given: frozenset[object] = frozenset(values)
    texts = frozenset(text for text in given if isinstance(text, str))
    if len(texts) < len(given):
        raise TypeError(f"{what} holds something that is not a text")
    if not all(text.strip() for text in texts):
        raise ValueError(f"{what} holds a blank text")
    return texts


def _normal(key: str) -> str:
    return key.casefold().replace("-", "").replace("_", "")


def _spellings_of(value: str) -> set[str]:
    clean = encodable(value)
    raw = clean.encode()
    quoted = {quote(clean, safe=""), quote(clean), quote_plus(clean)}
    spellings = {value, clean, json.dumps(clean)[1:-1], json.dumps(clean, ensure_ascii=False)[1:-1]}
    spellings |= quoted | {_lower_escapes(text) for text in quoted}
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        whole = encode(raw).decode("ascii")
        spellings |= {whole, whole.rstrip("=")}
        # Inside a longer text, as in `user:password`, the encoding depends on what stands before it. These
        # are the digits that do not depend on the neighbours, for each of the three ways to be aligned.
        for offset, unstable in ((0, 0), (1, 2), (2, 3)):
            digits = encode(b"\0" * offset + raw).decode("ascii")
            stable = digits[unstable : (offset + len(raw)) * 8 // 6]
            if len(stable) >= _MIN_EMBEDDED:
                spellings.add(stable)
    return spellings


def _lower_escapes(quoted: str) -> str:
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])
