"""Both record logs keep the port's promises."""

from __future__ import annotations

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
