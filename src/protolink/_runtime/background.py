"""Workers beside the turns: started by the application or by the model, awaited or stopped one by one."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from protolink._core.machine import Ask, Deny, Judge, Prepare
from protolink._core.records import (
    ActionDenied,
    ActionFailed,
    ActionRejected,
    BackgroundProposed,
    CancelRequested,
    Proposal,
)
from protolink._core.state import ActionState, RecordRefused
from protolink._runtime.perform.approval import ask, deny
from protolink._runtime.perform.delegate import delegate
from protolink._runtime.perform.judge import judge
from protolink._runtime.perform.prepare import prepare
from protolink._runtime.scopes import Interrupted
from protolink.errors import (
    ActionDeniedError,
    ConfigurationError,
    SubagentLimitError,
    TaskExecutionError,
    ToolRejectedError,
)
from protolink.tools.tool import Tool

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["BACKGROUND_TOOL_NAMES", "background_tools", "driving", "spawn"]

driving: ContextVar[Driver] = ContextVar("protolink_driving")
"""The run that the current code works for; set by its driver."""


async def spawn(driver: Driver, agent: str, prompt: str) -> Driver:
    """Start a worker beside the turns of `driver` and give its run, once it has started.

    It walks the road of every action: validated, judged, approved, recorded. Raises `ToolRejectedError` for
    a worker or task that cannot be, `ActionDeniedError`, `SubagentLimitError` beyond the depth, and
    `TaskExecutionError` (`run_ended`) for a run that is ending.
    """
    if driver.journal.durable:
        raise ConfigurationError("a durable run starts no workers in the background; delegate and wait instead")
    action_id = f"{driver.run_id}.{driver.run.action_count + 1}"
    try:
        await driver.append(
            BackgroundProposed(
                proposal=Proposal(action_id=action_id, call_id=action_id, agent=agent, args={"task": prompt})
            )
        )
    except RecordRefused as refused:
        raise TaskExecutionError(str(refused), code="run_ended") from None
    action = driver.run.background[action_id]
    await _authorize(driver, action)
    _raise_for_ending(action)
    started = asyncio.get_running_loop().create_future()
    driver.background[action_id] = asyncio.create_task(_work(driver, action, started))
    child: Driver | None = await started
    if child is None:
        raise TaskExecutionError("the run ended before the worker could start", code="run_ended")
    return child


async def _authorize(driver: Driver, action: ActionState) -> None:
    action_id = action.proposal.action_id
    await prepare(driver, Prepare(action_id))
    if action.stage == "prepared":
        await judge(driver, Judge(action_id))
    if action.stage == "asking":
        await ask(driver, Ask((action_id,)))
    if action.stage == "declined":
        await deny(driver, Deny(action_id))


def _raise_for_ending(action: ActionState) -> None:
    match action.ending:
        case ActionRejected() as rejected:
            raise ToolRejectedError(
                rejected.message, code=rejected.code, details=rejected.details, suggestion=rejected.suggestion
            )
        case ActionDenied(reason=reason):
            raise ActionDeniedError(reason, action_id=action.proposal.action_id)
        case ActionFailed(error=error) if error.code == "subagent_limit":
            raise SubagentLimitError(error.message)
        case ActionFailed(error=error):
            raise ConfigurationError(error.message)
        case _:
            pass


async def _work(driver: Driver, action: ActionState, started: asyncio.Future[Driver | None]) -> None:
    try:
        await delegate(driver, action, started)
    except (Interrupted, RecordRefused):
        pass  # the run ended while the worker waited for its place; closing the action says so
    finally:
        if not started.done():
            started.set_result(None)


def background_tools() -> tuple[Tool, ...]:
    """The tools by which a model starts, awaits and stops workers itself."""
    return (
        Tool(_spawn, name="spawn_subagent", repeatable=True),
        Tool(_wait, name="wait_subagent", repeatable=True),
        Tool(_cancel, name="cancel_subagent", repeatable=True),
    )


BACKGROUND_TOOL_NAMES: Final = frozenset({"spawn_subagent", "wait_subagent", "cancel_subagent"})


async def _spawn(agent: str, prompt: str) -> dict[str, Any]:
    """Start an agent on a task and go on; its child_id is for wait_subagent and cancel_subagent.

    Args:
        agent: The agent's name.
        prompt: The assignment, complete in itself.
    """
    child = await spawn(driving.get(), agent, prompt)
    return {"child_id": child.run_id, "agent": agent}


async def _wait(child_id: str) -> dict[str, Any]:
    """Wait for an agent that was started with spawn_subagent and get its result.

    Args:
        child_id: What spawn_subagent returned.
    """
    child = _child(child_id)
    await child.wait()
    finished = child.run.finished
    outputs = child.run.outputs
    return {
        "child_id": child_id,
        "status": "unknown" if finished is None else finished.status,
        "output": outputs[-1] if outputs else None,
        "error": None if finished is None or finished.error is None else finished.error.message,
    }


async def _cancel(child_id: str) -> dict[str, Any]:
    """Stop an agent that was started with spawn_subagent.

    Args:
        child_id: What spawn_subagent returned.
    """
    child = _child(child_id)
    child.stop(CancelRequested(reason="canceled by the parent's model"))
    await child.wait()
    return {"child_id": child_id, "status": "canceled"}


def _child(child_id: str) -> Driver:
    for child in driving.get().spawned:
        if child.run_id == child_id:
            return child
    raise ToolRejectedError("There is no child with this id; nothing was changed.", code="unknown_child")
