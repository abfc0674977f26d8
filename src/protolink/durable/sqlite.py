"""A record log in a SQLite file."""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import platform
import sqlite3
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

from protolink._environment import current_environment, iso
from protolink._text import visible
from protolink.durable.engine import Engine, attach, detach
from protolink.durable.lease import HeldRun
from protolink.durable.operation import Operation
from protolink.durable.port import Lease, Row, RunInfo, RunStatus
from protolink.durable.records import chained, delete_records, first_checksum, insert_records, read_records
from protolink.durable.rows import (
    PreparedRow,
    check_info,
    check_limit,
    check_name,
    check_status,
    prepare,
    prepare_summary,
    shown,
)
from protolink.durable.runs import StoredRun, insert_run, latest_runs, run_by_id, run_by_root, update_run
from protolink.durable.signet import check_key
from protolink.errors import (
    DurableExecutionError,
    LostRunError,
    RunBusyError,
    RunExistsError,
    StoreBusyError,
    StoreClosedError,
    UnknownRunError,
)

__all__ = ["SQLiteRecordLog"]

T = TypeVar("T")

_FOREVER: Final = 86_400.0
_LOSER_SECONDS: Final = 0.5
"""How long a store that is locked is waited for to learn who drives a root that is driven anyway."""

_UNNAMED: Final = "the owner of a released root is still named"

_logger: Final = logging.getLogger("protolink")


class SQLiteRecordLog:
    """Rows in one SQLite file, for any number of threads, event loops and processes of one machine.

    Nothing is opened before the first call. All logs of one file in a process share a thread that writes,
    which commits together whatever waits, and a thread that reads. The lease of a root is a lock of the
    kernel's on the file `<path>.lock`; `<path>.open.lock` is held while the file is opened or written.
    Neither is ever removed. The folder has to exist, and has to be on a local disk.

    With an `integrity_key` rows are sealed by HMAC-SHA256, so that nobody who can write the file can make one
    without the key. A file is written with one key from its first root on: with another, with none, or with a
    key where there was none, `StoreKeyError` is raised and nothing is used. An older copy of the whole file is
    sealed as well; to notice one, keep `RunInfo.records` somewhere else.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        busy_timeout: float = 5.0,
        read_only: bool = False,
        integrity_key: bytes | None = None,
    ) -> None:
        name = os.fspath(path)
        if not isinstance(name, str) or not name or "\0" in name or name == ":memory:":
            raise ValueError("a durable store needs the path of a file")
        if not 0 <= busy_timeout <= _FOREVER:
            raise ValueError(f"busy_timeout is a number of seconds from 0 to {_FOREVER:g}")
        self.path: str = os.path.abspath(name)
        self.busy_timeout: float = float(busy_timeout)
        self.read_only = read_only
        self._key = check_key(integrity_key)
        self._lock = threading.Lock()
        self._closed = False
        self._engine: Engine | None = None
        self._finalizer: weakref.finalize[Any, SQLiteRecordLog] | None = None
        self._held: set[HeldRun] = set()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "read-only" if self.read_only else "open"
        return f"<{type(self).__name__} {visible(self.path, limit=300)!r}, {state}>"

    async def create(self, root_id: str, info: RunInfo) -> Lease:
        """Reserve a new root and take its lease. Raises `RunExistsError` for an id that is taken."""
        summary = check_info(root_id, info)
        undone = f"root {shown(root_id)} was not created"
        engine = self._attached(undone)
        run = StoredRun(
            id=0,
            root_id=root_id,
            agent_name=info.agent_name,
            principal=info.principal,
            session_id=info.session_id,
            status=info.status,
            attempts=1,
            records=0,
            fence=1,
            owner=self._owner_name(),
            owner_since=current_environment().now(),
            created_at=float(info.created_at),
            updated_at=float(info.updated_at),
            summary=summary,
            checksum=b"",
        )

        def work(connection: sqlite3.Connection) -> HeldRun:
            signet = engine.signet
            if connection.execute("SELECT 1 FROM runs WHERE root_id = ?", (root_id,)).fetchone() is not None:
                raise RunExistsError(f"root {shown(root_id)} exists already")
            run.checksum = first_checksum(root_id, signet)
            insert_run(connection, run, signet)
            # Nobody else knows the number before the commit, so the lock is there when the root is seen.
            return _taken(engine, run)

        held = await self._write(engine, undone, work, undo=HeldRun.drop)
        self._keep(held, undone)
        return Lease(root_id=root_id, fence=held.fence, attempt=1, handle=held)

    async def acquire(self, root_id: str) -> tuple[Lease, builtins.list[Row]]:
        """Take the lease of a root and read its list.

        The lock and the fence are taken in one transaction, so that a busy root names the owner that has it
        now. The list is read behind that commit, without keeping writers of other roots waiting: nobody else
        can append to it any more.

        Raises `UnknownRunError`, `RunBusyError` and `StoreDamagedError`.
        """
        check_name(root_id, "a root's id")
        undone = f"root {shown(root_id)} was not acquired"
        engine = self._attached(undone)
        owner, since = self._owner_name(), current_environment().now()

        def look(connection: sqlite3.Connection) -> tuple[StoredRun, bool]:
            run = _known(run_by_root(connection, root_id, engine.signet), root_id)
            return run, _is_driven(engine, run)

        def take(connection: sqlite3.Connection) -> tuple[HeldRun, int]:
            signet = engine.signet
            run = _known(run_by_root(connection, root_id, signet), root_id)
            held = _taken(engine, run)
            try:
                fence = run.fence
                run.fence = held.fence = fence + 1
                run.attempts += 1
                run.owner, run.owner_since = owner, since
                update_run(connection, run, signet, fence=fence, records=run.records)
            except BaseException:
                held.drop()
                raise
            return held, run.attempts

        def read(connection: sqlite3.Connection) -> builtins.list[Row]:
            run = run_by_id(connection, held.run, engine.signet)
            if run is None or run.fence != held.fence:
                raise LostRunError(f"{undone}: somebody else took it over")
            return read_records(connection, run, 0, engine.signet)

        known, is_driven = await self._read(engine, undone, look)
        try:
            # Only the transaction knows who has a driven root now, rather than who had it before; but a
            # loser does not wait long for that.
            patience = min(self.busy_timeout, _LOSER_SECONDS) if is_driven else self.busy_timeout
            held, attempt = await self._write(engine, undone, take, undo=_drop_first, patience=patience)
        except StoreBusyError:
            if is_driven:
                raise _busy(root_id, known.owner, known.owner_since) from None
            raise
        self._keep(held, undone)
        try:
            rows = await self._read(engine, undone, read)
        except BaseException:
            self._give_back(engine, held)
            raise
        return Lease(root_id=root_id, fence=held.fence, attempt=attempt, handle=held), rows

    async def append(
        self,
        lease: Lease,
        expected: int,
        rows: Sequence[Row],
        *,
        status: RunStatus,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Store rows as numbers `expected + 1` and on, synced, or nothing of them. Raises `LostRunError`."""
        undone = f"{len(rows)} records of root {shown(lease.root_id)} were not stored"
        check_status(status)
        engine = self._attached(undone)
        now = current_environment().now()
        prepared: builtins.list[PreparedRow] = []
        text = None if summary is None else prepare_summary(summary, undone)

        def check() -> int:
            prepared[:], size = prepare(expected, rows, undone)
            return size

        def work(connection: sqlite3.Connection) -> tuple[HeldRun, StoredRun]:
            held = lease.handle
            signet = engine.signet
            if not isinstance(held, HeldRun) or not held.is_held or held.store != signet.store_id:
                raise LostRunError(f"{undone}: the lease was given back or is another store's")
            known: StoredRun = held.known
            if known.root_id != lease.root_id or known.fence != lease.fence:
                raise LostRunError(f"{undone}: somebody else took the run over")
            if known.records != expected:
                raise LostRunError(f"{undone}: {known.records} records are there, and {expected} were expected")
            checksums = chained(known.checksum, prepared, signet)
            run = known.extended(checksums, status, now, text)
            # What is known is not looked up again: where it is not so, nothing is updated.
            if not update_run(connection, run, signet, fence=lease.fence, records=expected):
                raise LostRunError(f"{undone}: somebody else took the run over")
            insert_records(connection, run, prepared, checksums)
            return held, run

        await self._write(engine, undone, work, prepare=check, commit=_know)

    async def release(self, lease: Lease) -> None:
        """Give the lease back. Harmless when it is gone already; the store is not waited for."""
        held = lease.handle
        engine = self._engine
        if not isinstance(held, HeldRun) or not held.is_held:
            return
        if engine is None or self._closed:
            held.drop()
        elif engine.locks.can_be_seen:
            self._give_back(engine, held)
        else:  # the name is all that others see of the owner, so it goes first
            try:
                await self._write(engine, _UNNAMED, self._unname(engine, held))
            except DurableExecutionError as error:
                _logger.debug("%s", error)
            finally:
                self._give_back(engine, held)

    async def read(self, root_id: str, after: int = 0) -> builtins.list[Row]:
        """The rows behind a number, verified. Raises `UnknownRunError` and `StoreDamagedError`."""
        check_name(root_id, "a root's id")
        if not isinstance(after, int) or after < 0:
            raise ValueError("the number to read after is a whole number from 0")
        undone = f"root {shown(root_id)} was not read"
        engine = self._attached(undone)

        def work(connection: sqlite3.Connection) -> builtins.list[Row]:
            run = _known(run_by_root(connection, root_id, engine.signet), root_id)
            return read_records(connection, run, after, engine.signet)

        return await self._read(engine, undone, work)

    async def get(self, root_id: str) -> RunInfo | None:
        """What is known of a root, or None. Raises `StoreDamagedError`."""
        check_name(root_id, "a root's id")
        undone = f"root {shown(root_id)} was not read"
        engine = self._attached(undone)

        def work(connection: sqlite3.Connection) -> RunInfo | None:
            run = run_by_root(connection, root_id, engine.signet)
            return None if run is None else run.info(_is_driven(engine, run))

        return await self._read(engine, undone, work)

    async def list(
        self, *, status: str | None = None, agent_name: str | None = None, principal: str | None = None, limit: int = 20
    ) -> builtins.list[RunInfo]:
        """Roots, the one that was created last first. One that was damaged is logged and left out."""
        check_limit(limit)
        undone = "the roots were not listed"
        engine = self._attached(undone)

        def work(connection: sqlite3.Connection) -> builtins.list[RunInfo]:
            runs, damaged = latest_runs(
                connection, engine.signet, status=status, agent_name=agent_name, principal=principal, limit=limit
            )
            for error in damaged:
                _logger.error("%s", error)
            return [run.info(_is_driven(engine, run)) for run in runs]

        return await self._read(engine, undone, work)

    async def delete(self, root_id: str) -> bool:
        """Delete a root that nobody drives, with the bodies that nothing else refers to. False where there is none.

        A damaged root can be deleted. Raises `RunBusyError`.
        """
        check_name(root_id, "a root's id")
        undone = f"root {shown(root_id)} was not deleted"
        engine = self._attached(undone)

        def work(connection: sqlite3.Connection) -> HeldRun | None:
            found = connection.execute(
                "SELECT id, owner, owner_since FROM runs WHERE root_id = ?", (root_id,)
            ).fetchone()
            if found is None:
                return None
            number, owner, since = found
            held = engine.locks.take(number)
            if held is None:
                raise _busy(root_id, owner, since)
            try:
                delete_records(connection, number)
                connection.execute("DELETE FROM runs WHERE id = ?", (number,))
            except BaseException:
                held.drop()
                raise
            return held

        held = await self._write(engine, undone, work, undo=_drop)
        _drop(held)
        return held is not None

    async def close(self) -> None:
        """Finish what was asked, release every lease and close the store."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            engine, finalizer = self._engine, self._finalizer
        if engine is None or finalizer is None or finalizer.detach() is None:
            return
        with self._lock:
            driven = builtins.list(self._held)
        for held in driven:
            self._give_back(engine, held)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        ended: builtins.list[None] = []

        def end() -> None:
            ended.append(None)
            if len(ended) >= threads:
                done.set()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(end)

        threads = detach(engine, tell)
        if threads:
            await done.wait()

    def _attached(self, undone: str) -> Engine:
        with self._lock:
            if self._closed:
                raise StoreClosedError(f"{undone}: the store was closed")
            engine = self._engine
            if engine is None or engine.process != os.getpid():
                engine = self._engine = attach(self.path, read_only=self.read_only, key=self._key)
                self._finalizer = weakref.finalize(self, detach, engine, _nobody_waits)
            return engine

    async def _write(
        self,
        engine: Engine,
        undone: str,
        work: Callable[[sqlite3.Connection], T],
        *,
        prepare: Callable[[], int] | None = None,
        commit: Callable[[T], object] | None = None,
        undo: Callable[[T], object] | None = None,
        patience: float | None = None,
    ) -> T:
        operation = Operation(
            undone,
            work,
            patience=self.busy_timeout if patience is None else patience,
            prepare=prepare,
            commit=commit,
            undo=undo,
            loop=asyncio.get_running_loop(),
        )
        engine.write(operation)
        return await operation.result()

    async def _read(self, engine: Engine, undone: str, work: Callable[[sqlite3.Connection], T]) -> T:
        operation = Operation(undone, work, patience=self.busy_timeout, loop=asyncio.get_running_loop())
        engine.read(operation)
        return await operation.result()

    def _keep(self, held: HeldRun, undone: str) -> None:
        with self._lock:
            if not self._closed:
                self._held.add(held)
                return
        held.drop()
        raise StoreClosedError(f"{undone}: the store was closed")

    def _give_back(self, engine: Engine, held: HeldRun) -> None:
        """Drop the lock now, and have the owner's name removed when the store comes to it."""
        held.drop()
        with self._lock:
            self._held.discard(held)
        engine.write(Operation(_UNNAMED, self._unname(engine, held), patience=self.busy_timeout))

    def _unname(self, engine: Engine, held: HeldRun) -> Callable[[sqlite3.Connection], None]:
        """Remove the owner's name, which is for people only, unless somebody else owns the root meanwhile."""

        def work(connection: sqlite3.Connection) -> None:
            signet = engine.signet
            run = run_by_id(connection, held.run, signet)
            if run is not None and run.fence == held.fence and held.store == signet.store_id and run.owner is not None:
                run.owner = run.owner_since = None
                update_run(connection, run, signet, fence=held.fence, records=run.records)

        return work

    def _owner_name(self) -> str:
        return visible(f"{platform.node() or 'localhost'} {os.getpid()}", limit=200)


def _taken(engine: Engine, run: StoredRun) -> HeldRun:
    held = engine.locks.take(run.id)
    if held is None:
        raise _busy(run.root_id, run.owner, run.owner_since)
    held.fence = run.fence
    held.known = run
    return held


def _know(appended: tuple[HeldRun, StoredRun]) -> None:
    held, run = appended
    held.known = run


def _busy(root_id: str, owner: str | None, owner_since: float | None) -> RunBusyError:
    since = None if owner_since is None else iso(owner_since)
    by = owner or "somebody"
    return RunBusyError(
        f"root {shown(root_id)} is driven by {by}" + (f" since {since}" if since else ""), owner=owner, since=since
    )


def _known(run: StoredRun | None, root_id: str) -> StoredRun:
    if run is None:
        raise UnknownRunError(f"there is no root {shown(root_id)}")
    return run


def _is_driven(engine: Engine, run: StoredRun) -> bool:
    """Whether somebody has the root's lock; where that cannot be told, whether it names an owner."""
    if run.owner is None:
        return False
    return engine.locks.is_taken(run.id) is not False


def _drop(held: HeldRun | None) -> None:
    if held is not None:
        held.drop()


def _drop_first(taken: tuple[HeldRun, int]) -> None:
    taken[0].drop()


def _nobody_waits() -> None:
    """For the end of an engine that no event loop is interested in."""
