"""The loop that drives one run: decide, perform, append, until nothing is left to do.

Only the driver appends records of its run. A request to stop from elsewhere, be it a cancellation or a
deadline, is made of `stop`, which puts the reason into the list and breaks off whatever the driver waits for,
so that the order in the list says what came first.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

from protolink._core.budget import WARNING_SHARE
from protolink._core.machine import decide
from protolink._core.records import (
    ActionCanceled,
    BudgetExceeded,
    BudgetWarned,
    CancelRequested,
    ErrorInfo,
    Record,
    RunFailed,
    RunFinished,
    RunStarted,
    ToolRequest,
)
from protolink._core.state import ActionState, RecordRefused, RunState
from protolink._environment import Environment, Timer
from protolink._runtime.background import driving
from protolink._runtime.configuration import Configuration, Subagent
from protolink._runtime.journal import Journal
from protolink._runtime.keeping import Keeper
from protolink._runtime.pace import turn
from protolink._runtime.perform import perform
from protolink._runtime.request import Request
from protolink._runtime.scopes import Interrupted, Scope
from protolink._text import describe_error
from protolink.context import RunContext, narrow_request_context
from protolink.errors import DurableExecutionError
from protolink.llms.port import LLM, ToolDeclaration
from protolink.llms.prompt import WorkerDescription
from protolink.policy.policies import Policy

__all__ = ["Driver"]

_FAILURES_OF_A_RUN: Final = 3
_REFUSALS_IN_A_ROW: Final = 100
_STEPS_WITHOUT_A_PAUSE: Final = 64
"""Commands after which a run that never waits lets the event loop serve others."""


class Driver:
    """One run attempt and everything live that belongs to it."""

    __slots__ = (
        "_alarms",
        "_callbacks",
        "_ended",
        "_shared_context",
        "_since",
        "_stop_record",
        "_waiting",
        "approval_handler",
        "arguments",
        "background",
        "cause",
        "children",
        "configuration",
        "context",
        "depth_left",
        "ending",
        "environment",
        "failed_child",
        "fallbacks",
        "journal",
        "keeper",
        "lineage",
        "live_result",
        "llm",
        "offered",
        "on_finish",
        "owns_llm",
        "parent",
        "places",
        "policies",
        "run",
        "run_id",
        "scope",
        "spawned",
        "task",
        "tool_choice",
        "validator",
        "variables",
        "workers_offered",
    )

    def __init__(
        self,
        configuration: Configuration,
        context: RunContext,
        journal: Journal,
        environment: Environment,
        parent: Driver | None = None,
    ) -> None:
        limits = configuration.subagent_limits
        self.configuration: Configuration = configuration
        self.parent: Driver | None = parent
        self.policies: tuple[Policy, ...] = configuration.policies
        self.approval_handler = configuration.approval_handler
        self.lineage: tuple[object, ...] = (configuration.owner,)
        self.depth_left: int = limits.max_depth
        if parent is not None:
            # What the ancestors impose holds below them; a child can only narrow it.
            self.policies = parent.policies + configuration.policies
            self.approval_handler = parent.approval_handler or configuration.approval_handler
            self.lineage = (*parent.lineage, configuration.owner)
            self.depth_left = min(parent.depth_left - 1, limits.max_depth)
        self.places: asyncio.Semaphore = asyncio.Semaphore(limits.max_concurrency)
        self.children: dict[str, Driver] = {}
        """Child runs at work, by the action that delegated to them."""

        self.background: dict[str, asyncio.Task[None]] = {}
        """Delegations beside the turns, by action."""

        self.spawned: list[Driver] = []
        """Every child that was started in the background, in order."""

        self.failed_child: Driver | None = None
        """The child whose failure is this run's."""

        self.ending: bool = False
        """Whether the run only waits for its children to stop."""

        self.keeper: Keeper | None = configuration.keeper
        """The stores that the run reads its conversation from and leaves its results in."""

        self.variables: contextvars.Context = contextvars.copy_context()
        """The context variables of the moment when the run was started, private request values among them."""

        self.context: RunContext = context
        self.journal: Journal = journal
        self.environment: Environment = environment
        self.run_id: str = context.run_id
        self.scope: Scope = Scope(environment)
        self.run: RunState
        self.llm: LLM | None = None
        """Bound on the first model command of the attempt; the one that it was routed to."""

        self.owns_llm: bool = False
        """Whether the model was made for this attempt from a specification that a factory gave."""

        self.fallbacks: tuple[LLM, ...] = ()
        """The models that are asked when that one fails, in order."""

        self.tool_choice: Callable[[int], str] | None = None
        """What the run says about the use of tools, where it is a function and so cannot be stored."""

        self.offered: tuple[ToolDeclaration, ...] | None = None
        """The tools of the current turn, where a hook left some out."""

        self.workers_offered: tuple[WorkerDescription, ...] | None = None
        """The workers and peers that the model is told of, from the first turn of the attempt on."""

        self.arguments: dict[str, dict[str, Any]] = {}
        """Validated Python arguments by action, until their action ends."""

        self.validator: Callable[[Any], tuple[Any, Any]] | None = None
        """Turns a reply into the answer that was asked for, as JSON and as a value, or raises `ValueError`."""

        self.live_result: Any = None
        """The Python value behind the last output, for a caller in this process."""

        self.cause: BaseException | None = None
        """The exception behind the first stopping fact, for a caller in this process."""

        self.on_finish: Callable[[Driver], None] | None = None
        """Told when the attempt is over, before those who wait for it are."""

        self.task: asyncio.Task[None] | None = None
        self._ended = False
        self._waiting: list[asyncio.Future[None]] = []
        self._callbacks: list[Callable[[], object]] = []
        self._shared_context: RunContext | None = None
        self._stop_record: Record | None = None
        self._alarms: list[Timer] = []
        """What is due before the run's deadline, and the deadline itself."""

        self._since = environment.monotonic()

    def start(self, record: RunStarted) -> None:
        """Note that the run exists; it is stored before the first thing that the run does."""
        self.journal.note(self.run_id, record)
        self.run = self.journal.tree.runs[self.run_id]

    def launch(self) -> None:
        """Drive the run in a task of its own, with the context variables that it was started with."""
        name = f"protolink run {self.run_id}"
        self.task = asyncio.get_running_loop().create_task(self.drive(), name=name, context=self.variables)
        self.task.add_done_callback(self._never_driven)

    def _never_driven(self, task: asyncio.Task[None]) -> None:
        """A task that was canceled before its first turn has done nothing; whoever waits for it must learn that."""
        if self._ended:
            return
        requested = CancelRequested(reason="the task that drives the run was canceled before it began")
        if self.journal.lease is not None:
            # The run is stored and may have come a long way, so its end, and giving the lease back, take a task.
            self.stop(requested)
            self.launch()
            return
        self.journal.note(self.run_id, requested)
        for action_id, action in tuple(self.run.actions.items()):
            if action.is_open:
                self.journal.note(self.run_id, ActionCanceled(action_id=action_id))
        self.journal.note(self.run_id, RunFinished(status="canceled", reason=requested.reason))
        if self.parent is None:
            self.journal.close()
        self._finish()

    def child(self, worker: Subagent, request: Request, action_id: str) -> Driver:
        """Start a child run in the same list, on behalf of the action `action_id`."""
        child = Driver(worker.configuration(), request.context, self.journal, self.environment, self)
        child.variables = self.variables.copy()
        child.variables.run(narrow_request_context)
        child.keeper = None  # what a child says belongs to its parent's report, and to no session of its own
        child.start(
            RunStarted(
                task=request.task,
                agent_name=child.configuration.agent_name,
                work=child.configuration.resolve(request.work),
                context=request.context.to_dict(),
                principal=self.run.started.principal,
                parent_action_id=action_id,
                delegation_id=action_id,
                durable=self.journal.durable,
                slice_steps=child.configuration.slice_steps,
            )
        )
        child.launch()
        return child

    def revive(self, action: ActionState, run_id: str) -> Driver:
        """Drive a child run of an earlier attempt on."""
        run = self.journal.tree.runs[run_id]
        worker = self.configuration.subagents[action.proposal.name]
        context = RunContext.from_dict(run.started.context)
        child = Driver(worker.configuration(), context, self.journal, self.environment, self)
        child.variables = self.variables.copy()
        child.variables.run(narrow_request_context)
        child.keeper = None
        child.run = run
        self.children[action.proposal.action_id] = child
        child.launch()
        return child

    def take_failure(self, child: Driver) -> None:
        """A child's failure is this run's, with the same cause."""
        self.failed_child = self.failed_child or child
        if child.cause is not None:
            self.keep_cause(child.cause)

    def stop_children(self, reason: str) -> None:
        """Tell every child that is at work to stop."""
        for child in tuple(self.children.values()):
            child.stop(CancelRequested(reason=reason))

    def append(self, *records: Record) -> Awaitable[None]:
        """Add records of this run to the list."""
        return self.journal.append(self.run_id, *records)

    def seconds_since(self, began: float) -> float:
        """Seconds since a moment of the monotonic clock, to the microsecond: what is below it is noise, and stored."""
        return round(self.environment.monotonic() - began, 6)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the attempt began."""
        return self.seconds_since(self._since)

    @property
    def tree_seconds(self) -> float:
        """Seconds that the whole tree has worked, earlier attempts included."""
        root = self
        while root.parent is not None:
            root = root.parent
        return self.journal.tree.seconds + root.elapsed_seconds

    @property
    def shared_context(self) -> RunContext:
        """A copy of the run's context for the application's code; what that code changes in it changes no run."""
        if self._shared_context is None:
            self._shared_context = self.context.copy()
        return self._shared_context

    @property
    def canceled(self) -> bool:
        """Whether the attempt was told to stop."""
        return self.scope.stopped

    @property
    def reason(self) -> str | None:
        """Why it was told to stop."""
        record = self._stop_record
        return record.reason if isinstance(record, CancelRequested) else None

    def remaining_seconds(self) -> float | None:
        """Seconds until the run's deadline, or None where it has none."""
        if self.parent is not None:
            return self.parent.remaining_seconds()
        limit = self.run.budget.max_runtime_seconds
        return None if limit is None else max(0.0, limit - self.tree_seconds)

    def stop(self, record: CancelRequested | BudgetExceeded) -> None:
        """Break off whatever the run waits for. The first reason counts; a run that has ended ignores it."""
        if self._stop_record is None and not self.run.at_rest:
            self._stop_record = record
            # Before the children record theirs: a process that dies in between must not leave a run whose
            # children were canceled for no reason.
            with suppress(RecordRefused):
                self.journal.note(self.run_id, record)
            self.scope.interrupt()
            self.stop_children(self.reason or "the parent run reached its deadline")

    async def record_ending(self, action_id: str, ending: Record) -> None:
        """Append an action's outcome. One that comes too late is refused, and the action counts as canceled."""
        try:
            await self.append(ending)
        except RecordRefused:
            await self.append(ActionCanceled(action_id=action_id))

    async def fail(self, code: str, message: str, cause: BaseException | None = None) -> None:
        """Record why the run cannot go on, and keep the live exception for a caller in this process."""
        if cause is not None:
            self.keep_cause(cause)
        kind = "" if cause is None else type(cause).__name__
        await self.append(RunFailed(error=ErrorInfo(code=code, message=message, type=kind)))

    def keep_cause(self, error: BaseException) -> None:
        """Remember the first exception that a caller in this process should see as the cause."""
        if self.cause is None:
            self.cause = error

    def keep_cause_of_direct(self, error: BaseException) -> None:
        """The same for a rejection, which is the cause only where the application asked for the tool itself."""
        if isinstance(self.run.work, ToolRequest):
            self.keep_cause(error)

    async def drive(self) -> None:
        """Drive the run to its end. Never raises, but for a cancellation from outside, which it honours last."""
        limit = self.run.budget.max_runtime_seconds
        if limit is not None and self.parent is None:
            self._set_alarms(limit)
        token = driving.set(self)
        canceled: asyncio.CancelledError | None = None
        failures = 0
        try:
            while not self.run.at_rest and self.journal.broken is None:
                try:
                    await self._work()
                except asyncio.CancelledError as error:
                    canceled = error
                    failures += 1
                    self.stop(CancelRequested(reason="the task that drives the run was canceled"))
                except DurableExecutionError as error:
                    if error is not self.journal.broken:
                        raise
                    await self._abandon()
                except Exception as error:  # ours: a run must end, whatever went wrong
                    failures += 1
                    try:
                        await self._fail_unexpectedly(error, for_good=failures > _FAILURES_OF_A_RUN)
                    except DurableExecutionError:
                        await self._abandon()
        finally:
            for alarm in self._alarms:
                alarm.cancel()
            self.arguments.clear()
            self.task = None
            try:
                if self.parent is None:
                    await self.journal.end()
                if self.keeper is not None:
                    await self.keeper.keep(self)
                if self.owns_llm:
                    await self._close_llm()
            finally:
                # The context belongs to the driver: what it holds of him would be freed by the garbage collector only.
                driving.reset(token)
                self._finish()
        if canceled is not None:
            raise canceled

    def _set_alarms(self, limit: float) -> None:
        exceeded = BudgetExceeded(limit="max_runtime_seconds", allowed=limit, used=limit)
        left = limit - self.journal.tree.seconds
        if left <= 0:
            self.stop(exceeded)
            return
        later = self.environment.call_later
        self._alarms = [
            later(max(0.0, left - limit * (1 - WARNING_SHARE)), lambda: self._warn_of_deadline(limit)),
            later(left, lambda: self.stop(exceeded)),
        ]

    def _warn_of_deadline(self, limit: float) -> None:
        warned = BudgetWarned(limit="max_runtime_seconds", allowed=limit, used=self.tree_seconds)
        with suppress(RecordRefused):  # it has ended, or an earlier attempt was warned
            self.journal.note(self.run_id, warned)

    async def _close_llm(self) -> None:
        """Give back what a model holds that nobody else knows of."""
        scope = Scope(self.environment)
        for llm in (self.llm, *self.fallbacks):
            if llm is not None:
                with suppress(Exception):  # the provider's: the run has its outcome, whatever closing makes of it
                    await scope.call(llm.aclose())

    async def _abandon(self) -> None:
        """The log takes nothing more: stop what is at work and leave the run to be taken up again."""
        self.scope.interrupt()
        self.stop_children("the execution store failed")
        for child in tuple(self.children.values()):
            await child.wait()

    async def wait(self) -> None:
        """Await the end of the attempt."""
        if not self._ended:
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def when_over(self, callback: Callable[[], object]) -> None:
        """Have something called, soon, once the attempt is over."""
        if self._ended:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._callbacks.append(callback)

    def _finish(self) -> None:
        """Tell everybody that the attempt is over."""
        self._ended = True
        if self.on_finish is not None:
            self.on_finish(self)
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()
        for callback in self._callbacks:
            asyncio.get_running_loop().call_soon(callback)
        self._callbacks.clear()

    async def _work(self) -> None:
        tree, run = self.journal.tree, self.run
        performed = refused = 0
        waiting = turn()
        if waiting is not None:
            await waiting
        if self.parent is None:
            await self.journal.begin()
        if self.keeper is not None:
            await self.keeper.prepare(self)
        while True:
            command = decide(tree, run)
            if command is None:
                return
            try:
                await perform(self, command)
            except Interrupted:
                continue  # the reason is in the list
            except RecordRefused:
                # Something else took what this command was decided on; the next decision sees that.
                refused += 1
                if refused > _REFUSALS_IN_A_ROW:
                    raise
                continue
            refused = 0
            performed += 1
            if performed % _STEPS_WITHOUT_A_PAUSE == 0:
                await asyncio.sleep(0)

    async def _fail_unexpectedly(self, error: Exception, *, for_good: bool) -> None:
        """Record a fault of our own as the run's failure; `for_good` when even ending properly does not work."""
        self.keep_cause(error)
        info = ErrorInfo(code="internal_error", message=describe_error(error), type=type(error).__name__)
        if self.run.stop is None:
            await self.append(RunFailed(error=info))
        elif for_good:
            self.run.actions.clear()
            self.run.background.clear()
            await self.append(RunFinished(status="failed", error=info))
