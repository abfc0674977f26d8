"""What every record log refuses to store, and what a row's checksum is taken over."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, get_args

from protolink._json import canonical, require_json
from protolink._record import command
from protolink._text import visible
from protolink.durable.port import Row, RunInfo, RunStatus
from protolink.errors import StoreFullError

__all__ = [
    "MAX_APPEND_BYTES",
    "MAX_APPEND_ROWS",
    "MAX_BODY_BYTES",
    "MAX_NAME_CHARACTERS",
    "MAX_SUMMARY_BYTES",
    "PreparedRow",
    "check_info",
    "check_limit",
    "check_name",
    "check_numbers",
    "check_status",
    "prepare",
    "prepare_summary",
    "row_content",
    "shown",
]

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""One text: a row's body, or one of its large fields."""

MAX_APPEND_BYTES: Final = 256 * 1024 * 1024
"""All texts of one append."""

MAX_APPEND_ROWS: Final = 10_000
MAX_SUMMARY_BYTES: Final = 1024 * 1024
MAX_NAME_CHARACTERS: Final = 1024
"""Identifiers, kinds and the names of agents, principals and sessions."""

_MAX_INTEGER: Final = 2**63 - 1
_STATUSES: Final = frozenset(get_args(RunStatus))


def shown(root_id: str) -> str:
    """A root's id as it may stand in a message."""
    return f"{visible(root_id, limit=100)!r}"


def check_name(value: object, what: str) -> str:
    """A text that can be an identifier. Raises `TypeError` and `ValueError`."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is a text, not {type(value).__name__}")
    if not value or len(value) > MAX_NAME_CHARACTERS:
        raise ValueError(f"{what} has 1 to {MAX_NAME_CHARACTERS} characters, not {len(value)}")
    if not value.isascii():
        _encoded(value, what)
    return value


def check_status(value: object) -> None:
    """Raises `ValueError` for a status that no run can have."""
    if value not in _STATUSES:
        raise ValueError(f"a status is one of {', '.join(sorted(_STATUSES))}")


def check_limit(value: object) -> None:
    """Raises `ValueError` for a number of runs that a list cannot have."""
    if not isinstance(value, int) or not 1 <= value <= _MAX_INTEGER:
        raise ValueError("a list's limit is a whole number from 1")


def check_info(root_id: str, info: RunInfo) -> str:
    """The summary of a new root as text. Raises `TypeError` and `ValueError` for what no root can be."""
    check_name(root_id, "a root's id")
    if info.root_id != root_id:
        raise ValueError("the info of a new root names another root")
    check_name(info.agent_name, "an agent's name")
    check_name(info.principal, "a principal")
    if info.session_id is not None:
        check_name(info.session_id, "a session's id")
    check_status(info.status)
    for moment in (info.created_at, info.updated_at):
        if not math.isfinite(moment):
            raise ValueError("a root's times are finite numbers")
    return prepare_summary(info.summary, f"root {shown(root_id)} was not created")


def check_numbers(expected: int, rows: Sequence[Row]) -> None:
    """Raises `ValueError` for rows that are not numbered `expected + 1` and on, without a gap."""
    if not isinstance(expected, int) or expected < 0:
        raise ValueError("the expected number is a whole number from 0")
    for number, row in enumerate(rows, expected + 1):
        if row.number != number:
            raise ValueError(f"row {row.number} stands where row {number} has to follow {expected} others")


@command
class PreparedRow:
    """A row that passed every check, with what is stored of it."""

    row: Row
    references: str | None
    """Field names and digests as one JSON object."""

    content: bytes
    """What the checksum is taken over."""

    digests: Mapping[str, bytes]
    """The digest of each large field, by field name."""


def prepare(expected: int, rows: Sequence[Row], undone: str) -> tuple[list[PreparedRow], int]:
    """The rows, checked, and about how many bytes they are.

    Raises `TypeError` and `ValueError` for what no row can be and `StoreFullError` for what is too large.
    """
    check_numbers(expected, rows)
    if len(rows) > MAX_APPEND_ROWS:
        raise StoreFullError(f"{undone}: {len(rows)} rows are more than MAX_APPEND_ROWS, which is {MAX_APPEND_ROWS}")
    prepared: list[PreparedRow] = []
    total = 0
    for row in rows:
        _check_row(row)
        digests, references = _NO_DIGESTS, None
        if row.bodies:
            digests, size = _digests(row.bodies, undone)
            references = canonical({name: digest.hex() for name, digest in digests.items()})
            total += size
        content = row_content(
            row.number, row.sequence, row.run_id, float(row.at), row.kind, row.version, row.body, references
        )
        if len(content) > MAX_BODY_BYTES:  # a little more than the body alone, which is then looked at
            _refuse_large(len(row.body.encode()), "a record's body", undone)
        total += len(content)
        if total > MAX_APPEND_BYTES:
            raise StoreFullError(f"{undone}: more than MAX_APPEND_BYTES, which is {MAX_APPEND_BYTES}, at once")
        prepared.append(PreparedRow(row, references, content, digests))
    return prepared, total


_NO_DIGESTS: Final[Mapping[str, bytes]] = MappingProxyType({})


def _check_row(row: Row) -> None:
    check_name(row.run_id, "a run's id")
    check_name(row.kind, "a record's kind")
    sequence, version, at, body = row.sequence, row.version, row.at, row.body
    if not (isinstance(sequence, int) and isinstance(version, int) and 0 <= sequence <= _MAX_INTEGER >= version >= 0):
        raise ValueError("a record's sequence and version are whole numbers from 0")
    if not (isinstance(at, int | float) and math.isfinite(at)):
        raise ValueError("a record's time is a finite number")
    if not (isinstance(body, str) and body.isascii()):
        _encoded(body, "a record's body")


def _digests(bodies: Mapping[str, str], undone: str) -> tuple[dict[str, bytes], int]:
    """The digest of each large field, and the size of all of them."""
    digests: dict[str, bytes] = {}
    total = 0
    for name, text in bodies.items():
        check_name(name, "a large field's name")
        encoded = _encoded(text, "a large field")
        _refuse_large(len(encoded), f"the field {shown(name)}", undone)
        total += len(encoded)
        digests[name] = hashlib.sha256(encoded).digest()
    return digests, total


def row_content(
    number: int, sequence: int, run_id: str, at: float, kind: str, version: int, body: str, references: str | None
) -> bytes:
    """The bytes that stand for a row, and for no other: each part with its length before it."""
    return (
        f"{number} {sequence} {at!r} {version} {len(run_id)} {len(kind)} {len(body)} {run_id}{kind}{body}"
        f"{references or ''}"
    ).encode()


def prepare_summary(summary: Mapping[str, object], undone: str) -> str:
    """A summary as text. Raises `TypeError` for what JSON cannot carry and `StoreFullError` for too much."""
    copy: Any = require_json(dict(summary), "a run's summary")
    text = canonical(copy)
    size = len(text.encode())
    if size > MAX_SUMMARY_BYTES:
        raise StoreFullError(
            f"{undone}: a summary of {size} bytes is more than MAX_SUMMARY_BYTES, which is {MAX_SUMMARY_BYTES}"
        )
    return text


def _refuse_large(size: int, what: str, undone: str) -> None:
    if size > MAX_BODY_BYTES:
        raise StoreFullError(f"{undone}: {what} has {size} bytes, and MAX_BODY_BYTES is {MAX_BODY_BYTES}")


def _encoded(text: object, what: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"{what} is a text, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half of a character (a lone surrogate)") from None
