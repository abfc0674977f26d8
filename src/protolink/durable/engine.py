"""One SQLite file as this process has it open: a thread that writes and a thread that reads.

Whatever waits for the writer is committed together, each operation behind a savepoint of its own, so that one
that is refused undoes none of the others. Nothing of SQLite ever runs on an event loop.

Every writer of every process holds a side lock around its transaction. Automatic checkpoints are off, and the
writer makes them under that lock: before SQLite 3.51.3 a checkpoint that meets a write can damage the file.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from protolink._environment import current_environment
from protolink._text import visible
from protolink.durable.faults import is_busy, primary_code, translated
from protolink.durable.lease import FileLock, RunLocks, check_side_file, forget_after_fork
from protolink.durable.schema import check_tables, configure, migrate, read_store_id, recognise, warn_of_copy
from protolink.errors import StoreBusyError, StoreDamagedError, StoreError, StoreReadOnlyError

__all__ = ["Engine", "Operation", "attach", "detach"]

T = TypeVar("T")

_CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
_COMMIT_BYTES: Final = 16 * 1024
"""What a small commit adds to the write-ahead log: four pages."""

_FIRST_DELAY: Final = 0.001
_LAST_DELAY: Final = 0.016
"""Seconds between two looks at a lock that somebody else has."""

_SAFE_SQLITE: Final = (3, 51, 3)

_SUSPECT: Final = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_CANTOPEN}
)
"""After these a connection is opened again instead of being trusted."""

_logger: Final = logging.getLogger("protolink")


class Operation(Generic[T]):
    """Something to do with the file, for one awaiting caller or, without a loop, for nobody."""

    __slots__ = ("_loop", "_prepare", "_undo", "_work", "deadline", "future", "patience", "size", "undone")

    def __init__(
        self,
        undone: str,
        work: Callable[[sqlite3.Connection], T],
        *,
        patience: float,
        prepare: Callable[[], int] | None = None,
        undo: Callable[[T], object] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.undone = undone
        """What an error says that was not done."""
        self.patience = patience
        self.deadline = 0.0
        self.size = 0
        self._work = work
        self._prepare = prepare
        self._undo = undo
        self._loop = loop
        self.future: asyncio.Future[T] | None = None if loop is None else loop.create_future()

    def start(self, now: float) -> bool:
        """Do what needs no transaction. False for one that nobody waits for any more, or that was refused."""
        if self.future is not None and self.future.cancelled():
            return False
        self.deadline = now + self.patience
        if self._prepare is not None:
            try:
                self.size = self._prepare()
            except Exception as error:
                self.fail(error)
                return False
        return True

    def run(self, connection: sqlite3.Connection) -> T:
        """Do it, inside a transaction."""
        return self._work(connection)

    def undo(self, value: T) -> None:
        """What it gave is of no use: the commit failed, or nobody waits."""
        if self._undo is not None:
            self._undo(value)

    def succeed(self, value: T) -> None:
        """Tell the caller, from any thread."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._settle, value)
        except RuntimeError:  # the loop is closed: nobody waits any more
            self.undo(value)

    def fail(self, error: BaseException) -> None:
        """Tell the caller why it was not done, from any thread."""
        told = translated(error, self.undone)
        if self._loop is None:
            _logger.debug("%s", told)
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._refuse, told)

    def _settle(self, value: T) -> None:
        if self.future is None or self.future.done():
            self.undo(value)
        else:
            self.future.set_result(value)

    def _refuse(self, error: BaseException) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    async def result(self) -> T:
        """What it gave, once it is committed."""
        future = self.future
        if future is None:
            raise RuntimeError("nobody can wait for an operation without a loop")
        try:
            return await future
        except asyncio.CancelledError:
            # Canceled after it was told, before it went on: the value would be lost.
            if future.done() and not future.cancelled() and future.exception() is None:
                self.undo(future.result())
            raise


_Inbox = queue.SimpleQueue["Operation[Any] | None"]


class Engine:
    """The file, its two threads and their connections. Opened by the first operation, and again after a fault."""

    def __init__(self, path: str, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.process = os.getpid()
        self.users = 0
        """How many logs use it; the registry's lock guards this."""
        self.store_id = ""
        self.locks: RunLocks | None = None
        self._name = f"{visible(os.path.basename(path), limit=100)!r}"
        self._opening = threading.Lock()
        self._starting = threading.Lock()
        self._writes: _Inbox = queue.SimpleQueue()
        self._reads: _Inbox = queue.SimpleQueue()
        self._threads: dict[str, threading.Thread] = {}
        self._identity: tuple[int, int] | None = None
        self._side: FileLock | None = None
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._unchecked_bytes = 0
        self._stopping = False

    def write(self, operation: Operation[Any]) -> None:
        """Have it done in the next transaction that is committed."""
        self._start("protolink-log-writer", self._write)
        self._writes.put(operation)

    def read(self, operation: Operation[Any]) -> None:
        """Have it done in a transaction that only reads."""
        self._start("protolink-log-reader", self._read)
        self._reads.put(operation)

    def stop(self, ended: Callable[[], None]) -> None:
        """Finish what waits, close the file and call `ended` once for each thread that is still there."""
        with self._starting:
            threads = list(self._threads)
            self._ended = ended
        if "protolink-log-reader" in threads:
            self._reads.put(None)
        if "protolink-log-writer" in threads:
            self._writes.put(None)

    @property
    def thread_count(self) -> int:
        """How many threads were started."""
        return len(self._threads)

    def forget(self) -> None:
        """In a forked child: let go of what belongs to the parent, without closing its connections."""
        if self._side is not None:
            self._side.close()

    def _start(self, name: str, serve: Callable[[], None]) -> None:
        if name in self._threads:
            return
        with self._starting:
            if name not in self._threads:
                thread = threading.Thread(target=serve, name=name, daemon=True)
                thread.start()
                self._threads[name] = thread

    def _write(self) -> None:
        while not self._stopping:
            waiting = [self._writes.get()]
            with suppress(queue.Empty):
                while True:
                    waiting.append(self._writes.get_nowait())
            batch = self._started(waiting)
            if batch:
                self._commit(batch)
        self._close_writer(checkpoint=True)
        if self._side is not None:
            self._side.close()
        self._ended()

    def _started(self, waiting: list[Operation[Any] | None]) -> list[Operation[Any]]:
        now = current_environment().monotonic()
        batch: list[Operation[Any]] = []
        for operation in waiting:
            if operation is None:
                self._stopping = True
            elif operation.start(now):
                batch.append(operation)
        return batch

    def _commit(self, batch: list[Operation[Any]]) -> None:
        try:
            connection = self._open_writer(max(operation.patience for operation in batch))
            if not self._begin(connection, batch):
                return
        except Exception as error:
            self._close_if_suspect(error)
            for operation in batch:
                operation.fail(error)
            return
        try:
            self._transact(connection, batch)
            self._checkpoint_if_due()
        finally:
            self._give_back()

    def _begin(self, connection: sqlite3.Connection, batch: list[Operation[Any]]) -> bool:
        """Begin a transaction. What comes meanwhile joins the batch; who waited too long leaves it with an error."""
        delay = _FIRST_DELAY
        while batch:
            if self._take_side_lock():
                try:
                    self._check_identity()
                    connection.execute("BEGIN IMMEDIATE")
                except sqlite3.Error as error:
                    self._give_back()
                    if not is_busy(error):
                        raise
                except BaseException:
                    self._give_back()
                    raise
                else:
                    return True
            now = current_environment().monotonic()
            for operation in [each for each in batch if each.deadline <= now]:
                batch.remove(operation)
                operation.fail(
                    StoreBusyError(
                        f"{operation.undone}: somebody else held the store's write lock for {operation.patience} s"
                    )
                )
            if batch:
                left = min(operation.deadline for operation in batch) - now
                with suppress(queue.Empty):
                    batch += self._started([self._writes.get(timeout=min(delay, left))])
                delay = min(delay * 2, _LAST_DELAY)
        return False

    def _transact(self, connection: sqlite3.Connection, batch: list[Operation[Any]]) -> None:
        """Do a batch in the transaction that was begun and, where that fails as a whole, each by itself."""
        if self._together(connection, batch, last=len(batch) == 1):
            return
        for operation in batch:
            try:
                connection = self._open_writer(operation.patience)
                connection.execute("BEGIN IMMEDIATE")
            except Exception as error:
                self._close_if_suspect(error)
                operation.fail(error)
            else:
                self._together(connection, [operation], last=True)

    def _together(self, connection: sqlite3.Connection, batch: list[Operation[Any]], *, last: bool) -> bool:
        """Commit a batch and tell its callers. False when nobody was told, because the transaction was lost."""
        done: list[tuple[Operation[Any], Any]] = []
        refused: list[tuple[Operation[Any], BaseException]] = []
        several = len(batch) > 1
        try:
            for operation in batch:
                if several:
                    connection.execute("SAVEPOINT operation")
                try:
                    done.append((operation, operation.run(connection)))
                except Exception as error:
                    if not several or not connection.in_transaction:
                        raise
                    connection.execute("ROLLBACK TO operation")
                    refused.append((operation, error))
                if several:
                    connection.execute("RELEASE operation")
            connection.execute("COMMIT")
        except Exception as error:
            for operation, value in done:
                operation.undo(value)
            self._roll_back(connection)
            self._close_if_suspect(error)
            if last:
                for operation in batch:
                    operation.fail(error)
            return last
        self._unchecked_bytes += _COMMIT_BYTES + sum(operation.size for operation, _ in done)
        for operation, value in done:
            operation.succeed(value)
        for operation, error in refused:
            operation.fail(error)
            self._close_if_suspect(error)
        return True

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._close_writer(checkpoint=False)

    def _close_if_suspect(self, error: BaseException) -> None:
        if primary_code(error) in _SUSPECT or isinstance(error, StoreDamagedError | MemoryError):
            self._close_writer(checkpoint=False)

    def _close_writer(self, *, checkpoint: bool) -> None:
        """Close the connection, under the side lock if it can be had: the last one to close makes a checkpoint."""
        connection, self._writer = self._writer, None
        if connection is None:
            return
        if not checkpoint:
            with suppress(sqlite3.Error):
                connection.close()
            return
        held = False
        try:
            held = self._wait_for_side_lock(1.0)
            if held:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except Exception as error:
            _logger.debug("the durable store %s was closed without a checkpoint: %s", self._name, error)
        with suppress(sqlite3.Error):
            connection.close()
        if held:
            self._give_back()

    def _checkpoint_if_due(self) -> None:
        if self._unchecked_bytes < _CHECKPOINT_BYTES or self._writer is None:
            return
        self._unchecked_bytes = 0
        try:
            self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            # Nothing is lost: what was committed stays in the write-ahead log, and the next one tries again.
            _logger.warning("the durable store %s made no checkpoint: %s", self._name, error)
            self._close_if_suspect(error)

    def _take_side_lock(self) -> bool:
        if self._side is None:
            raise StoreError("the store is not open")
        return self._side.take()

    def _wait_for_side_lock(self, patience: float) -> bool:
        environment = current_environment()
        deadline = environment.monotonic() + patience
        pause = threading.Event()
        delay = _FIRST_DELAY
        while not self._take_side_lock():
            if environment.monotonic() >= deadline:
                return False
            pause.wait(delay)
            delay = min(delay * 2, _LAST_DELAY)
        return True

    def _give_back(self) -> None:
        if self._side is not None:
            self._side.give_back()

    def _read(self) -> None:
        while True:
            operation = self._reads.get()
            if operation is None:
                break
            if operation.start(current_environment().monotonic()):
                self._answer(operation)
        self._close_reader()
        self._ended()

    def _answer(self, operation: Operation[Any]) -> None:
        try:
            connection = self._open_reader(operation.patience)
            self._check_identity()
            connection.execute("BEGIN")
            try:
                value = operation.run(connection)
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except Exception as error:
            if primary_code(error) in _SUSPECT or isinstance(error, StoreDamagedError | MemoryError):
                self._close_reader()
            operation.fail(error)
        else:
            operation.succeed(value)
            if self.read_only and self._identity is None:
                self._close_reader()

    def _close_reader(self) -> None:
        connection, self._reader = self._reader, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _check_identity(self) -> None:
        """Refuse to go on with a file that is no longer the one at its path: nobody else would see it."""
        if self._identity is None:
            return
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            there = None
        else:
            there = (found.st_dev, found.st_ino)
        if there != self._identity:
            raise StoreDamagedError(f"the durable store {self._name} was removed or replaced while it was in use")

    def _open_writer(self, patience: float) -> sqlite3.Connection:
        if self.read_only:
            raise StoreReadOnlyError("the store was opened read-only")
        if self._writer is None:
            with self._opening:
                self._writer = self._open(patience)
        return self._writer

    def _open_reader(self, patience: float) -> sqlite3.Connection:
        if self._reader is None:
            if self.read_only:
                self._reader = self._open_read_only(patience)
            else:
                with self._opening:
                    if self._identity is None or not self._is_there():
                        # The writer's, if it has none yet, would do the same: make the file and its tables.
                        self._open(patience).close()
                    connection = self._connect("ro", patience)
                    try:
                        configure(connection, reader=True)
                    except BaseException:
                        connection.close()
                        raise
                    self._reader = connection
        return self._reader

    def _is_there(self) -> bool:
        try:
            self._check_identity()
        except StoreDamagedError:
            return False
        return True
