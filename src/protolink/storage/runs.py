"""Tasks and reports of ended runs in a SQLite file."""

from __future__ import annotations

import os
from typing import Any, Final

from protolink._json import dumps, parse
from protolink.redaction import RedactionPolicy
from protolink.report import RunReport
from protolink.storage.database import Database, check_table_name, named
from protolink.storage.port import StorageError, check_limit, check_text
from protolink.storage.records import StoredRun, of_report, of_task
from protolink.task import Task

__all__ = ["SQLiteRunStore"]

_MAX_BYTES: Final = 256 * 1024 * 1024
"""A report carries every event of its run, so it may be larger than any single value in it."""

_CREATE: Final = (
    "CREATE TABLE <name>_<kind> (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, "
    "run_id TEXT NOT NULL, task_id TEXT, agent_name TEXT, session_id TEXT, status TEXT NOT NULL, "
    "saved_at TEXT NOT NULL, data TEXT NOT NULL) STRICT"
)
_SAVE: Final = (
    "INSERT OR REPLACE INTO <name>_<kind> (key, run_id, task_id, agent_name, session_id, status, saved_at, data) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
_GET: Final = "SELECT run_id, task_id, agent_name, session_id, status, saved_at, data FROM <name>_<kind> WHERE key = ?"
_LIST: Final = (
    "SELECT run_id, task_id, agent_name, session_id, status, saved_at FROM <name>_<kind> "
    "WHERE (:status IS NULL OR status = :status) AND (:agent_name IS NULL OR agent_name = :agent_name) "
    "AND (:session_id IS NULL OR session_id = :session_id) ORDER BY number DESC LIMIT :limit"
)
_DELETE: Final = "DELETE FROM <name>_<kind> WHERE key = ?"


class SQLiteRunStore:
    """A `RunStore` in a file that several agents and processes may share.

    What `redaction_policy` withholds is never written. The file is made readable for its owner only.
    Raises `ValueError` for a prefix that cannot begin a table's name.
    """

    def __init__(
        self,
        db_path: str | os.PathLike[str] = "runs.db",
        *,
        table_prefix: str = "protolink",
        read_only: bool = False,
        redaction_policy: RedactionPolicy | None = None,
    ) -> None:
        name = check_table_name(table_prefix, "table_prefix")
        migrations = ((_about(_CREATE, "tasks"), _about(_CREATE, "reports")),)
        self._database = Database(db_path, "runs", name, migrations, read_only=read_only)
        self._policy = redaction_policy
        self._tasks = _Shelf(self._database, name, "tasks")
        self._reports = _Shelf(self._database, name, "reports")

    def save_task(self, task: Task) -> None:
        """Keep a snapshot of a task."""
        self._tasks.save(task.id, of_task(task, self._policy))

    def get_task(self, task_id: str) -> Task | None:
        """The task, or None."""
        found = self._tasks.get(task_id)
        return None if found is None else Task.from_dict(found.data or {})

    def get_task_record(self, task_id: str) -> StoredRun | None:
        """The task as it is stored, or None."""
        return self._tasks.get(task_id)

    def list_task_records(
        self,
        *,
        status: str | None = None,
        agent_name: str | None = None,
        session_id: str | None = None,
        limit: int = 20,
    ) -> list[StoredRun]:
        """What is known about stored tasks, last saved first."""
        return self._tasks.list(status, agent_name, session_id, limit)

    def delete_task(self, task_id: str) -> bool:
        """Remove a task; False where there was none."""
        return self._tasks.delete(task_id)

    def save_report(self, report: RunReport) -> None:
        """Keep a report."""
        self._reports.save(report.context.run_id, of_report(report, self._policy))

    def get_report(self, run_id: str) -> RunReport | None:
        """The report of a run, or None."""
        found = self._reports.get(run_id)
        return None if found is None else RunReport.from_dict(found.data or {})

    def get_report_record(self, run_id: str) -> StoredRun | None:
        """The report as it is stored, or None."""
        return self._reports.get(run_id)

    def list_report_records(
        self,
        *,
        status: str | None = None,
        agent_name: str | None = None,
        session_id: str | None = None,
        limit: int = 20,
    ) -> list[StoredRun]:
        """What is known about stored reports, last saved first."""
        return self._reports.list(status, agent_name, session_id, limit)

    def delete_report(self, run_id: str) -> bool:
        """Remove a report; False where there was none."""
        return self._reports.delete(run_id)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._database.close()

    def __repr__(self) -> str:
        return f"SQLiteRunStore({self._database.path!r})"


class _Shelf:
    """One of the two tables; they differ in what their keys are."""

    def __init__(self, database: Database, name: str, kind: str) -> None:
        self._database = database
        self._kind = kind
        self._save = named(_about(_SAVE, kind), name)
        self._get = named(_about(_GET, kind), name)
        self._list = named(_about(_LIST, kind), name)
        self._delete = named(_about(_DELETE, kind), name)

    def save(self, key: str, record: StoredRun) -> None:
        text = dumps(record.data)
        if len(text) > _MAX_BYTES:
            raise StorageError(f"one of the {self._kind} is larger than {_MAX_BYTES} bytes")
        row = (
            check_text(key, "the id"),
            record.run_id,
            record.task_id,
            record.agent_name,
            record.session_id,
            record.status,
            record.saved_at,
            text,
        )
        with self._database.transaction() as db:
            db.execute(self._save, row)

    def get(self, key: str) -> StoredRun | None:
        rows = self._database.read(self._get, (check_text(key, "the id"),))
        if not rows:
            return None
        *facts, text = rows[0]
        try:
            data: Any = parse(text, max_bytes=4 * _MAX_BYTES)
        except ValueError as error:
            raise StorageError(f"one of the {self._kind} cannot be read back: {error}") from error
        if not isinstance(data, dict):
            raise StorageError(f"one of the {self._kind} cannot be read back: it is no object")
        return _record(tuple(facts), data)  # pyright: ignore[reportUnknownArgumentType] - it is JSON

    def list(self, status: str | None, agent_name: str | None, session_id: str | None, limit: int) -> list[StoredRun]:
        wanted = {"status": status, "agent_name": agent_name, "session_id": session_id, "limit": check_limit(limit)}
        rows = self._database.read(self._list, wanted)
        return [_record(row, None) for row in rows]

    def delete(self, key: str) -> bool:
        with self._database.transaction() as db:
            return db.execute(self._delete, (check_text(key, "the id"),)).rowcount > 0


def _about(statement: str, kind: str) -> str:
    return statement.replace("<kind>", kind)


def _record(facts: tuple[Any, ...], data: dict[str, Any] | None) -> StoredRun:
    run_id, task_id, agent_name, session_id, status, saved_at = facts
    return StoredRun(
        run_id=run_id,
        task_id=task_id,
        agent_name=agent_name,
        session_id=session_id,
        status=status,
        saved_at=saved_at,
        data=data,
    )
