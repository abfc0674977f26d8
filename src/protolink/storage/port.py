"""What a conversation storage and a run store have to do, and what they raise.

Every method blocks. The runtime calls them in worker threads, so a store has to be safe to use from
several threads at once; it knows nothing of agents, runs in progress or event loops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from protolink._json import require_json
from protolink.errors import ProtolinkError
from protolink.report import RunReport
from protolink.storage.records import StoredRun
from protolink.task import Task

__all__ = ["RunStore", "Storage", "StorageError", "check_limit", "check_text", "plain_object"]


class StorageError(ProtolinkError):
    """A store could not be read or written. What was stored before is as it was."""


@runtime_checkable
class Storage(Protocol):
    """Data of one namespace: an object of the application's own, and the conversations of sessions."""

    def save(self, data: Mapping[str, Any]) -> None:
        """Replace the object. Raises `TypeError` for what JSON cannot carry."""
        ...

    def load(self) -> dict[str, Any] | None:
        """The object, or None where nothing was saved."""
        ...

    def update(self, data: Mapping[str, Any]) -> None:
        """Set some members of the object and keep the others; makes the object where there is none."""
        ...

    def delete(self) -> None:
        """Remove the object. Conversations stay."""
        ...

    def load_session(self, session_id: str) -> tuple[dict[str, Any], ...]:
        """The messages of a session, oldest first; none for an unknown session."""
        ...

    def append_session(self, session_id: str, messages: Sequence[Mapping[str, Any]], *, key: str | None = None) -> None:
        """Add messages behind those of the session: all of them, side by side, or none.

        Runs of one session that end at the same time both keep their messages. With an idempotency `key` (a
        run's id), nothing is added where the session has messages of this key already: whoever takes over
        from a process that died cannot know whether it had saved them.
        """
        ...

    def delete_session(self, session_id: str) -> None:
        """Forget a conversation; harmless for an unknown session."""
        ...


@runtime_checkable
class RunStore(Protocol):
    """Final tasks by task id and reports by run id. Saving again replaces."""

    def save_task(self, task: Task) -> None:
        """Keep a snapshot of a task."""
        ...

    def get_task(self, task_id: str) -> Task | None:
        """The task, or None."""
        ...

    def get_task_record(self, task_id: str) -> StoredRun | None:
        """The task as it is stored, with what is known about it, or None."""
        ...

    def list_task_records(
        self,
        *,
        status: str | None = None,
        agent_name: str | None = None,
        session_id: str | None = None,
        limit: int = 20,
    ) -> list[StoredRun]:
        """What is known about stored tasks, last saved first, without their bodies."""
        ...

    def delete_task(self, task_id: str) -> bool:
        """Remove a task; False where there was none."""
        ...

    def save_report(self, report: RunReport) -> None:
        """Keep a report."""
        ...

    def get_report(self, run_id: str) -> RunReport | None:
        """The report of a run, or None."""
        ...

    def get_report_record(self, run_id: str) -> StoredRun | None:
        """The report as it is stored, with what is known about it, or None."""
        ...

    def list_report_records(
        self,
        *,
        status: str | None = None,
        agent_name: str | None = None,
        session_id: str | None = None,
        limit: int = 20,
    ) -> list[StoredRun]:
        """What is known about stored reports, last saved first, without their bodies."""
        ...

    def delete_report(self, run_id: str) -> bool:
        """Remove a report; False where there was none."""
        ...


def check_text(value: object, what: str) -> str:
    """A non-blank text that a database can hold. Raises `ValueError`."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} must be a non-blank text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} holds half of a character (a lone surrogate)") from None
    return value


def check_limit(limit: object) -> int:
    """How many entries a list may have. Raises `ValueError`."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ValueError("limit must be a positive whole number")
    return limit


def plain_object(data: object) -> dict[str, Any]:
    """A copy of a dictionary that JSON can carry. Raises `TypeError` for anything else."""
    if not isinstance(data, Mapping):
        raise TypeError(f"data is a dictionary, not {type(data).__name__}")
    copied: dict[str, Any] = require_json(dict(data), "data")  # pyright: ignore[reportUnknownArgumentType]
    return copied
