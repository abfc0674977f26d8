"""The tables of records and of their large texts, each record chained to the one before."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from hmac import compare_digest
from types import MappingProxyType
from typing import Any, Final

from protolink._json import JSONError, is_mapping, parse
from protolink.durable.port import Row
from protolink.durable.rows import PreparedRow, row_content, shown
from protolink.durable.runs import StoredRun
from protolink.durable.signet import Signet
from protolink.errors import StoreDamagedError

__all__ = ["chained", "delete_records", "first_checksum", "insert_records", "read_records"]

_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def first_checksum(root_id: str, signet: Signet) -> bytes:
    """What a root's first record is chained to, so that no other root's records fit."""
    return signet.digest(f"protolink records of {len(root_id)} {root_id} in {signet.store_id}".encode())


def chained(checksum: bytes, prepared: Iterable[PreparedRow], signet: Signet) -> list[bytes]:
    """The checksum of each record, given that of the one before the first."""
    digest = signet.digest
    checksums: list[bytes] = []
    for each in prepared:
        checksum = digest(checksum + each.content)
        checksums.append(checksum)
    return checksums


def insert_records(
    connection: sqlite3.Connection, run: StoredRun, prepared: Sequence[PreparedRow], checksums: Sequence[bytes]
) -> None:
    """Add records behind the last one of a root. An empty `run_id` stands for the root's own, most records are its."""
    values: list[tuple[Any, ...]] = []
    for each, checksum in zip(prepared, checksums, strict=True):
        row = each.row
        values.append(
            (
                run.id,
                row.number,
                row.sequence,
                "" if row.run_id == run.root_id else row.run_id,
                float(row.at),
                row.kind,
                row.version,
                row.body,
                each.references,
                checksum,
            )
        )
        for name, digest in each.digests.items():
            connection.execute("INSERT OR IGNORE INTO blobs VALUES (?, ?)", (digest, row.bodies[name]))
            connection.execute("INSERT OR IGNORE INTO uses VALUES (?, ?)", (digest, run.id))
    connection.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", values)


def read_records(connection: sqlite3.Connection, run: StoredRun, after: int, signet: Signet) -> list[Row]:
    """The records behind a number, verified to the end. Raises `StoreDamagedError` for the first that is not ours."""
    if after >= run.records:
        return []
    checksum = first_checksum(run.root_id, signet)
    if after:
        found = connection.execute(
            "SELECT checksum FROM records WHERE run = ? AND number = ?", (run.id, after)
        ).fetchone()
        if found is None:
            raise _damaged(run, after)
        checksum = found[0]
    texts: dict[str, str | None] = {}
    rows: list[Row] = []
    number = after
    for found in connection.execute(
        """
        SELECT number, sequence, run_id, at, kind, version, body, bodies, checksum
        FROM records WHERE run = ? AND number > ? ORDER BY number
        """,
        (run.id, after),
    ):
        number += 1
        at_number, sequence, run_id, at, kind, version, body, references, stored = found
        run_id = run_id or run.root_id
        try:
            content = row_content(at_number, sequence, run_id, at, kind, version, body, references)
            checksum = signet.digest(checksum + content)
            fits = compare_digest(stored, checksum)
        except (TypeError, ValueError) as error:  # a column is not of the type that it was stored with
            raise _damaged(run, number) from error
        if at_number != number or not fits:
            raise _damaged(run, number)
        bodies = _bodies(connection, run, number, references, texts) if references else _NONE
        rows.append(
            Row(
                number=number,
                sequence=sequence,
                run_id=run_id,
                at=at,
                kind=kind,
                version=version,
                body=body,
                bodies=bodies,
            )
        )
    if number != run.records or checksum != run.checksum:
        raise _damaged(run, min(number + 1, run.records))
    return rows


def delete_records(connection: sqlite3.Connection, number: int) -> None:
    """Delete the records of a root, and the texts that no other root refers to."""
    digests: set[bytes] = set()
    for (references,) in connection.execute(
        "SELECT bodies FROM records WHERE run = ? AND bodies IS NOT NULL", (number,)
    ):
        try:
            digests.update(_digests(references).values())
        except (JSONError, TypeError, ValueError):
            continue  # a damaged record can be deleted all the same; its text stays
    connection.execute("DELETE FROM records WHERE run = ?", (number,))
    for digest in digests:
        connection.execute("DELETE FROM uses WHERE digest = ? AND run = ?", (digest, number))
        connection.execute(
            "DELETE FROM blobs WHERE digest = ? AND NOT EXISTS (SELECT 1 FROM uses WHERE digest = ?)", (digest, digest)
        )


def _bodies(
    connection: sqlite3.Connection, run: StoredRun, number: int, references: str, texts: dict[str, str | None]
) -> dict[str, str]:
    """The large fields of a record; one whose text was removed is left out."""
    bodies: dict[str, str] = {}
    for name, digest in _digests(references).items():
        key = digest.hex()
        if key not in texts:
            found = connection.execute("SELECT text FROM blobs WHERE digest = ?", (digest,)).fetchone()
            if found is None and _is_unindexed(connection, digest):
                raise _damaged(run, number)
            text = None if found is None else found[0]
            if text is not None and not (isinstance(text, str) and hashlib.sha256(text.encode()).digest() == digest):
                raise _damaged(run, number)
            texts[key] = text
        text = texts[key]
        if text is not None:
            bodies[name] = text
    return bodies


def _is_unindexed(connection: sqlite3.Connection, digest: bytes) -> bool:
    """Whether a text that its index does not have is there all the same. One that was removed is in neither."""
    return connection.execute("SELECT 1 FROM blobs NOT INDEXED WHERE digest = ?", (digest,)).fetchone() is not None


def _digests(references: str) -> dict[str, bytes]:
    value = parse(references)
    return {name: bytes.fromhex(str(digest)) for name, digest in value.items()} if is_mapping(value) else {}


def _damaged(run: StoredRun, number: int) -> StoreDamagedError:
    return StoreDamagedError(
        f"record {number} of root {shown(run.root_id)} was changed by somebody else; nothing of the root was used"
    )
