"""Stores that live as long as the process: for tests, and for conversations that need not outlive it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from protolink._json import require_json
from protolink.redaction import RedactionPolicy
from protolink.report import RunReport
from protolink.storage.port import check_limit, check_text, plain_object
from protolink.storage.records import StoredRun, of_report, of_task
from protolink.task import Task

__all__ = ["InMemoryRunStore", "InMemoryStorage"]


class InMemoryStorage:
    """A `Storage` of its own; the namespace only names it."""

    def __init__(self, namespace: str = "default") -> None:
        self.namespace: str = check_text(namespace, "namespace")
        self._lock = threading.Lock()
        self._data: dict[str, Any] | None = None
        self._sessions: dict[str, list[dict[str, Any]]] = {}
        self._keys: dict[str, set[str]] = {}

    def save(self, data: Mapping[str, Any]) -> None:
        """Replace the object. Raises `TypeError` for what JSON cannot carry."""
        copied = plain_object(data)
        with self._lock:
            self._data = copied

    def load(self) -> dict[str, Any] | None:
        """The object, or None where nothing was saved."""
        with self._lock:
            return None if self._data is None else plain_object(self._data)

    def update(self, data: Mapping[str, Any]) -> None:
        """Set some members of the object and keep the others."""
        copied = plain_object(data)
        with self._lock:
            self._data = {**(self._data or {}), **copied}

    def delete(self) -> None:
        """Remove the object. Conversations stay."""
        with self._lock:
            self._data = None

    def load_session(self, session_id: str) -> tuple[dict[str, Any], ...]:
        """The messages of a session, oldest first."""
        with self._lock:
            messages = tuple(self._sessions.get(check_text(session_id, "session_id"), ()))
        return tuple(plain_object(message) for message in messages)

    def append_session(self, session_id: str, messages: Sequence[Mapping[str, Any]], *, key: str | None = None) -> None:
        """Add messages behind those of the session, all or none; those of one `key` once."""
        session_id = check_text(session_id, "session_id")
        copied = [plain_object(message) for message in messages]
        with self._lock:
            keys = self._keys.setdefault(session_id, set())
            if not copied or key in keys:
                return
            if key is not None:
                keys.add(key)
            self._sessions.setdefault(session_id, []).extend(copied)

    def delete_session(self, session_id: str) -> None:
        """Forget a conversation."""
        with self._lock:
            self._sessions.pop(check_text(session_id, "session_id"), None)
            self._keys.pop(session_id, None)

    def __repr__(self) -> str:
        return f"InMemoryStorage(namespace={self.namespace!r})"


class InMemoryRunStore:
    """A `RunStore` in memory."""

    def __init__(self, *, redaction_policy: RedactionPolicy | None = None) -> None:
        self._policy = redaction_policy
        self._lock = threading.Lock()
        self._tasks: dict[str, StoredRun] = {}
        self._reports: dict[str, StoredRun] = {}

    def save_task(self, task: Task) -> None:
        """Keep a snapshot of a task."""
        self._save(self._tasks, task.id, of_task(task, self._policy))

    def get_task(self, task_id: str) -> Task | None:
        """The task, or None."""
        found = self.get_task_record(task_id)
        return None if found is None else Task.from_dict(found.data or {})

    def get_task_record(self, task_id: str) -> StoredRun | None:
        """The task as it is stored, or None."""
        return self._get(self._tasks, task_id)

    def list_task_records(
        self,
        *,
        status: str | None = None,
        agent_name: str | None = None,
        session_id: str | None = None,
        limit: int = 20,
    ) -> list[StoredRun]:
        """What is known about stored tasks, last saved first."""
        return self._list(self._tasks, status, agent_name, session_id, limit)

    def delete_task(self, task_id: str) -> bool:
        """Remove a task; False where there was none."""
        with self._lock:
            return self._tasks.pop(task_id, None) is not None

    def save_report(self, report: RunReport) -> None:
        """Keep a report."""
        self._save(self._reports, report.context.run_id, of_report(report, self._policy))

    def get_report(self, run_id: str) -> RunReport | None:
        """The report of a run, or None."""
        found = self.get_report_record(run_id)
        return None if found is None else RunReport.from_dict(found.data or {})

    def get_report_record(self, run_id: str) -> StoredRun | None:
        """The report as it is stored, or None."""
        return self._get(self._reports, run_id)

    def list_report_records(
        self,
        *,
        status: str | None = None,
        agent_name: str | None = None,
        session_id: str | None = None,
        limit: int = 20,
    ) -> list[StoredRun]:
        """What is known about stored reports, last saved first."""
        return self._list(self._reports, status, agent_name, session_id, limit)

    def delete_report(self, run_id: str) -> bool:
        """Remove a report; False where there was none."""
        with self._lock:
            return self._reports.pop(run_id, None) is not None

    def _save(self, kept: dict[str, StoredRun], key: str, record: StoredRun) -> None:
        copied = replace(record, data=require_json(record.data, "the record"))
        with self._lock:
            kept.pop(key, None)
            kept[key] = copied

    def _get(self, kept: dict[str, StoredRun], key: str) -> StoredRun | None:
        with self._lock:
            found = kept.get(key)
        return None if found is None else replace(found, data=require_json(found.data, "the record"))

    def _list(
        self,
        kept: dict[str, StoredRun],
        status: str | None,
        agent_name: str | None,
        session_id: str | None,
        limit: int,
    ) -> list[StoredRun]:
        check_limit(limit)
        with self._lock:
            records = tuple(reversed(kept.values()))
        wanted = (
            replace(record, data=None)
            for record in records
            if (status is None or record.status == status)
            and (agent_name is None or record.agent_name == agent_name)
            and (session_id is None or record.session_id == session_id)
        )
        return [record for record, _ in zip(wanted, range(limit), strict=False)]
