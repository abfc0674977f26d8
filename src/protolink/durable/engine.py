"""One SQLite file as this process has it open: a thread that writes and a thread that reads.

Whatever waits for the writer is committed together. An operation that is refused has changed nothing and leaves the
others as they are; where one fails halfway, all are undone and each is done by itself. Nothing of SQLite ever runs on
an event loop.

Every writer of every process holds a side lock around its transaction. Automatic checkpoints are off, and the
writer makes them under that lock: before SQLite 3.51.3 a checkpoint that meets a write can damage the file.
"""

from __future__ import annotations

import logging
import os
import queue
import sqlite3
import stat
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from protolink._environment import current_environment
from protolink._text import visible
from protolink.durable.faults import is_busy, primary_code
from protolink.durable.lease import FileLock, RunLocks, check_side_file, forget_after_fork
from protolink.durable.operation import Operation, tell
from protolink.durable.schema import (
    VERSION,
    check_proof,
    check_tables,
    configure_reader,
    configure_writer,
    keep_proof,
    migrate,
    read_store_id,
    recognise,
    uses_wal,
    warn_of_copy,
)
from protolink.durable.signet import Signet
from protolink.errors import (
    StoreBusyError,
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    StoreReadOnlyError,
    StoreVersionError,
)

__all__ = ["Engine", "attach", "detach"]

_CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
_COMMIT_BYTES: Final = 16 * 1024
"""What a small commit adds to the write-ahead log: four pages."""

_FIRST_DELAY: Final = 0.001
_LAST_DELAY: Final = 0.016
"""Seconds between two looks at a lock that somebody else has."""

_SAFE_SQLITE: Final = (3, 51, 3)

_CLOSING_SECONDS: Final = 1.0
_THREADS: Final = 2

_SUSPECT: Final = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN}
)

_logger: Final = logging.getLogger("protolink")

_Inbox = queue.SimpleQueue["Operation[Any] | None"]
_Outcome = tuple[list[tuple[Operation[Any], Any]], list[tuple[Operation[Any], Exception]]]
"""What a batch gave, by operation, and why others of it were refused."""


class _Connection:
    """A connection, and the file that it leads to."""

    __slots__ = ("_identity", "_path", "open")

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self.open = connection
        self._path = path
        self._identity = _identity(path)

    def check(self) -> None:
        """Refuse to go on with a file that is no longer the one at its path: nobody else would see it."""
        if _identity(self._path) != self._identity:
            raise StoreDamagedError("the store's file was removed or replaced while it was in use")


class Engine:
    """The file, its two threads and their connections. Opened by the first operation, and again after a fault."""

    def __init__(self, path: str, *, read_only: bool, key: bytes | None) -> None:
        self.path = path
        self.read_only = read_only
        self.key = key
        self.process: int = os.getpid()
        self.users = 0
        """How many logs use it; the registry's lock guards this."""
        self.signet = Signet("", key)
        """That of the store as soon as an operation runs."""
        self._locks: RunLocks | None = None
        self._name = f"{visible(os.path.basename(path), limit=100)!r}"
        self._opening = threading.Lock()
        self._gate = threading.Lock()
        self._services = [("reader", self._read), ("writer", self._write)]
        """The threads that are still to be started, the last one first."""
        self._is_stopped = False
        self._is_suspect = False
        self._ended: list[Callable[[], None]] = []
        self._writes: _Inbox = queue.SimpleQueue()
        self._reads: _Inbox = queue.SimpleQueue()
        self._side: FileLock | None = None
        self._writer: _Connection | None = None
        self._reader: _Connection | None = None
        self._reader_is_transient = False
        self._unchecked_bytes = 0
        self._stopping = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._name}, used by {self.users}>"

    @property
    def locks(self) -> RunLocks:
        """The locks of its roots, for an operation that runs."""
        if self._locks is None:
            raise StoreError("the store is not open")
        return self._locks

    def write(self, operation: Operation[Any]) -> None:
        """Have it done in the next transaction that is committed."""
        if self.read_only:
            operation.fail(StoreReadOnlyError(f"{operation.undone}: the store was opened read-only"))
        else:
            self._put(self._writes, operation)

    def read(self, operation: Operation[Any]) -> None:
        """Have it done in a transaction that only reads."""
        self._put(self._reads, operation)

    def stop(self, ended: Callable[[], None]) -> int:
        """Finish what waits and close the file. Gives how many threads will call `ended` at their end."""
        with self._gate:
            self._is_stopped = True
            self._ended.append(ended)
            self._writes.put(None)
            self._reads.put(None)
            return _THREADS - len(self._services)

    def forget(self) -> None:
        """In a forked child: let go of the parent's lock, and leave its connections alone."""
        if self._side is not None:
            self._side.close()

    def _put(self, inbox: _Inbox, operation: Operation[Any]) -> None:
        with self._gate:
            if not self._is_stopped:
                try:
                    self._start_threads()
                except (RuntimeError, MemoryError):  # how an exhausted system refuses one
                    operation.fail(StoreError(f"{operation.undone}: no thread could be started"))
                else:
                    inbox.put(operation)
                return
        # Behind the end mark nobody would ever look at it.
        operation.fail(StoreClosedError(f"{operation.undone}: the store was closed"))

    def _start_threads(self) -> None:
        """Start the threads that do not run yet; one that could not be started is tried again by the next operation."""
        while self._services:
            name, serve = self._services[-1]
            threading.Thread(target=serve, name=f"protolink-log-{name}", daemon=True).start()
            self._services.pop()

    def _write(self) -> None:
        while not self._stopping:
            waiting = [self._writes.get()]
            while not self._writes.empty():  # nobody else takes anything out
                waiting.append(self._writes.get())
            batch = self._prepared(waiting)
            try:
                if batch:
                    self._commit(batch)
            except Exception as error:  # a mistake of ours; a dead thread would leave every later caller waiting
                _logger.exception("the writer of the durable store %s failed", self._name)
                self._drop_writer()
                for operation in batch:
                    operation.fail(error)
        self._close_writer()
        if self._side is not None:
            self._side.close()
        for ended in self._ended:
            ended()

    def _prepared(self, waiting: list[Operation[Any] | None]) -> list[Operation[Any]]:
        now = current_environment().monotonic()
        batch: list[Operation[Any]] = []
        for operation in waiting:
            if operation is None:
                self._stopping = True
            elif operation.start(now):
                batch.append(operation)
        return batch

    def _commit(self, batch: list[Operation[Any]]) -> None:
        """Do a batch in one transaction and, where that fails as a whole, each by itself."""
        try:
            writer = self._open_writer(max(operation.patience for operation in batch))
            side = self._begin(writer, batch)
        except Exception as error:
            self._drop_writer_after(error)
            for operation in batch:
                operation.fail(error)
            return
        if side is None:
            return
        try:
            outcome = self._together(writer.open, batch)
        finally:
            # Before anybody is told: who hears of it may stop this process, and nobody should wait for that.
            side.give_back()
        if outcome is not None:
            done, failed = outcome
            tell(done)
            for operation, why in failed:
                operation.fail(why)
        self._checkpoint_if_due()
        if outcome is None:
            for operation in batch:
                self._commit([operation])

    def _begin(self, writer: _Connection, batch: list[Operation[Any]]) -> FileLock | None:
        """Begin a transaction under the side lock.

        What comes meanwhile joins the batch; who has waited too long leaves it with an error. None when
        nobody is left.
        """
        side = self._side
        if side is None:
            raise StoreError("the store is not open")
        delay = _FIRST_DELAY
        while batch:
            if side.take():
                try:
                    writer.check()
                    writer.open.execute("BEGIN IMMEDIATE")
                except BaseException as error:
                    side.give_back()
                    if not is_busy(error):
                        raise
                else:
                    return side
            now = current_environment().monotonic()
            for operation in [each for each in batch if each.deadline <= now]:
                batch.remove(operation)
                why = f"somebody else held the store's write lock for {operation.patience:g} s"
                operation.fail(StoreBusyError(f"{operation.undone}: {why}"))
            if batch:
                left = min(operation.deadline for operation in batch) - now
                with suppress(queue.Empty):
                    batch += self._prepared([self._writes.get(timeout=min(delay, left))])
                delay = min(delay * 2, _LAST_DELAY)
        return None

    def _together(self, connection: sqlite3.Connection, batch: list[Operation[Any]]) -> _Outcome | None:
        """Commit a batch. Gives what its callers are told, or None if each has to be tried by itself."""
        done: list[tuple[Operation[Any], Any]] = []
        failed: list[tuple[Operation[Any], Exception]] = []
        several = len(batch) > 1
        try:
            for operation in batch:
                if operation.is_left:
                    continue
                changes = connection.total_changes
                try:
                    done.append((operation, operation.run(connection)))
                except Exception as error:
                    # What it has changed already can only be undone together with what the others have.
                    if not several or not connection.in_transaction or connection.total_changes != changes:
                        raise
                    self._is_suspect = self._is_suspect or _is_suspect(error)
                    failed.append((operation, error))
            connection.execute("COMMIT")
        except Exception as error:
            for operation, value in done:
                operation.undo(value)
            self._roll_back(connection)
            self._drop_writer_after(error)
            return None if several else ([], [(batch[0], error)])
        if self._is_suspect:
            self._drop_writer()
        self._unchecked_bytes += _COMMIT_BYTES + sum(operation.size for operation, _ in done)
        return done, failed

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            _logger.debug("the durable store %s is opened again: %s", self._name, error)
            self._drop_writer()

    def _drop_writer_after(self, error: Exception) -> None:
        if _is_suspect(error):
            self._drop_writer()

    def _drop_writer(self) -> None:
        writer, self._writer = self._writer, None
        self._is_suspect = False
        if writer is not None:
            with suppress(sqlite3.Error):
                writer.open.close()

    def _close_writer(self) -> None:
        """Close the connection under the side lock if it can be had, for whoever closes last makes a checkpoint."""
        writer, side = self._writer, self._side
        held = False
        try:
            if writer is not None and side is not None:
                held = _wait_for(side, _CLOSING_SECONDS)
            if writer is not None and held:
                writer.open.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except (sqlite3.Error, OSError, StoreError) as error:
            _logger.debug("the durable store %s was closed without a checkpoint: %s", self._name, error)
        self._drop_writer()
        if side is not None and held:
            side.give_back()

    def _checkpoint_if_due(self) -> None:
        if self._unchecked_bytes < _CHECKPOINT_BYTES or self._writer is None or self._side is None:
            return
        try:
            if not self._side.take():
                return  # somebody writes: after the next commit, then
            try:
                self._writer.open.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
                self._unchecked_bytes = 0
            finally:
                self._side.give_back()
        except (sqlite3.Error, StoreError, OSError) as error:
            # Nothing is lost: what was committed stays in the write-ahead log, and a later one tries again.
            self._unchecked_bytes = 0
            _logger.warning("the durable store %s made no checkpoint: %s", self._name, error)
            self._drop_writer_after(error)

    def _read(self) -> None:
        while operation := self._reads.get():
            if operation.start(current_environment().monotonic()):
                self._answer(operation)
        self._drop_reader()
        for ended in self._ended:
            ended()

    def _answer(self, operation: Operation[Any]) -> None:
        try:
            reader = self._open_reader(operation.patience)
            reader.check()
            reader.open.execute("BEGIN")
            try:
                value = operation.run(reader.open)
            finally:
                if reader.open.in_transaction:
                    reader.open.execute("ROLLBACK")
        except Exception as error:
            if _is_suspect(error):
                self._drop_reader()
            operation.fail(error)
        else:
            tell([(operation, value)])
        if self._reader_is_transient:
            self._drop_reader()

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with suppress(sqlite3.Error):
                reader.open.close()

    def _open_writer(self, patience: float) -> _Connection:
        if self._writer is None:
            with self._opening:
                if self._writer is None:
                    self._writer = self._open(patience)
        return self._writer

    def _open_reader(self, patience: float) -> _Connection:
        if self._reader is None:
            if self.read_only:
                self._reader = self._open_read_only(patience)
            else:
                self._reader = self._open_current(patience) or self._open_made(patience)
        return self._reader

    def _open_current(self, patience: float) -> _Connection | None:
        """A connection to a file that is as it should be; no lock of a writer, dead or stopped, is in its way."""
        if _identity(self.path) is None:
            return None
        try:
            self._check_file()
            connection = self._connect("ro", patience)
            with _closed_on_error(connection):
                if recognise(connection) < VERSION or not uses_wal(connection):
                    connection.close()
                    return None
                return self._checked(connection)
        except (sqlite3.Error, StoreError, OSError):
            return None  # the other way says what is wrong with it, or mends it

    def _open_made(self, patience: float) -> _Connection:
        """A connection to a file that the writer has made or brought up to date."""
        self._open_writer(patience)
        connection = self._connect("ro", patience)
        with _closed_on_error(connection):
            return self._checked(connection)

    def _open(self, patience: float) -> _Connection:
        """Make the file or bring it up to date, while nobody else opens or writes it."""
        side = FileLock(f"{self.path}.open.lock", self._owners())
        try:
            if not _wait_for(side, patience):
                raise StoreBusyError(f"somebody else opened or wrote the store for {patience:g} s; it was not opened")
            self._make_file()
            connection = self._connect("rw", patience)
            with _closed_on_error(connection):
                version = recognise(connection)
                if version == 0:
                    # A commit writes whole pages, and few of its bytes are new: half the usual page is half of what
                    # a step writes.
                    connection.execute("PRAGMA page_size = 2048")
                migrate(connection, version)
                configure_writer(connection)
                check_tables(connection)
                keep_proof(connection, Signet(read_store_id(connection), self.key))
                self._know(connection)
                # SQLite syncs the folder for a new write-ahead log, and says nothing where that fails.
                _sync_folder(self.path)
                # From here on the writer waits by itself, so that it can see what else comes meanwhile.
                connection.execute("PRAGMA busy_timeout = 0")
                opened = _Connection(connection, self.path)
        except BaseException:
            side.close()
            raise
        side.give_back()
        if self._side is not None:
            self._side.close()
        self._side = side
        return opened

    def _owners(self) -> frozenset[int]:
        """Whose the files beside the store may be."""
        owners = {os.geteuid()}
        with suppress(FileNotFoundError):
            owners.add(os.stat(self.path).st_uid)
        return frozenset(owners)

    def _make_file(self) -> None:
        with suppress(FileExistsError):
            # Made before SQLite makes it, so that it never has another mode; the files that SQLite puts
            # beside it take over the mode of this one. An existing file is not opened here: closing a
            # descriptor of it would end the locks that this process has on it.
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            os.fchmod(descriptor, 0o600)
            os.close(descriptor)
        self._check_file()

    def _check_file(self) -> None:
        found = os.lstat(self.path)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            raise StoreDamagedError(f"{self._name} is no plain file, or has a second name; it was not opened")
        for suffix in ("-wal", "-shm", "-journal"):
            check_side_file(self.path + suffix)
        folder = os.stat(os.path.dirname(self.path))
        if found.st_mode & 0o022:
            _logger.warning("the durable store %s can be written by other users", self._name)
        if folder.st_mode & 0o022 and not folder.st_mode & stat.S_ISVTX:
            _logger.warning("the folder of the durable store %s can be written by other users", self._name)

    def _connect(self, mode: str, patience: float) -> sqlite3.Connection:
        # Made in one thread and now and then closed in another, never used by two at a time.
        return sqlite3.connect(
            f"{Path(self.path).as_uri()}?mode={mode}",
            timeout=patience,
            isolation_level=None,
            check_same_thread=False,
            uri=True,
        )

    def _know(self, connection: sqlite3.Connection) -> None:
        global _told_of_old_sqlite
        store_id = read_store_id(connection)
        signet = Signet(store_id, self.key)
        check_proof(connection, signet)
        if store_id == self.signet.store_id:
            return
        self.signet = signet
        self._locks = RunLocks(f"{self.path}.lock", self._owners(), store_id)
        warn_of_copy(connection, self._name)
        if sqlite3.sqlite_version_info < _SAFE_SQLITE and not _told_of_old_sqlite:
            _told_of_old_sqlite = True
            _logger.info(
                "SQLite %s is older than 3.51.3; open the durable store with nothing else while it is in use",
                sqlite3.sqlite_version,
            )

    def _open_read_only(self, patience: float) -> _Connection:
        try:
            self._check_file()
        except FileNotFoundError:
            raise StoreReadOnlyError(f"there is no {self._name}, and none is made for reading only") from None
        connection = self._connect("ro", patience)
        try:
            return self._checked_read_only(connection)
        except sqlite3.OperationalError as error:
            # The files beside it cannot be made where the folder is read-only. Without a write-ahead log
            # nobody has the store open, and what is in the file is all there is.
            if primary_code(error) not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or _has_log(self.path):
                raise
        self._reader_is_transient = True
        return self._checked_read_only(self._connect("ro&immutable=1", patience))

    def _checked_read_only(self, connection: sqlite3.Connection) -> _Connection:
        with _closed_on_error(connection):
            version = recognise(connection)
            if version == 0:
                raise StoreDamagedError(f"{self._name} is empty; it was opened read-only and stays so")
            if version < VERSION:
                raise StoreVersionError(
                    f"{self._name} has version {version}; open it once for writing, which takes it to {VERSION}"
                )
            return self._checked(connection)

    def _checked(self, connection: sqlite3.Connection) -> _Connection:
        configure_reader(connection)
        check_tables(connection)
        self._know(connection)
        return _Connection(connection, self.path)


_told_of_old_sqlite = False

_registry: dict[tuple[str, bool, bytes | None], Engine] = {}
# Reentrant, because a log that nobody closed is detached by the garbage collector, wherever that strikes.
_registry_lock = threading.RLock()
_fork_is_watched = False
_inherited: list[Engine] = []
"""A parent's engines in a forked child: kept, because closing their connections is the parent's."""


def attach(path: str, *, read_only: bool, key: bytes | None) -> Engine:
    """The engine of a file, shared by every log of this process that uses the file in the same way."""
    global _fork_is_watched
    real = os.path.realpath(path)
    with _registry_lock:
        if not _fork_is_watched and hasattr(os, "register_at_fork"):
            _fork_is_watched = True
            os.register_at_fork(after_in_child=_after_fork)
        engine = _registry.get((real, read_only, key))
        if engine is None:
            engine = _registry[real, read_only, key] = Engine(real, read_only=read_only, key=key)
        engine.users += 1
        return engine


def detach(engine: Engine, ended: Callable[[], None]) -> int:
    """Use an engine no more. Gives how many threads will call `ended`: none while others use it."""
    if engine.process != os.getpid():
        return 0
    with _registry_lock:
        engine.users -= 1
        if engine.users:
            return 0
        del _registry[engine.path, engine.read_only, engine.key]
    return engine.stop(ended)


def _after_fork() -> None:
    global _registry_lock
    _registry_lock = threading.RLock()
    forget_after_fork()
    for engine in _registry.values():
        engine.forget()
        _inherited.append(engine)
    _registry.clear()


def _wait_for(side: FileLock, patience: float) -> bool:
    environment = current_environment()
    deadline = environment.monotonic() + patience
    delay = _FIRST_DELAY
    pause = threading.Event()
    while not side.take():
        if environment.monotonic() >= deadline:
            return False
        pause.wait(delay)
        delay = min(delay * 2, _LAST_DELAY)
    return True


def _is_suspect(error: Exception) -> bool:
    """Whether a connection is opened again, instead of being trusted, after an error."""
    return primary_code(error) in _SUSPECT or isinstance(error, StoreDamagedError | MemoryError)


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Generator[None]:
    try:
        yield
    except BaseException:
        connection.close()
        raise


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _has_log(path: str) -> bool:
    try:
        return os.stat(f"{path}-wal").st_size > 0
    except FileNotFoundError:
        return False


def _sync_folder(path: str) -> None:
    """Make the names of new files outlive a power loss."""
    descriptor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
