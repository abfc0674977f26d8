"""What an application reads of a run: events, fragments, evidence, report, task. All of them from the list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import TYPE_CHECKING, Any

from protolink._core.views.project import project
from protolink._core.views.snapshot import task_snapshot
from protolink._runtime.journal import Cursor, Journal
from protolink._runtime.standing import Standing, standing_of, status_of
from protolink.context import RunContext
from protolink.errors import DurableExecutionError
from protolink.events import RunEvent
from protolink.evidence import EvidenceFold, ToolEvidence
from protolink.report import RunReport
from protolink.task import Task

if TYPE_CHECKING:
    from protolink.redaction import RedactionPolicy, StreamRedactor

__all__ = ["Reading", "Views"]


class Views:
    """The public side of one run. Every reader gets values of its own."""

    __slots__ = ("_journal", "_report", "policy", "run_id")

    def __init__(self, journal: Journal, run_id: str, policy: RedactionPolicy | None) -> None:
        self._journal = journal
        self.policy: RedactionPolicy | None = policy
        self._report: RunReport | None = None
        self.run_id: str = run_id

    async def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """The events behind `after`, then live ones, until the run ends."""
        reading = self.reading(after)
        while True:
            for event in reading.ready():
                yield event
            if reading.at_end:
                return
            await reading.more()

    def reading(self, after: int = 0) -> Reading:
        """The events behind `after` for a reader that waits in its own way."""
        return Reading(self._journal, self.run_id, self.policy, after)

    @property
    def last_place(self) -> int:
        """The place of the last event so far, or 0."""
        return self._journal.last_place

    async def fragments(self) -> AsyncIterator[str]:
        """The text of every fragment of the tree, from the beginning."""
        async for event in self.events():
            if event.payload.get("llm_event_type") == "llm_chunk":
                yield event.payload["content"]

    async def evidence(self) -> AsyncIterator[ToolEvidence]:
        """One record per tool action, from the beginning."""
        fold = EvidenceFold()
        async for event in self.events():
            record = fold.add(event)
            if record is not None:
                yield record

    def seen(self) -> Iterator[RunEvent]:
        """The events so far."""
        journal = self._journal
        projected = (project(item, journal.identities, self.run_id) for item in tuple(journal.entries))
        if self.policy is None:
            yield from (event for event in projected if event is not None)
            return
        redacted = _Redaction(self.policy)
        for event in projected:
            yield from redacted.events(event)

    @property
    def task(self) -> Task:
        """The task as it stands; a value of the caller's own."""
        task = task_snapshot(chain(self._journal.entries, self._journal.beginning(self.run_id)), self.run_id)
        if self.policy is not None:
            for key in {"error", "validations"} & task.metadata.keys():
                task.metadata[key] = self.policy.value(task.metadata[key])
        return task

    @property
    def report(self) -> RunReport:
        """The report so far; that of an ended run is made once."""
        if self._report is not None:
            return self._report
        task = self.task
        report = RunReport.from_events(self.seen(), context=RunContext.from_task(task), task=task)
        if self.policy is not None:
            report = report.redacted(self.policy)
        if self._journal.closed:
            self._report = report
        return report

    @property
    def reach(self) -> int:
        """The last place that a reader can have seen; of a fragment, say, whose process died during a reply."""
        return self._journal.reach

    @property
    def standing(self) -> Standing:
        """How the root stands."""
        return standing_of(self._journal.tree, self.policy)

    @property
    def status(self) -> str:
        """How the run stands, as a `TaskState` value."""
        return status_of(self._journal.tree.runs[self.run_id])

    @property
    def has_ended(self) -> bool:
        """Whether the run is over for good."""
        return self._journal.tree.runs[self.run_id].finished is not None

    @property
    def is_at_work(self) -> bool:
        """Whether an attempt has begun that neither ended nor paused."""
        return not self._journal.tree.runs[self.run_id].at_rest

    @property
    def agent_name(self) -> str:
        """Whose run it is."""
        return self._journal.tree.runs[self.run_id].started.agent_name

    def has_answered(self, request_id: str) -> bool:
        """Whether an approval or a question of that id was answered, in the root or below it."""
        runs = self._journal.tree.runs.values()
        return any(request_id in run.answers or request_id in run.replies for run in runs)

    @property
    def failure(self) -> DurableExecutionError | None:
        """Why what was done is not stored; None where everything is."""
        return self._journal.failure

    @property
    def context(self) -> RunContext:
        """The run's context."""
        return RunContext.from_dict(self._journal.tree.runs[self.run_id].started.context)


class Reading:
    """The events behind a place: those that are there, and whether more will come."""

    __slots__ = ("_after", "_cursor", "_journal", "_redaction", "_run_id")

    def __init__(self, journal: Journal, run_id: str, policy: RedactionPolicy | None, after: int) -> None:
        self._journal = journal
        self._run_id = run_id
        self._after = after
        self._cursor = Cursor(journal, after)
        self._redaction = None if policy is None else _Redaction(policy)
        if self._redaction is not None:
            # A secret may have begun before the place and go on behind it.
            for item in self._cursor.passed():
                for _ in self._redaction.events(project(item, journal.identities, run_id)):
                    pass

    def ready(self) -> Iterator[RunEvent]:
        """The events that are there by now."""
        journal, redaction = self._journal, self._redaction
        for item in self._cursor.ready():
            event = project(item, journal.identities, self._run_id)
            if redaction is None:
                if event is not None:
                    yield event
            else:
                yield from (shown for shown in redaction.events(event) if shown.sequence > self._after)

    @property
    def at_end(self) -> bool:
        """Whether everything was read and nothing more will come. Raises `DurableExecutionError`, as a run does."""
        return self._cursor.at_end

    @property
    def is_complete(self) -> bool:
        """Whether everything that will come is there."""
        return self._journal.closed

    def more(self) -> asyncio.Future[None]:
        """What is done once there is more to read, or nothing more will come."""
        return self._journal.more()

    def over(self) -> asyncio.Future[None]:
        """What is done once nothing more will come."""
        return self._journal.over()


class _Redaction:
    """Withholds sensitive values from a stream of events, over the borders of fragments too.

    A fragment may end in the middle of a secret, so each one is held back until the next event shows how
    its text goes on.
    """

    def __init__(self, policy: RedactionPolicy) -> None:
        self._policy = policy
        self._held: dict[str, tuple[RunEvent, StreamRedactor]] = {}

    def events(self, event: RunEvent | None) -> Iterator[RunEvent]:
        """What can be shown once `event` has arrived."""
        if event is None:
            return
        held = self._held.pop(event.run_id, None)
        if event.payload.get("llm_event_type") == "llm_chunk":
            redactor = self._policy.stream() if held is None else held[1]
            if held is not None:
                yield held[0]
            event.payload["content"] = redactor.feed(event.payload["content"])
            self._held[event.run_id] = (event, redactor)
            return
        if held is not None:
            last, redactor = held
            last.payload["content"] += redactor.close()
            yield last
        redacted: Any = self._policy.value(event.to_dict())
        yield RunEvent.from_dict(redacted)
