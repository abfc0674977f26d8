"""Delegation: an owned worker does the work as a child run in the same list."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionFailed,
    ActionPrepared,
    ActionRejected,
    ActionRepeated,
    ActionStarted,
    ActionUncertain,
    AttemptEnded,
    CancelRequested,
    DelegationSuspended,
    ErrorInfo,
    Proposal,
    Record,
    RunPaused,
    ToolRequest,
)
from protolink._core.state import ActionState, call_key
from protolink._json import canonical, render
from protolink._record import command
from protolink._runtime.perform.peer import CAPABILITY as PEER_CAPABILITY
from protolink._runtime.perform.peer import find_peer, may_ask_peers
from protolink._runtime.request import prompt_request, tool_request
from protolink._runtime.scopes import Interrupted
from protolink._text import visible
from protolink.action import action_fingerprint
from protolink.card import AgentCard
from protolink.tools.arguments import Arguments, ArgumentsError
from protolink.tools.tool import BaseTool
from protolink.tools.worker import ObjectArguments, TaskArguments, WorkerTool

if TYPE_CHECKING:
    from protolink._runtime.configuration import Configuration
    from protolink._runtime.driver import Driver

__all__ = ["CAPABILITY", "attend", "delegate", "prepare_delegation", "start_child"]

CAPABILITY = "agent.delegate"
_TASK = TaskArguments()
_OBJECT = ObjectArguments()


async def prepare_delegation(driver: Driver, proposal: Proposal) -> None:
    """Record the exact delegation, or why there is none."""
    addressee = await _addressee(driver, proposal)
    if not isinstance(addressee, _Addressee):
        await driver.append(addressee)
        return
    arguments: Any = proposal.args
    if isinstance(driver.run.work, ToolRequest):
        arguments, _ = render(arguments)
    text = canonical(arguments)
    try:
        addressee.checks.validate(text)
    except ArgumentsError as error:
        await driver.append(_invalid(proposal, error))
        return
    found = driver.run.succeeded.get(call_key(proposal.target, text))
    if found is not None and proposal.action_id in driver.run.actions:
        await driver.append(ActionRepeated(action_id=proposal.action_id, repeat_of=found[0], arguments=arguments))
        return
    await driver.append(_prepared(driver, proposal, arguments, addressee))


@command
class _Addressee:
    """Whose work it would be, and what checks the arguments."""

    checks: Arguments
    tool: BaseTool | None = None
    """The owned worker's tool, if one is meant."""

    peer: AgentCard | None = None


async def _addressee(driver: Driver, proposal: Proposal) -> _Addressee | Record:
    """Who is addressed, or why nobody is: an owned worker first, and else a peer."""
    worker = driver.configuration.subagents.get(proposal.agent or "")
    refused = _refused(driver, proposal, worker)
    if refused is not None:
        return refused
    if worker is not None:
        return _addressed(proposal, worker.configuration())
    if not may_ask_peers(driver, proposal):
        return _unknown_worker(driver, proposal)
    found = await find_peer(driver, proposal)
    if isinstance(found, ActionRejected):
        return found
    return _Addressee(checks=_TASK if proposal.tool is None else _OBJECT, peer=found)


def _refused(driver: Driver, proposal: Proposal, worker: object | None) -> Record | None:
    """What keeps this delegation from happening, wherever it leads; None where nothing does."""
    facade = driver.configuration.tools.get(proposal.facade) if proposal.facade is not None else None
    if isinstance(facade, WorkerTool) and facade.worker is not worker:
        return _failed(
            proposal,
            "worker_changed",
            f"worker declaration {facade.name!r} stands for a child that is no longer registered; "
            "register a new declaration for the present one",
        )
    if worker is not None and driver.depth_left <= 0:
        return _failed(proposal, "subagent_limit", f"delegating to {proposal.agent!r} would go deeper than max_depth")
    if worker is not None and worker in driver.lineage:
        return _failed(
            proposal, "subagent_limit", f"{proposal.agent!r} is at work above this run and cannot be its child"
        )
    limit = driver.configuration.subagent_limits.max_children
    if driver.run.delegations >= limit:
        return ActionRejected(
            action_id=proposal.action_id,
            phase="validation",
            code="too_many_children",
            message=f"This run has started its {limit} children; nothing was executed.",
            suggestion="Work with what the children have returned.",
        )
    return None


def _failed(proposal: Proposal, code: str, message: str) -> ActionFailed:
    return ActionFailed(action_id=proposal.action_id, error=ErrorInfo(code=code, message=message))


def _unknown_worker(driver: Driver, proposal: Proposal) -> ActionRejected:
    return ActionRejected(
        action_id=proposal.action_id,
        phase="validation",
        code="unknown_worker",
        message="There is no worker of this name; nothing was executed.",
        details={"available": sorted(driver.configuration.subagents)[:50]},
    )


def _addressed(proposal: Proposal, configuration: Configuration) -> _Addressee | Record:
    """The owned worker's tool, or its model, or why there is neither."""
    if proposal.tool is None:
        if configuration.has_model:
            return _Addressee(checks=_TASK)
        return _no(proposal, "no_inference", "This worker has no model; use one of its tools.", configuration)
    tool = configuration.tools.get(proposal.tool)
    if tool is None:
        message = "The worker has no tool of this name; nothing was executed."
        return _no(proposal, "unknown_tool", message, configuration)
    return _Addressee(checks=tool.arguments, tool=tool)


def _no(proposal: Proposal, code: str, message: str, configuration: Configuration) -> ActionRejected:
    return ActionRejected(
        action_id=proposal.action_id,
        phase="validation",
        code=code,
        message=message,
        details={"available": sorted(configuration.tools)[:50]},
    )


def _invalid(proposal: Proposal, error: ArgumentsError) -> ActionRejected:
    return ActionRejected(
        action_id=proposal.action_id,
        phase="validation",
        code="invalid_arguments",
        message=f"The arguments do not fit the schema of {proposal.said}: {error}",
        details={"problems": [{"path": problem.path, "message": problem.message} for problem in error.problems]},
        suggestion="Send arguments that fit the declared schema.",
    )


def _prepared(driver: Driver, proposal: Proposal, arguments: dict[str, Any], addressee: _Addressee) -> ActionPrepared:
    tool, peer = addressee.tool, addressee.peer
    direct = isinstance(driver.run.work, ToolRequest)
    name = proposal.name
    payload: dict[str, Any] = {"type": "agent_call", "agent": name}
    if proposal.tool is None:
        payload.update(action="infer", prompt=arguments["task"])
    else:
        payload.update(action="tool_call", tool=proposal.tool, args=arguments)
    capabilities: tuple[str, ...] = (CAPABILITY,)
    description = ""
    if peer is not None:
        # What is judged, approved and asked is this address, whatever the name stands for by then.
        payload["url"] = peer.url
        capabilities = tuple(sorted((CAPABILITY, PEER_CAPABILITY)))
        description = f"ask agent {visible(name, limit=100)} at {visible(peer.url or '', limit=300)}"
    return ActionPrepared(
        action_id=proposal.action_id,
        kind="agent.call",
        name=name,
        tool=proposal.target,
        arguments=arguments,
        payload=payload,
        capabilities=capabilities,
        fingerprint=action_fingerprint("agent.call", name, payload, capabilities),
        description=description,
        read_only=tool is not None and tool.read_only,
        repeatable=tool is not None and tool.repeatable,
        public=direct or driver.configuration.expose_tool_results,
        hooked=not direct and bool(driver.configuration.after_tool) and proposal.action_id in driver.run.actions,
    )


async def delegate(driver: Driver, action: ActionState, started: asyncio.Future[Driver | None] | None = None) -> None:
    """Run the child to its end and record which ending the delegation had; `started` learns of its beginning."""
    action_id = action.proposal.action_id
    if driver.places.locked():
        # Interrupted while it waits for a place: the action was never entered, and closing it says so.
        await driver.scope.call(driver.places.acquire())
    else:
        await driver.places.acquire()
    try:
        if driver.ending:
            raise Interrupted(unsettled=False)  # the run has ended meanwhile; nobody would stop this child
        await driver.append(ActionStarted(action_id=action_id))
        child = start_child(driver, action)
        if started is not None:
            driver.spawned.append(child)
            started.set_result(child)
        await attend(driver, action, child)
    finally:
        driver.places.release()
    stop = driver.run.stop
    # A child that is only suspended ends no work: the others go on to their own end, for the run will go on as well.
    if stop is not None and not driver.ending and not isinstance(stop.record, DelegationSuspended):
        driver.stop_children("the run that delegated this work is ending")


async def attend(driver: Driver, action: ActionState, child: Driver) -> None:
    """Await the end of a child's attempt and record what it is for the delegation."""
    action_id = action.proposal.action_id
    began = driver.environment.monotonic()
    await child.wait()
    driver.children.pop(action_id, None)
    if driver.journal.broken is not None:
        raise driver.journal.broken
    if child.run.finished is None and isinstance(child.run.rest, RunPaused):
        return  # the delegation stays open, and this run pauses as well
    if child.run.finished is None and isinstance(child.run.rest, AttemptEnded):
        driver.take_failure(child)
        await driver.append(DelegationSuspended(action_id=action_id, error=child.run.rest.error))
        return
    await driver.record_ending(action_id, _ending(driver, action_id, child, driver.seconds_since(began)))


def start_child(driver: Driver, action: ActionState) -> Driver:
    """Start the run that an authorized delegation stands for."""
    proposal, prepared = action.proposal, action.prepared
    if prepared is None:
        raise TypeError("only a prepared delegation is started")
    context = driver.context.child(driver.configuration.agent_name)
    if proposal.tool is None:
        request = prompt_request(prepared.payload["prompt"], context)
    else:
        request = tool_request(proposal.tool, prepared.arguments, context)
    child = driver.child(driver.configuration.subagents[proposal.name], request, proposal.action_id)
    driver.children[proposal.action_id] = child
    if driver.scope.stopped:
        child.stop(CancelRequested(reason=driver.reason or "the parent run was stopped"))
    return child


def _ending(driver: Driver, action_id: str, child: Driver, seconds: float) -> Record:
    """What the child's end is for its parent: the same thing, with the same reason."""
    finished, stop = child.run.finished, child.run.stop
    if finished is None or finished.status == "canceled":
        if driver.run.stop is not None or driver.scope.stopped or driver.ending:
            return ActionCanceled(action_id=action_id, seconds=seconds)
        error = ErrorInfo(code="worker_canceled", message=f"worker {child.configuration.agent_name!r} was canceled")
        return ActionFailed(action_id=action_id, error=error, seconds=seconds)
    if finished.status == "completed":
        result = child.run.outputs[-1] if child.run.outputs else None
        if isinstance(driver.run.work, ToolRequest):
            driver.live_result = child.live_result
        return ActionCompleted(action_id=action_id, result=result, seconds=seconds)
    record = stop.record if stop is not None else None
    if isinstance(record, ActionRejected):
        if child.cause is not None:
            driver.keep_cause_of_direct(child.cause)
        return ActionRejected(
            action_id=action_id,
            phase="execution",
            code=record.code,
            message=record.message,
            details=record.details,
            suggestion=record.suggestion,
            arguments=record.arguments,
            seconds=seconds,
        )
    driver.take_failure(child)
    error = finished.error or ErrorInfo(code="task_failed", message="the worker failed")
    if error.code == "uncertain_execution":
        return ActionUncertain(action_id=action_id, reason=error.message, seconds=seconds)
    return ActionFailed(action_id=action_id, error=error, seconds=seconds)
