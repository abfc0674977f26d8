"""The handle of a started run: read it, await it, cancel it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from protolink._core.records import CancelRequested, RunPaused
from protolink._runtime.background import spawn
from protolink._runtime.driver import Driver
from protolink._runtime.outcome import failure_of
from protolink._runtime.principal import current_principal
from protolink._runtime.views import Views
from protolink.context import RunContext
from protolink.errors import UncertainExecutionError
from protolink.events import RunEvent
from protolink.evidence import ToolEvidence
from protolink.handoff import RunHandoff
from protolink.report import RunReport
from protolink.task import Task

if TYPE_CHECKING:
    from protolink._options import RunOptions
    from protolink.agent import Agent

__all__ = ["RunHandle", "RunResult", "SubagentHandle"]


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class RunResult:
    """How a run ended. `task` and `report` are built when they are first read."""

    status: str
    """A `TaskState` value: `completed`, `failed`, `canceled` or `input-required`."""

    output: Any
    """The last answer or tool result of a completed run; None otherwise."""

    error: str | None
    """Why a failed run failed."""

    _views: Views

    @property
    def task(self) -> Task:
        """The task with its outputs and receipts."""
        return self._views.task

    @property
    def report(self) -> RunReport:
        """Everything that can be seen of the run, as one value."""
        return self._views.report

    @property
    def tool_evidence(self) -> tuple[ToolEvidence, ...]:
        """One record per tool action."""
        return self.report.tool_evidence

    @property
    def handoff(self) -> RunHandoff | None:
        """Progress of a run that yielded; None for any other ending."""
        return RunHandoff.from_task(self.task)

    def __repr__(self) -> str:
        return f"<RunResult {self.status} of run {self._views.run_id}>"


class SubagentHandle:
    """A child that works beside its parent's turns. Made by `RunHandle.spawn`."""

    __slots__ = ("_driver", "_views")

    def __init__(self, driver: Driver, views: Views) -> None:
        self._driver = driver
        self._views = views

    @property
    def id(self) -> str:
        """The id of the child's task."""
        return self._driver.run.started.task_id

    @property
    def run_id(self) -> str:
        """The child's run id."""
        return self._driver.run_id

    @property
    def task(self) -> Task:
        """The child's task as it stands now: a snapshot."""
        return self._views.task

    async def result(self) -> Task:
        """Await the child's end and give its task, whatever became of it."""
        await self._driver.wait()
        return self._views.task

    async def cancel(self, reason: str = "canceled by the application") -> None:
        """Stop this child alone and await that it has ended."""
        self._driver.stop(CancelRequested(reason=reason, principal=current_principal()))
        await self._driver.wait()


class RunHandle:
    """A run that was started. Any number of readers may come late, read slowly or leave early.

    Leaving a reader does not cancel the run; `cancel` does. Made by `Agent.start_run`, never directly.
    It belongs to the event loop that the run was started on.
    """

    __slots__ = ("_driver", "_views")

    def __init__(self, driver: Driver, views: Views) -> None:
        self._driver = driver
        self._views = views

    @classmethod
    def start(cls, target: Agent, task: Task | str, **options: Unpack[RunOptions]) -> RunHandle:
        """Start `task` on an agent; the options are those of `Agent.start_run`."""
        return target.start_run(task, **options)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self._driver.run_id

    @property
    def views(self) -> Views:
        """What the task, the report and the events are read off; for other parts of this library."""
        return self._views

    @property
    def task(self) -> Task:
        """The task as it stands now: a snapshot."""
        return self._views.task

    @property
    def context(self) -> RunContext:
        """The run's context: a copy."""
        return self._views.context

    @property
    def report(self) -> RunReport:
        """What was seen so far, as one value."""
        return self._views.report

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """Everything that can be seen behind place `after` of the list, then what comes, until the run ends.

        The last event is the run's own final `task.status`. Raises `ValueError` for a negative place.
        """
        if isinstance(after, bool) or after < 0:
            raise ValueError("after is the sequence number of an event that was seen, or 0")
        return self._views.events(after)

    def chunks(self) -> AsyncIterator[str]:
        """Raw fragments of every reply in the tree. They can be actions in JSON, not only answers."""
        return self._views.fragments()

    def tool_evidence(self) -> AsyncIterator[ToolEvidence]:
        """One record per tool action: those that were observed already, then new ones."""
        return self._views.evidence()

    async def result(self) -> RunResult:
        """Await the end of the attempt. Never raises for the run's own failure; `status` and `error` say what happened.

        Raises `DurableExecutionError` where the execution store failed; the run can then be taken up again.
        """
        await self._driver.wait()
        run = self._driver.run
        finished, rest = run.finished, run.rest
        # What the store did not take is no outcome: the run stands where its list ends.
        failure = self._driver.journal.failure
        if failure is not None:
            raise failure
        if isinstance(rest, RunPaused):
            return RunResult("input-required", None, None, self._views)
        ended = finished or rest
        if ended is None:
            raise self._driver.journal.broken or RuntimeError(f"run {self.run_id!r} was left by its event loop")
        error = None if ended.error is None else ended.error.message
        policy = self._views.policy
        if error is not None and policy is not None:
            error = policy.text(error)
        status = "failed" if finished is None else finished.status
        output = run.outputs[-1] if status == "completed" and run.outputs else None
        return RunResult(status, output, error, self._views)

    async def stored(self) -> None:
        """Await that the run is where it will be found again: stored, where its agent stores runs.

        Raises `DurableExecutionError` where it cannot be stored; then nothing has begun.
        """
        if self._views.last_place:
            return
        reading = self._views.reading()
        while not self._views.last_place and not reading.at_end:
            await reading.more()
        failure = self._driver.journal.failure
        if failure is not None and self._views.last_place == 0:
            raise failure

    def add_done_callback(self, callback: Callable[[RunHandle], object]) -> None:
        """Have `callback` called with this handle, soon, once the attempt is over."""
        self._driver.when_over(lambda: callback(self))

    async def cancel(self, reason: str = "canceled by the application") -> None:
        """Ask the run to end and await that it has.

        Code that is waiting is told at once; it gets half a second to clean up. A thread cannot be stopped
        and keeps its slot, but its result comes too late. A run that has ended stays as it is.
        """
        if not isinstance(reason, str):
            raise TypeError(f"a reason is a text, not {type(reason).__name__}")
        self._driver.stop(CancelRequested(reason=reason, principal=current_principal()))
        await self._driver.wait()

    async def spawn(self, agent: str, prompt: str) -> SubagentHandle:
        """Start an owned child on a task beside the run's own turns; gives its handle once it has started.

        It waits for a place where `max_concurrency` children are at work. The run does not wait for the
        child: ending cancels it. Raises `ToolRejectedError` for a child or task that cannot be,
        `ActionDeniedError`, `SubagentLimitError`, `ConfigurationError` for a durable run, and
        `TaskExecutionError` (`run_ended`) for one that is ending.
        """
        child = await spawn(self._driver, agent, prompt)
        return SubagentHandle(child, Views(child.journal, child.run_id, self._views.policy))

    async def raise_for_uncertain(self) -> None:
        """Raise `UncertainExecutionError` where the attempt ended with an effect that nobody knows."""
        failure = failure_of(self._driver, self._views)
        if isinstance(failure, UncertainExecutionError):
            raise failure

    async def outcome(self) -> Any:
        """Await the end and give the Python value of the output, or raise why there is none."""
        await self._driver.wait()
        failure = failure_of(self._driver, self._views)
        if failure is not None:
            raise failure
        return self._driver.live_result

    def __repr__(self) -> str:
        finished = self._driver.run.finished
        return f"<RunHandle {self.run_id} {finished.status if finished else 'running'}>"
