"""Both record logs keep the port's promises."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from protolink.durable.memory import MemoryRecordLog
from protolink.durable.port import RecordLog
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.testing.record_log import RecordLogConformance


class TestMemoryRecordLog(RecordLogConformance):
    async def make(self) -> RecordLog:
        return MemoryRecordLog()


class TestSQLiteRecordLog(RecordLogConformance):
    @pytest.fixture(autouse=True)
    def in_folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "runs.sqlite"

    async def make(self) -> RecordLog:
        return SQLiteRecordLog(self.path)

    async def other(self, log: RecordLog) -> RecordLog | None:
        return SQLiteRecordLog(self.path)


class TestWithAKey(TestSQLiteRecordLog):
    """What is sealed by a key is kept like everything else."""

    async def make(self) -> RecordLog:
        return SQLiteRecordLog(self.path, integrity_key=bytes(range(32)))

    async def other(self, log: RecordLog) -> RecordLog | None:
        return SQLiteRecordLog(self.path, integrity_key=bytes(range(32)))


class TestWithoutByteRangeLocks(TestSQLiteRecordLog):
    """Some systems only have locks on whole files, so each root has a file of its own there."""

    @pytest.fixture(autouse=True)
    def without_byte_range_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(fcntl, "F_OFD_SETLK")
