"""One SQLite file: opened privately and safely by several processes at once, read and written in transactions."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import stat
import threading
import weakref
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from protolink._text import visible
from protolink.storage.port import StorageError

__all__ = ["Database", "check_table_name", "named"]

Row = tuple[Any, ...]

_logger: Final = logging.getLogger("protolink")

_TABLE_NAME: Final = re.compile(r"(?!sqlite)[a-z_][a-z0-9_]{0,31}")
_PLACE: Final = re.compile(r"<name>(\w*)")
_BUSY_SECONDS: Final = 10.0
_OPENING_ATTEMPTS: Final = 100
_MEMORY: Final = ":memory:"

_VERSIONS: Final = (
    "CREATE TABLE IF NOT EXISTS protolink_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT"
)
_VERSION: Final = "SELECT version FROM protolink_versions WHERE name = ?"
_SET_VERSION: Final = "INSERT OR REPLACE INTO protolink_versions (name, version) VALUES (?, ?)"


def check_table_name(name: str, what: str) -> str:
    """A name that can stand in a statement. Raises `ValueError` for any other; values are always bound instead."""
    if not isinstance(name, str) or _TABLE_NAME.fullmatch(name) is None:
        raise ValueError(
            f"{what} has at most 32 lower-case letters, digits and underscores; it begins with no digit nor sqlite"
        )
    return name


def named(statement: str, name: str) -> str:
    """A statement about the tables that begin with `name`; it is checked here again because here it counts."""
    return _PLACE.sub(rf'"{check_table_name(name, "a table name")}\1"', statement)


class Database:
    """The tables of one store in one file.

    Opened by the first use, so building a store touches nothing. Safe to use from several threads, from
    several processes, and after a fork. Whatever SQLite complains about is a `StorageError`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: str,
        name: str,
        migrations: Sequence[Sequence[str]],
        *,
        read_only: bool = False,
    ) -> None:
        self.path: str = os.fspath(path)
        if not isinstance(self.path, str) or not self.path:
            raise ValueError("a database needs the path of a file")
        # Stores of two kinds may have one name in one file.
        self._versioned = f"{kind} {name}"
        self._migrations = tuple(tuple(named(statement, name) for statement in step) for step in migrations)
        self._read_only = read_only
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._process = 0
        self._finalizer: weakref.finalize[[], Database] | None = None

    def read(self, statement: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> list[Row]:
        """The rows of one query."""
        with self._lock, self._translated():
            return self._open().execute(statement, parameters).fetchall()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Everything inside the block is written, or nothing."""
        if self._read_only:
            raise StorageError(f"{self._shown()} was opened read-only")
        with self._lock, self._translated():
            connection = self._open()
            with _immediate(connection):
                yield connection

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            self._connection = None
            if self._finalizer is not None:
                self._finalizer()
                self._finalizer = None

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"{self._shown()}: {error}") from error
        except OSError as error:
            raise StorageError(f"{self._shown()}: {error.strerror or type(error).__name__}") from error

    def _shown(self) -> str:
        return f"database {visible(Path(self.path).name, limit=100)!r}"

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and self._process == os.getpid():
            return self._connection
        if self._finalizer is not None:
            # A connection that was inherited by a fork belongs to the parent; closing it here would drop
            # the parent's locks.
            self._finalizer.detach()
        connection = self._connect()
        try:
            if not self._read_only:
                _use_write_ahead_log(connection)
                self._migrate(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._process = connection, os.getpid()
        self._finalizer = weakref.finalize(self, connection.close)
        return connection

    def _connect(self) -> sqlite3.Connection:
        target = self.path
        if target != _MEMORY:
            if not self._read_only:
                # Made before SQLite makes it, so that it never has another mode; the files that SQLite puts
                # beside it take over the mode of this one. An existing file is not opened here: closing a
                # descriptor of it would end the locks that this process has on it.
                with suppress(FileExistsError):
                    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600))
                self._check_files()
            target = Path(target).absolute().as_uri() + ("?mode=ro" if self._read_only else "?mode=rw")
        return sqlite3.connect(
            target, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=target != _MEMORY
        )

    def _check_files(self) -> None:
        """Refuse what SQLite would write to and that is no plain file of the store's own, such as a planted link."""
        for suffix in ("-wal", "-shm", "-journal"):
            try:
                found = os.lstat(self.path + suffix)
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise StorageError(f"{self._shown()}: the file {suffix} beside it is a link or no plain file")
        if os.stat(self.path).st_mode & 0o022:
            _logger.warning("%s can be written by other users", self._shown())

    def _migrate(self, connection: sqlite3.Connection) -> None:
        newest = len(self._migrations)
        with _immediate(connection):
            connection.execute(_VERSIONS)
            row = connection.execute(_VERSION, (self._versioned,)).fetchone()
            version: int = 0 if row is None else row[0]
            if version > newest:
                raise StorageError(
                    f"{self._shown()} holds {self._versioned!r} in version {version}; this release knows {newest}"
                )
            for step in self._migrations[version:]:
                for statement in step:
                    connection.execute(statement)
            if version < newest:
                connection.execute(_SET_VERSION, (self._versioned, newest))


@contextmanager
def _immediate(connection: sqlite3.Connection) -> Generator[None]:
    """A transaction that has its write lock from the start, so that it never fails half-way for want of it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the file over once. Of several processes that open a new file, one does it.

    SQLite does not wait for its busy timeout here, because two that wait for each other would wait for
    ever. Beginning a transaction does wait, until whoever is switching has finished.
    """
    for _ in range(_OPENING_ATTEMPTS):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) and "busy" not in str(error):
                raise
            with _immediate(connection):
                pass
        else:
            connection.execute("PRAGMA synchronous = FULL")
            return
    raise StorageError("the database stays locked by others while it is opened")
