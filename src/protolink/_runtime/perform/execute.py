"""Running authorized actions, each once, and recording which ending it had."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from protolink._core.machine import Execute, Repeat
from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionFailed,
    ActionPrepared,
    ActionRejected,
    ActionRepeated,
    ActionStarted,
    ActionUncertain,
    ErrorInfo,
    ProgressReported,
    Record,
    ToolRequest,
)
from protolink._core.state import ActionState, RecordRefused
from protolink._environment import iso
from protolink._json import canonical, render
from protolink._runtime.perform.approval import approval_request, policy_decision
from protolink._runtime.perform.delegate import delegate
from protolink._runtime.perform.judge import prepared_action
from protolink._runtime.perform.peer import ask_peer
from protolink._runtime.scopes import PASSING, InnerCancellation, Interrupted, TimedOut, enter
from protolink._text import describe_error
from protolink.action import action_fingerprint, running
from protolink.errors import ToolRejectedError, UncertainExecutionError
from protolink.policy.approvals import ApprovalDecision
from protolink.tools.execution import Authorization, ToolExecution
from protolink.tools.prepared import PreparedTool
from protolink.tools.question import QuestionTool
from protolink.tools.tool import BaseTool, Tool

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["execute", "repeat"]

MAX_PROGRESS_EVENTS = 1000
"""Progress events of one action; later ones are dropped, and the last one says so."""


async def execute(driver: Driver, command: Execute) -> None:
    """Run one action, or several that only read side by side."""
    if len(command.action_ids) == 1:
        await _execute_one(driver, command.action_ids[0])
        return
    outcomes = await asyncio.gather(
        *(_execute_one(driver, action_id) for action_id in command.action_ids), return_exceptions=True
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and not isinstance(outcome, RecordRefused):
            raise outcome


async def repeat(driver: Driver, command: Repeat) -> None:
    """Record that the observation of an identical call is given again."""
    prepared = driver.run.action(command.action_id).prepared
    arguments = {} if prepared is None else prepared.arguments
    await driver.append(ActionRepeated(action_id=command.action_id, repeat_of=command.repeat_of, arguments=arguments))


async def _execute_one(driver: Driver, action_id: str) -> None:
    action = driver.run.action(action_id)
    prepared = action.prepared
    if prepared is None:
        raise TypeError("only a prepared action is executed")
    if (
        action_fingerprint(prepared.kind, prepared.name, prepared.payload, prepared.capabilities)
        != prepared.fingerprint
    ):
        await driver.fail("action_changed", f"the operation of {prepared.name!r} is not the one that was authorized")
        return
    if action.has_child_run:
        await delegate(driver, action)
        return
    if action.proposal.kind == "agent.call":
        await ask_peer(driver, action, prepared)
        return
    tool = driver.configuration.tools[prepared.tool]
    values = driver.arguments.pop(action_id, None)
    if values is None:  # prepared by an earlier attempt
        values = tool.arguments.validate(canonical(prepared.arguments))
    await driver.append(ActionStarted(action_id=action_id))
    began = driver.environment.monotonic()
    call = _Call(driver, action, prepared, tool)
    ending: Record
    try:
        result = await call.run(values)
    except Interrupted as interrupted:
        ending = _broken_off(interrupted, call, driver.seconds_since(began))
    except ToolRejectedError as error:
        driver.keep_cause_of_direct(error)
        ending = ActionRejected(
            action_id=action_id,
            phase="execution",
            code=error.code,
            message=error.message,
            details=error.details,
            suggestion=error.suggestion,
            arguments=prepared.arguments,
            seconds=driver.seconds_since(began),
        )
    except UncertainExecutionError as error:
        driver.keep_cause(error)
        seconds = driver.seconds_since(began)
        ending = ActionUncertain(action_id=action_id, reason=describe_text(error), seconds=seconds)
    except PASSING:
        raise
    except BaseException as error:  # the tool's own, SystemExit and StopIteration included
        ending = _failed(driver, tool, action_id, error, driver.seconds_since(began))
    else:
        rendered, changed = render(result)
        seconds = driver.seconds_since(began)
        ending = ActionCompleted(action_id=action_id, result=rendered, rendered=changed, seconds=seconds)
        if isinstance(driver.run.work, ToolRequest):
            driver.live_result = result
    call.ended = True
    await driver.record_ending(action_id, ending)


def describe_text(error: BaseException) -> str:
    """An exception's own words, without the name of its class."""
    return describe_error(error).removeprefix(f"{type(error).__name__}: ")


def _failed(driver: Driver, tool: BaseTool, action_id: str, error: BaseException, seconds: float) -> ActionFailed:
    observed = tool.on_error == "observe" and isinstance(error, Exception)
    if not observed:
        driver.keep_cause(error)
    cause: BaseException = error.__cause__ if isinstance(error, InnerCancellation) and error.__cause__ else error
    what = str(error) if isinstance(error, InnerCancellation) else describe_error(error)
    message = f"tool {tool.name!r} failed: {what}"
    info = ErrorInfo(code="tool_failed", message=message, type=type(cause).__name__)
    return ActionFailed(action_id=action_id, error=info, observed=observed, seconds=seconds)


def _broken_off(interrupted: Interrupted, call: _Call, seconds: float) -> Record:
    """A wait that was broken off: because the run was stopped, or because the tool took too long."""
    action_id = call.prepared.action_id
    if not isinstance(interrupted, TimedOut):
        return ActionCanceled(action_id=action_id, unsettled=interrupted.unsettled, seconds=seconds)
    limit = call.tool.timeout_seconds
    message = f"tool {call.tool.name!r} took longer than its {limit:g} seconds"
    if interrupted.unsettled and not (call.tool.read_only or call.tool.idempotent):
        return ActionUncertain(action_id=action_id, reason=f"{message} and is still running", seconds=seconds)
    info = ErrorInfo(code="tool_timeout", message=message, type="TimeoutError")
    return ActionFailed(action_id=action_id, error=info, observed=call.tool.on_error == "observe", seconds=seconds)


class _Call:
    """One entered action: calls its code in the right place and lets it report progress."""

    __slots__ = ("_action", "_driver", "_events", "_loop", "_since", "ended", "prepared", "tool")

    def __init__(self, driver: Driver, action: ActionState, prepared: ActionPrepared, tool: BaseTool) -> None:
        self._driver = driver
        self._action = action
        self.prepared = prepared
        self.tool = tool
        self.ended = False
        self._events = 0
        self._since = driver.environment.monotonic()
        self._loop = asyncio.get_running_loop()

    async def run(self, values: dict[str, Any]) -> Any:
        driver, tool = self._driver, self.tool
        execution = ToolExecution(
            authorize=self._authorization,
            emit=self._emit,
            remaining=self._remaining,
            cancellation=driver,
            context=driver.shared_context,
            task_id=driver.run.started.task_id,
        )
        token = running.set(execution)
        try:
            if isinstance(tool, PreparedTool):
                return await driver.scope.call(enter(tool.execute, execution), tool.timeout_seconds)
            if isinstance(tool, QuestionTool):
                reply = self._action.reply
                return None if reply is None else reply.answer
            if not isinstance(tool, Tool):
                raise TypeError(f"tool {tool.name!r} has no code of its own to run")
            if not tool.is_async and driver.configuration.runs_in_thread(tool):
                call = driver.configuration.workers.call(tool.func, **values)
                result = await driver.scope.call_in_thread(call, tool.timeout_seconds)
            else:
                result = enter(tool.func, **values)
            if hasattr(result, "__await__"):
                return await driver.scope.call(result, tool.timeout_seconds)
            return result
        finally:
            running.reset(token)

    def _authorization(self) -> Authorization:
        action, judged = self._action, self._action.judged
        if judged is None:
            raise TypeError("only a judged action is executed")
        now = self._driver.environment.now()
        request = approval_request(self._driver, action) if action.request_id is not None else None
        answer = action.answer
        decision = None
        if answer is not None:
            decision = ApprovalDecision(
                approved=answer.approved,
                request_id=answer.request_id,
                reason=answer.reason,
                decided_by=answer.decided_by,
            )
        return Authorization(
            action=prepared_action(action),
            policy_decision=policy_decision(judged),
            approval_request=request,
            approval_decision=decision,
            authorized_at=iso(now),
        )

    def _remaining(self) -> float | None:
        left = self._driver.remaining_seconds()
        limit = self.tool.timeout_seconds
        if limit is None:
            return left
        own = max(0.0, limit - (self._driver.environment.monotonic() - self._since))
        return own if left is None else min(own, left)

    def _emit(self, event_type: str, payload: dict[str, Any]) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._note(event_type, payload)
        else:
            self._loop.call_soon_threadsafe(self._note, event_type, payload)

    def _note(self, event_type: str, payload: dict[str, Any]) -> None:
        self._events += 1
        if self.ended or self._events > MAX_PROGRESS_EVENTS:
            return
        if self._events == MAX_PROGRESS_EVENTS:
            payload = {**payload, "truncated": True}
        try:
            self._driver.journal.note(
                self._driver.run_id,
                ProgressReported(action_id=self.prepared.action_id, type=event_type, payload=payload),
            )
        except RecordRefused:
            return  # the run was stopped; nobody is interested any more
