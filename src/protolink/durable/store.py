"""Stores of durable runs as an application sees them."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from protolink.durable.port import RecordLog, RunInfo
from protolink.durable.sqlite import SQLiteRecordLog

__all__ = ["DurableStore", "SQLiteDurableStore", "StoredRunView"]

T = TypeVar("T")


class StoredRunView:
    """What a store knows of a root run. Reading it changes nothing."""

    __slots__ = ("info",)

    def __init__(self, info: RunInfo) -> None:
        self.info: RunInfo = info

    @property
    def run_id(self) -> str:
        """The root's run id."""
        return self.info.root_id

    @property
    def agent_name(self) -> str:
        """The agent that started it."""
        return self.info.agent_name

    @property
    def status(self) -> str:
        """`running`, `paused`, `uncertain`, `resumable`, `completed`, `failed` or `canceled`."""
        return self.info.status

    def __repr__(self) -> str:
        return f"<StoredRunView {self.run_id} of {self.agent_name!r}: {self.status}>"


class DurableStore(ABC):
    """A place where runs outlive their attempts; what `Agent(durability=...)` takes."""

    @property
    @abstractmethod
    def log(self) -> RecordLog:
        """The records themselves, for the runtime."""

    def get(self, run_id: str) -> StoredRunView | None:
        """What is known of a root run, or None. Blocks; on an event loop use `await store.log.get(run_id)`."""
        info = _blocking(self.log.get(run_id))
        return None if info is None else StoredRunView(info)

    def list(self, *, status: str | None = None, agent_name: str | None = None, limit: int = 20) -> list[StoredRunView]:
        """Root runs, the latest first. Blocks, as `get` does."""
        found = _blocking(self.log.list(status=status, agent_name=agent_name, limit=limit))
        return [StoredRunView(info) for info in found]


class SQLiteDurableStore(DurableStore):
    """Runs in one SQLite file, for any number of processes of one machine.

    `lease_seconds` is accepted for stores without locks of the operating system; this one needs no clock,
    for a lease ends with its process. With an `integrity_key`, bytes that stay outside of the file, nothing is
    believed that was written without it; `StoreKeyError` says where key and file do not belong together.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        lease_seconds: float = 300.0,
        read_only: bool = False,
        integrity_key: bytes | None = None,
    ) -> None:
        if isinstance(lease_seconds, bool) or not isinstance(lease_seconds, int | float) or lease_seconds <= 0:
            raise ValueError("lease_seconds is a positive number of seconds")
        self._log = SQLiteRecordLog(path, read_only=read_only, integrity_key=integrity_key)

    @property
    def log(self) -> SQLiteRecordLog:
        """The records in the file."""
        return self._log


def _blocking(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine, from a program that may or may not run an event loop."""
    with ThreadPoolExecutor(1, thread_name_prefix="protolink-store") as pool:
        return pool.submit(asyncio.run, work).result()
