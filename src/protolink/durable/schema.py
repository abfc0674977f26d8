"""The tables of a record log in SQLite, how they came to be, and how a file is recognised as one."""

from __future__ import annotations

import hashlib
import logging
import platform
import sqlite3
from collections.abc import Callable, Iterable
from typing import Final

from protolink._environment import current_environment
from protolink.durable.signet import Signet
from protolink.errors import StoreDamagedError, StoreError, StoreKeyError, StoreVersionError

__all__ = [
    "APPLICATION_ID",
    "MIGRATIONS",
    "VERSION",
    "check_proof",
    "check_tables",
    "configure_reader",
    "configure_writer",
    "keep_proof",
    "migrate",
    "read_store_id",
    "recognise",
    "uses_wal",
    "warn_of_copy",
]

APPLICATION_ID: Final = 0x50724C6B
"""`PrLk`, in the header of the file."""

_logger: Final = logging.getLogger("protolink")


def _version_1(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID")
    # AUTOINCREMENT: a number is also the place of a lock, and must not come to mean another root.
    connection.execute(
        """
        CREATE TABLE runs (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            root_id TEXT NOT NULL UNIQUE,
            agent_name TEXT NOT NULL,
            principal TEXT NOT NULL,
            session_id TEXT,
            status TEXT NOT NULL,
            attempts INTEGER NOT NULL,
            records INTEGER NOT NULL,
            fence INTEGER NOT NULL,
            owner TEXT,
            owner_since REAL,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            summary TEXT NOT NULL,
            checksum BLOB NOT NULL,
            seal BLOB NOT NULL
        ) STRICT
        """
    )
    # With a rowid: rows of all runs share the last page of the table, which measures a quarter less to write
    # than one page for each run.
    connection.execute(
        """
        CREATE TABLE records (
            run INTEGER NOT NULL REFERENCES runs (id),
            number INTEGER NOT NULL,
            sequence INTEGER NOT NULL,
            run_id TEXT NOT NULL,
            at REAL NOT NULL,
            kind TEXT NOT NULL,
            version INTEGER NOT NULL,
            body TEXT NOT NULL,
            bodies TEXT,
            checksum BLOB NOT NULL,
            PRIMARY KEY (run, number)
        ) STRICT
        """
    )
    connection.execute("CREATE TABLE blobs (digest BLOB PRIMARY KEY, text TEXT NOT NULL) STRICT")
    connection.execute(
        """
        CREATE TABLE uses (
            digest BLOB NOT NULL,
            run INTEGER NOT NULL,
            PRIMARY KEY (digest, run)
        ) STRICT, WITHOUT ROWID
        """
    )
    connection.execute("PRAGMA application_id = 0x50724C6B")
    connection.execute("PRAGMA user_version = 1")
    # Not from the environment of whoever comes first: a simulation's ids are counted, and these must differ.
    connection.execute("INSERT INTO meta VALUES ('store_id', lower(hex(randomblob(16))))")
    connection.execute("INSERT INTO meta VALUES ('machine', ?)", (_machine(),))
    connection.execute("INSERT INTO meta VALUES ('created_at', ?)", (repr(current_environment().now()),))


MIGRATIONS: Final[tuple[Callable[[sqlite3.Connection], None], ...]] = (_version_1,)
"""The n-th takes a file of version n to the next, in one transaction that also sets the version."""

VERSION: Final = len(MIGRATIONS)

_TABLES: Final = frozenset({"meta", "runs", "records", "blobs", "uses", "sqlite_sequence"})


def recognise(connection: sqlite3.Connection) -> int:
    """The version of the file, 0 for one with nothing in it.

    Raises `StoreDamagedError` for the file of another program and `StoreVersionError` for a newer release's.
    """
    application = _number(connection, "PRAGMA application_id")
    version = _number(connection, "PRAGMA user_version")
    if application != APPLICATION_ID:
        if application == 0 and version == 0 and _number(connection, "PRAGMA page_count") == 0:
            return 0
        raise StoreDamagedError("the file belongs to another program; it was left as it is")
    if version > VERSION:
        raise StoreVersionError(f"the file has version {version} and this release knows {VERSION}; it was not opened")
    if version < 1:
        raise StoreDamagedError(f"the file says that it has version {version}, which there never was")
    return version


def migrate(connection: sqlite3.Connection, version: int) -> None:
    """Take a file to this release's version, one transaction for each step."""
    for step in MIGRATIONS[version:]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            step(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def check_tables(connection: sqlite3.Connection) -> None:
    """Refuse a file that holds other tables than ours, or anything that would run by itself."""
    found = connection.execute("SELECT type, name FROM sqlite_master WHERE type <> 'index'").fetchall()
    if any(kind != "table" for kind, _ in found) or {name for _, name in found} != _TABLES:
        raise StoreDamagedError("the tables of the file are not the ones that this release made")


def configure_reader(connection: sqlite3.Connection) -> None:
    """Let a connection only read, and trust nothing that it finds in the file."""
    for statement in (
        "PRAGMA query_only = ON",
        "PRAGMA mmap_size = 0",
        "PRAGMA trusted_schema = OFF",
        "PRAGMA cell_size_check = ON",
    ):
        connection.execute(statement).fetchall()
    _require(connection, (("PRAGMA query_only", 1), ("PRAGMA mmap_size", 0)))


def configure_writer(connection: sqlite3.Connection) -> None:
    """Make every commit durable, and refuse a connection that did not take the settings over."""
    for statement in (
        "PRAGMA journal_mode = WAL",
        "PRAGMA synchronous = FULL",
        "PRAGMA fullfsync = ON",
        "PRAGMA checkpoint_fullfsync = ON",
        "PRAGMA foreign_keys = ON",
        "PRAGMA wal_autocheckpoint = 0",
        "PRAGMA journal_size_limit = 16777216",
        "PRAGMA mmap_size = 0",
        "PRAGMA trusted_schema = OFF",
        "PRAGMA cell_size_check = ON",
    ):
        connection.execute(statement).fetchall()
    wanted = (
        ("PRAGMA journal_mode", "wal"),
        ("PRAGMA synchronous", 2),
        ("PRAGMA fullfsync", 1),
        ("PRAGMA checkpoint_fullfsync", 1),
        ("PRAGMA foreign_keys", 1),
        ("PRAGMA wal_autocheckpoint", 0),
        ("PRAGMA mmap_size", 0),
    )
    _require(connection, wanted)


def _require(connection: sqlite3.Connection, wanted: Iterable[tuple[str, object]]) -> None:
    for statement, value in wanted:
        found = connection.execute(statement).fetchone()
        if found is not None and found[0] != value:
            raise StoreError(f"{statement} is {found[0]!r} and has to be {value!r}; the store was not opened")


def uses_wal(connection: sqlite3.Connection) -> bool:
    """Whether the file has been switched over to a write-ahead log, which is the last step of making it."""
    found = connection.execute("PRAGMA journal_mode").fetchone()
    return found is not None and found[0] == "wal"


def read_store_id(connection: sqlite3.Connection) -> str:
    """What tells this store from every other, copies excepted."""
    return _meta(connection, "store_id")


def keep_proof(connection: sqlite3.Connection, signet: Signet) -> None:
    """Have a store that holds nothing yet remember the key that it is opened with."""
    proof = signet.proof()
    if proof is not None and _proof(connection) is None:
        connection.execute("INSERT INTO meta SELECT 'proof', ? WHERE NOT EXISTS (SELECT 1 FROM runs)", (proof,))


def check_proof(connection: sqlite3.Connection, signet: Signet) -> None:
    """Refuse a store that was written with another key, with one where none is given, or the other way round."""
    kept, proof = _proof(connection), signet.proof()
    if kept == proof:
        return
    if proof is None:
        why = "the store was written with an integrity key; open it with integrity_key="
    elif kept is None:
        why = "the store was written without an integrity key, so nothing in it can be believed with one"
    else:
        why = "the store was written with another integrity key"
    raise StoreKeyError(f"{why}; it was left as it is")


def _proof(connection: sqlite3.Connection) -> object:
    found = connection.execute("SELECT value FROM meta WHERE key = 'proof'").fetchone()
    return None if found is None else found[0]


def warn_of_copy(connection: sqlite3.Connection, name: str) -> None:
    """Say that a file was made on another machine: a copy of it may be in use there, and neither knows the other."""
    if _meta(connection, "machine") != _machine():
        _logger.warning(
            "the durable store %s was made on another machine; if that one still uses its copy, "
            "both may carry out the same action",
            name,
        )


def _meta(connection: sqlite3.Connection, key: str) -> str:
    found = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    if found is None or not isinstance(found[0], str):
        raise StoreDamagedError(f"the file does not say its {key}")
    return found[0]


def _machine() -> str:
    """This machine's identity, which is confidential, as a digest."""
    try:
        with open("/etc/machine-id", "rb") as file:
            identity = file.read().strip()
    except (FileNotFoundError, PermissionError):  # anything else may be over soon, and a store keeps what is said here
        identity = b""
    return hashlib.sha256(b"protolink durable store " + (identity or platform.node().encode())).hexdigest()[:32]


def _number(connection: sqlite3.Connection, statement: str) -> int:
    found = connection.execute(statement).fetchone()
    return int(found[0]) if found else 0
