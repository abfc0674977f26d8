"""Stores that fail or wait, for tests of what a run does about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protolink import RunReport, Task
from protolink.storage import InMemoryRunStore, InMemoryStorage


class BrokenStorage(InMemoryStorage):
    """Fails where it is told to, as a full disk would."""

    def __init__(self, *, reads: bool = False, writes: bool = False) -> None:
        super().__init__()
        self.reads = reads
        self.writes = writes

    def load_session(self, session_id: str) -> tuple[dict[str, Any], ...]:
        """Fail, or load."""
        if self.reads:
            raise OSError("the disk is gone")
        return super().load_session(session_id)

    def append_session(self, session_id: str, messages: Sequence[Mapping[str, Any]], *, key: str | None = None) -> None:
        """Fail, or append."""
        if self.writes:
            raise OSError("the disk is full")
        super().append_session(session_id, messages, key=key)


class WaitingStorage(InMemoryStorage):
    """Calls a function of the test before it reads or writes."""

    def __init__(self, *, before_reading: Any = None, before_writing: Any = None) -> None:
        super().__init__()
        self._before_reading = before_reading
        self._before_writing = before_writing

    def load_session(self, session_id: str) -> tuple[dict[str, Any], ...]:
        """Wait, then load."""
        if self._before_reading is not None:
            self._before_reading()
        return super().load_session(session_id)

    def append_session(self, session_id: str, messages: Sequence[Mapping[str, Any]], *, key: str | None = None) -> None:
        """Wait, then append."""
        if self._before_writing is not None:
            self._before_writing()
        super().append_session(session_id, messages, key=key)


class BrokenRunStore(InMemoryRunStore):
    """Keeps no task, but reports."""

    def save_task(self, task: Task) -> None:
        """Fail."""
        raise OSError("the disk is full")


class WaitingRunStore(InMemoryRunStore):
    """Calls a function of the test before it keeps a report."""

    def __init__(self, before: Any) -> None:
        super().__init__()
        self._before = before

    def save_report(self, report: RunReport) -> None:
        """Wait, then keep."""
        self._before()
        super().save_report(report)
