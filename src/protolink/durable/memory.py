"""A record log in memory: the whole contract, for tests and for runs that need not outlive their process."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from protolink._environment import current_environment, iso
from protolink._json import parse
from protolink._record import new_list
from protolink.durable.port import Lease, Row, RunInfo, RunStatus
from protolink.durable.rows import (
    check_info,
    check_limit,
    check_name,
    check_status,
    prepare,
    prepare_summary,
    shown,
)
from protolink.errors import LostRunError, RunBusyError, RunExistsError, StoreClosedError, UnknownRunError

__all__ = ["MemoryRecordLog"]


@dataclass(slots=True)
class _Root:
    info: RunInfo
    summary: str
    rows: list[Row] = field(default_factory=new_list)
    fence: int = 1
    holder: object = None
    owner_since: float = 0.0


class MemoryRecordLog:
    """Rows in this process's memory. Safe to use from several threads and event loops.

    Nothing outlives the object, and `break_leases` stands in for the death of the processes that hold some.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._roots: dict[str, _Root] = {}
        self._closed = False
        self._owner = f"{platform.node() or 'localhost'} {os.getpid()}"

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._roots)} roots"
        return f"<{type(self).__name__} {state}>"

    async def create(self, root_id: str, info: RunInfo) -> Lease:
        """Reserve a new root and take its lease. Raises `RunExistsError` for an id that is taken."""
        summary = check_info(root_id, info)
        with self._lock:
            self._check_open(f"root {shown(root_id)} was not created")
            if root_id in self._roots:
                raise RunExistsError(f"root {shown(root_id)} exists already")
            kept = replace(info, attempts=1, records=0, owner=None, summary={})
            root = self._roots[root_id] = _Root(kept, summary)
            return self._take(root)

    async def acquire(self, root_id: str) -> tuple[Lease, list[Row]]:
        """Take the lease of a root and read its list. Raises `UnknownRunError` and `RunBusyError`."""
        check_name(root_id, "a root's id")
        with self._lock:
            self._check_open(f"root {shown(root_id)} was not acquired")
            root = self._known(root_id)
            self._refuse_busy(root)
            root.fence += 1
            root.info = replace(root.info, attempts=root.info.attempts + 1)
            return self._take(root), list(root.rows)

    async def append(
        self,
        lease: Lease,
        expected: int,
        rows: Sequence[Row],
        *,
        status: RunStatus,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Store rows as numbers `expected + 1` and on, or nothing of them. Raises `LostRunError`."""
        undone = f"{len(rows)} records of root {shown(lease.root_id)} were not stored"
        check_status(status)
        prepared, _ = prepare(expected, rows, undone)
        text = None if summary is None else prepare_summary(summary, undone)
        now = current_environment().now()
        with self._lock:
            self._check_open(undone)
            root = self._roots.get(lease.root_id)
            if root is None or lease.handle is None or root.holder is not lease.handle or root.fence != lease.fence:
                raise LostRunError(f"{undone}: somebody else has the run, or its lease was given back")
            if len(root.rows) != expected:
                raise LostRunError(f"{undone}: {len(root.rows)} records are there, and {expected} were expected")
            root.rows += [replace(row.row, bodies=dict(row.row.bodies)) for row in prepared]
            root.info = replace(root.info, status=status, records=len(root.rows), updated_at=now)
            if text is not None:
                root.summary = text

    async def release(self, lease: Lease) -> None:
        """Give the lease back. Harmless when it is gone already."""
        with self._lock:
            root = self._roots.get(lease.root_id)
            if root is not None and lease.handle is not None and root.holder is lease.handle:
                root.holder = None

    async def read(self, root_id: str, after: int = 0) -> list[Row]:
        """The rows behind a number. Raises `UnknownRunError`."""
        check_name(root_id, "a root's id")
        if not isinstance(after, int) or after < 0:
            raise ValueError("the number to read after is a whole number from 0")
        with self._lock:
            self._check_open(f"root {shown(root_id)} was not read")
            return self._known(root_id).rows[after:]

    async def get(self, root_id: str) -> RunInfo | None:
        """What is known of a root, or None."""
        check_name(root_id, "a root's id")
        with self._lock:
            self._check_open(f"root {shown(root_id)} was not read")
            root = self._roots.get(root_id)
            return None if root is None else self._info(root)

    async def list(
        self, *, status: str | None = None, agent_name: str | None = None, principal: str | None = None, limit: int = 20
    ) -> list[RunInfo]:
        """Roots, the one that was created last first."""
        check_limit(limit)
        with self._lock:
            self._check_open("the roots were not listed")
            found = [
                self._info(root)
                for root in reversed(self._roots.values())
                if (status is None or root.info.status == status)
                and (agent_name is None or root.info.agent_name == agent_name)
                and (principal is None or root.info.principal == principal)
            ]
            return found[:limit]

    async def delete(self, root_id: str) -> bool:
        """Delete a root that nobody drives. False where there is none. Raises `RunBusyError`."""
        check_name(root_id, "a root's id")
        with self._lock:
            self._check_open(f"root {shown(root_id)} was not deleted")
            root = self._roots.get(root_id)
            if root is None:
                return False
            self._refuse_busy(root)
            del self._roots[root_id]
            return True

    async def close(self) -> None:
        """Release every lease and close the store; what was stored is gone."""
        with self._lock:
            self._closed = True
            self._roots.clear()

    def break_leases(self) -> None:
        """Forget who drives what, as if every process that holds a lease had been killed."""
        with self._lock:
            for root in self._roots.values():
                root.holder = None

    def _take(self, root: _Root) -> Lease:
        root.holder = object()
        root.owner_since = current_environment().now()
        return Lease(root_id=root.info.root_id, fence=root.fence, attempt=root.info.attempts, handle=root.holder)

    def _known(self, root_id: str) -> _Root:
        root = self._roots.get(root_id)
        if root is None:
            raise UnknownRunError(f"there is no root {shown(root_id)}")
        return root

    def _refuse_busy(self, root: _Root) -> None:
        if root.holder is not None:
            since = iso(root.owner_since)
            raise RunBusyError(
                f"root {shown(root.info.root_id)} is driven by {self._owner} since {since}",
                owner=self._owner,
                since=since,
            )

    def _info(self, root: _Root) -> RunInfo:
        owner = None if root.holder is None else f"{self._owner} since {iso(root.owner_since)}"
        summary = parse(root.summary)
        return replace(root.info, owner=owner, summary=summary if isinstance(summary, dict) else {})

    def _check_open(self, undone: str) -> None:
        if self._closed:
            raise StoreClosedError(f"{undone}: the store was closed")
