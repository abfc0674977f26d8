"""A place for a run of real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protolink import Agent
from protolink.durable import Row, RunInfo
from protolink.durable.sqlite import SQLiteRecordLog
from tests.reliability.host import Host, Process
from tests.reliability.programs import STORE
from tests.reliability.teams import KINDS, ROOT, FileWorld


class Site:
    """One store in a folder, the world beside it, and the processes that use both."""

    def __init__(self, folder: Path, host: Host, disk: str = "") -> None:
        self.folder = folder
        self.path = folder / disk / STORE
        self.host = host
        self._log = SQLiteRecordLog(self.path)

    @property
    def world(self) -> FileWorld:
        """What has happened so far."""
        return FileWorld(self.folder).read()

    def log(self) -> SQLiteRecordLog:
        """The store, from this process."""
        return self._log

    def agent(self, kind: str) -> Agent:
        """A fresh agent in this process."""
        return KINDS[kind].build(self.log(), FileWorld(self.folder))

    def process(self, program: str, kind: str, *points: str, **options: Any) -> Process:
        """Run a program in a process that stops at some points until the test lets it go on."""
        return self.host.start(program, folder=str(self.folder), kind=kind, points=list(points), **options)

    def killed(self, program: str, kind: str, point: str, *, number: int = 1, **options: Any) -> None:
        """Run a program and kill it when it reaches a point for the n-th time."""
        process = self.process(program, kind, point, **options)
        for _ in range(number - 1):
            process.until(point)
            process.tell()
        process.until(point)
        process.kill()

    async def rows(self) -> list[Row]:
        """The stored list."""
        return await self.log().read(ROOT)

    async def info(self) -> RunInfo:
        """What the table of roots says."""
        found = await self.log().get(ROOT)
        assert found is not None
        return found


def new_folder(parent: Path, name: str) -> Path:
    """An empty folder in another one."""
    folder = parent / name
    folder.mkdir()
    return folder
