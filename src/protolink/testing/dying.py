"""A record log that dies at a write of your choice, so that a test can kill a run at every place."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence

from protolink.durable.memory import MemoryRecordLog
from protolink.durable.port import Lease, RecordLog, Row, RunInfo, RunStatus
from protolink.errors import StoreError

__all__ = ["DyingLog", "LogDiedError"]


class LogDiedError(StoreError):
    """The log has died, as its test asked for; nothing more is stored or read."""


class DyingLog:
    """A record log that stops at its n-th write, and can be opened again as a restarted process would.

    Run your agent on a log that never dies and read `writes`; then, for every n up to there, run it on
    `DyingLog(dies_at=n)`, and a fresh agent on `log.reopened()` to the end. Every state that a killed process
    can leave is one of these, because a run changes nothing but by writing.

    Parameters
    ----------
    log
        Where the records are kept; in memory unless told otherwise.
    dies_at
        The write that is the last one, counted from 1: reserving a new root is one, each append another. None
        never dies.
    applied
        Whether that write is stored before the log dies, or lost with it.
    die
        Called at that moment, such as `lambda: os.kill(os.getpid(), signal.SIGKILL)`. Without it, and if it
        returns, whoever writes gets `LogDiedError`, and so does everybody who uses the log afterwards.
    """

    def __init__(
        self,
        log: RecordLog | None = None,
        *,
        dies_at: int | None = None,
        applied: bool = True,
        die: Callable[[], object] | None = None,
    ) -> None:
        if dies_at is not None and dies_at < 1:
            raise ValueError("dies_at is the number of a write, from 1, or None")
        self._log = MemoryRecordLog() if log is None else log
        self._dies_at = dies_at
        self._applied = applied
        self._die = die
        self.writes: int = 0
        """How many writes were asked for, the one that it died at included."""

        self.dead: bool = False

    def __repr__(self) -> str:
        state = "dead" if self.dead else "alive"
        return f"<{type(self).__name__} {state} after {self.writes} writes>"

    def reopened(self, *, dies_at: int | None = None, applied: bool = True) -> DyingLog:
        """The same records for the next process; whoever had a run has lost it. This log is dead from now on."""
        self.dead = True
        if isinstance(self._log, MemoryRecordLog):
            self._log.break_leases()
        return DyingLog(self._log, dies_at=dies_at, applied=applied, die=self._die)

    async def create(self, root_id: str, info: RunInfo) -> Lease:
        """Reserve a new root: one write."""
        if self._is_last():
            if self._applied:
                await self._log.create(root_id, info)
            raise self._death()
        return await self._log.create(root_id, info)

    async def append(
        self,
        lease: Lease,
        expected: int,
        rows: Sequence[Row],
        *,
        status: RunStatus,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Store rows: one write."""
        if self._is_last():
            if self._applied:
                await self._log.append(lease, expected, rows, status=status, summary=summary)
            raise self._death()
        await self._log.append(lease, expected, rows, status=status, summary=summary)

    async def acquire(self, root_id: str) -> tuple[Lease, list[Row]]:
        """Take the lease of a root and read its list."""
        self._require_life()
        return await self._log.acquire(root_id)

    async def release(self, lease: Lease) -> None:
        """Give the lease back. What is dead gives nothing back; `reopened` does."""
        if not self.dead:
            await self._log.release(lease)

    async def read(self, root_id: str, after: int = 0) -> list[Row]:
        """The rows behind a number."""
        self._require_life()
        return await self._log.read(root_id, after)

    async def get(self, root_id: str) -> RunInfo | None:
        """What is known of a root, or None."""
        self._require_life()
        return await self._log.get(root_id)

    async def list(
        self, *, status: str | None = None, agent_name: str | None = None, principal: str | None = None, limit: int = 20
    ) -> builtins.list[RunInfo]:
        """Roots, the latest first."""
        self._require_life()
        return await self._log.list(status=status, agent_name=agent_name, principal=principal, limit=limit)

    async def delete(self, root_id: str) -> bool:
        """Delete a root that nobody drives."""
        self._require_life()
        return await self._log.delete(root_id)

    async def close(self) -> None:
        """Close the log that keeps the records."""
        await self._log.close()

    def _is_last(self) -> bool:
        self._require_life()
        self.writes += 1
        return self.writes == self._dies_at

    def _death(self) -> LogDiedError:
        self.dead = True
        if self._die is not None:
            self._die()
        return LogDiedError(f"the log died at write {self.writes}")

    def _require_life(self) -> None:
        if self.dead:
            raise LogDiedError(f"the log died at write {self.writes}")
