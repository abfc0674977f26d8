"""The table of roots: one row each, sealed, so that a change by somebody else is noticed."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, cast

from protolink._environment import iso
from protolink._json import JSONError, parse
from protolink.durable.port import RunInfo, RunStatus
from protolink.durable.rows import shown
from protolink.durable.signet import Signet
from protolink.errors import StoreDamagedError

__all__ = ["StoredRun", "insert_run", "latest_runs", "run_by_id", "run_by_root", "update_run"]


@dataclass(slots=True)
class StoredRun:
    """A root as its table has it; the fields are the columns, in their order."""

    id: int
    root_id: str
    agent_name: str
    principal: str
    session_id: str | None
    status: str
    attempts: int
    records: int
    fence: int
    owner: str | None
    owner_since: float | None
    created_at: float
    updated_at: float
    summary: str
    checksum: bytes
    """That of the last record, or what the first one's is chained to."""

    seal: bytes = b""
    """Over everything above but the number, and over the store."""

    def sealed(self, signet: Signet) -> bytes:
        """The seal that the columns have to have."""
        # `repr` of a tuple of texts, numbers and None gives two different tuples two different texts.
        columns = (
            signet.store_id,
            self.root_id,
            self.agent_name,
            self.principal,
            self.session_id,
            self.status,
            self.attempts,
            self.records,
            self.fence,
            self.owner,
            self.owner_since,
            self.created_at,
            self.updated_at,
            self.summary,
            self.checksum,
        )
        return signet.digest(repr(columns).encode("utf-8", "surrogatepass"))

    def extended(self, checksums: Sequence[bytes], status: str, now: float, summary: str | None) -> StoredRun:
        """The same root with more records."""
        return StoredRun(
            id=self.id,
            root_id=self.root_id,
            agent_name=self.agent_name,
            principal=self.principal,
            session_id=self.session_id,
            status=status,
            attempts=self.attempts,
            records=self.records + len(checksums),
            fence=self.fence,
            owner=self.owner,
            owner_since=self.owner_since,
            created_at=self.created_at,
            updated_at=now,
            summary=self.summary if summary is None else summary,
            checksum=checksums[-1] if checksums else self.checksum,
        )

    def info(self, is_driven: bool) -> RunInfo:
        """What a list shows of it. Raises `StoreDamagedError` for a summary that is none."""
        owner = None
        if is_driven:
            owner = "somebody" if self.owner is None else f"{self.owner} since {self.since}"
        try:
            summary = parse(self.summary)
        except JSONError as error:
            raise _damaged(self.root_id) from error
        return RunInfo(
            root_id=self.root_id,
            agent_name=self.agent_name,
            principal=self.principal,
            status=cast(RunStatus, self.status),
            attempts=self.attempts,
            records=self.records,
            created_at=self.created_at,
            updated_at=self.updated_at,
            owner=owner,
            session_id=self.session_id,
            summary=summary if isinstance(summary, dict) else {},
        )

    @property
    def since(self) -> str | None:
        """Since when it is driven, for people."""
        return None if self.owner_since is None else iso(self.owner_since)


def run_by_root(connection: sqlite3.Connection, root_id: str, signet: Signet) -> StoredRun | None:
    """A root, verified. Raises `StoreDamagedError`."""
    found = connection.execute(
        """
        SELECT id, root_id, agent_name, principal, session_id, status, attempts, records, fence, owner, owner_since,
            created_at, updated_at, summary, checksum, seal
        FROM runs WHERE root_id = ?
        """,
        (root_id,),
    ).fetchone()
    return None if found is None else _verified(found, signet)


def run_by_id(connection: sqlite3.Connection, number: int, signet: Signet) -> StoredRun | None:
    """A root by its number, verified. Raises `StoreDamagedError`."""
    found = connection.execute(
        """
        SELECT id, root_id, agent_name, principal, session_id, status, attempts, records, fence, owner, owner_since,
            created_at, updated_at, summary, checksum, seal
        FROM runs WHERE id = ?
        """,
        (number,),
    ).fetchone()
    return None if found is None else _verified(found, signet)


def latest_runs(
    connection: sqlite3.Connection,
    signet: Signet,
    *,
    status: str | None,
    agent_name: str | None,
    principal: str | None,
    limit: int,
) -> tuple[list[StoredRun], list[StoreDamagedError]]:
    """The roots that were created last, and what is wrong with those that cannot be shown."""
    runs: list[StoredRun] = []
    damaged: list[StoreDamagedError] = []
    for found in connection.execute(
        """
        SELECT id, root_id, agent_name, principal, session_id, status, attempts, records, fence, owner, owner_since,
            created_at, updated_at, summary, checksum, seal
        FROM runs
        WHERE (:status IS NULL OR status = :status) AND (:agent_name IS NULL OR agent_name = :agent_name)
            AND (:principal IS NULL OR principal = :principal)
        ORDER BY id DESC LIMIT :limit
        """,
        {"status": status, "agent_name": agent_name, "principal": principal, "limit": limit},
    ):
        try:
            runs.append(_verified(found, signet))
        except StoreDamagedError as error:
            damaged.append(error)
    return runs, damaged


def insert_run(connection: sqlite3.Connection, run: StoredRun, signet: Signet) -> None:
    """Add a root and learn its number."""
    run.seal = run.sealed(signet)
    cursor = connection.execute(
        """
        INSERT INTO runs (root_id, agent_name, principal, session_id, status, attempts, records, fence, owner,
            owner_since, created_at, updated_at, summary, checksum, seal)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
        """,
        (
            run.root_id,
            run.agent_name,
            run.principal,
            run.session_id,
            run.status,
            run.attempts,
            run.records,
            run.fence,
            run.owner,
            run.owner_since,
            run.created_at,
            run.updated_at,
            run.summary,
            run.checksum,
            run.seal,
        ),
    )
    run.id = cursor.lastrowid or 0


def update_run(connection: sqlite3.Connection, run: StoredRun, signet: Signet, *, fence: int, records: int) -> bool:
    """Write what changes of a root, if its fence and its number of records still are the given ones."""
    run.seal = run.sealed(signet)
    cursor = connection.execute(
        """
        UPDATE runs SET status = ?, attempts = ?, records = ?, fence = ?, owner = ?, owner_since = ?, updated_at = ?,
            summary = ?, checksum = ?, seal = ?
        WHERE id = ? AND fence = ? AND records = ?
        """,
        (
            run.status,
            run.attempts,
            run.records,
            run.fence,
            run.owner,
            run.owner_since,
            run.updated_at,
            run.summary,
            run.checksum,
            run.seal,
            run.id,
            fence,
            records,
        ),
    )
    return cursor.rowcount == 1


def _verified(found: tuple[Any, ...], signet: Signet) -> StoredRun:
    run = StoredRun(*found)
    if not compare_digest(run.seal, run.sealed(signet)):
        raise _damaged(run.root_id)
    return run


def _damaged(root_id: object) -> StoreDamagedError:
    name = shown(root_id) if isinstance(root_id, str) else "without a name"
    return StoreDamagedError(f"root {name} was changed by somebody else; it was not used")
