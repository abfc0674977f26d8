"""Delegation to a peer: an agent that a registry knows does the work as a run of its own, elsewhere.

Nothing that it says is an outcome of anything here but of this one delegation. Its events are kept as reports. What
had not reached it did not happen; whatever was lost after that is uncertain, and nothing is sent twice.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protolink._core.budget import budget_left
from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionFailed,
    ActionPrepared,
    ActionRejected,
    ActionStarted,
    ActionUncertain,
    ErrorInfo,
    Inference,
    PeerReported,
    Proposal,
    Record,
)
from protolink._core.reported import MAX_REPORTS, receipts_of, report_of
from protolink._core.state import ActionState, RecordRefused
from protolink._json import is_mapping, render
from protolink._runtime.peers import MAX_AGENTS_IN_CHAIN, look_up, names_above
from protolink._runtime.scopes import PASSING, Interrupted
from protolink._text import describe_error, visible
from protolink.card import AgentCard
from protolink.errors import ConfigurationError
from protolink.events import RunEvent
from protolink.message import Artifact
from protolink.task import Task, TaskState
from protolink.transport.errors import TransportError

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["CAPABILITY", "ask_peer", "find_peer", "may_ask_peers"]

CAPABILITY = "agent.peer"
"""What a delegation that leaves the process needs beside `agent.delegate`."""


def may_ask_peers(driver: Driver, proposal: Proposal) -> bool:
    """Whether a name that is no owned worker's may be a peer's: in a model's own call, with a registry."""
    return (
        driver.configuration.peers is not None
        and proposal.facade is None
        and proposal.action_id in driver.run.actions
        and isinstance(driver.run.work, Inference)
    )


async def find_peer(driver: Driver, proposal: Proposal) -> AgentCard | ActionRejected:
    """The card of the one peer of a name, or why it cannot be asked."""
    name, above = proposal.name, names_above(driver)
    if name in above:
        return _no(proposal, "agent_loop", "This agent is at work above this run and cannot be asked by it.")
    if len(above) > MAX_AGENTS_IN_CHAIN:
        return _no(proposal, "agent_chain", f"{MAX_AGENTS_IN_CHAIN} agents have passed this work on; do it yourself.")
    try:
        found = await look_up(driver, name)
    except PASSING:
        raise
    except BaseException:  # the registry's, which is somebody else's
        return _no(proposal, "registry_unavailable", "The registry of agents does not answer.")
    if len(found) > 1:
        return _no(proposal, "ambiguous_worker", f"The registry knows {len(found)} agents of this name.")
    if not found or not found[0].url:
        return _no(
            proposal,
            "unknown_worker",
            "There is no worker of this name.",
            {"available": sorted(driver.configuration.subagents)[:50]},
        )
    card = found[0]
    offered = [skill.get("name") for skill in card.skills]
    if proposal.tool is not None and offered and proposal.tool not in offered:
        names = sorted(str(name) for name in offered)[:50]
        return _no(proposal, "unknown_tool", "This agent has no tool of this name.", {"available": names})
    return card


def _no(proposal: Proposal, code: str, why: str, details: dict[str, Any] | None = None) -> ActionRejected:
    message = f"{why} Nothing was executed."
    return ActionRejected(action_id=proposal.action_id, phase="validation", code=code, message=message, details=details)


async def ask_peer(driver: Driver, action: ActionState, prepared: ActionPrepared) -> None:
    """Have the peer do the work and record which ending the delegation had."""
    action_id = action.proposal.action_id
    await driver.scope.call(driver.places.acquire())
    try:
        if driver.ending:
            raise Interrupted(unsettled=False)
        await driver.append(ActionStarted(action_id=action_id))
        began = driver.environment.monotonic()
        ending = await _asked(driver, action, prepared, began)
    finally:
        driver.places.release()
    await driver.record_ending(action_id, ending)


async def _asked(driver: Driver, action: ActionState, prepared: ActionPrepared, began: float) -> Record:
    action_id, name = action.proposal.action_id, action.proposal.name
    asking = _Asking(driver, action_id, name)

    def seconds() -> float:
        return driver.environment.monotonic() - began

    try:
        task: Task = await driver.scope.call(asking.run(prepared.payload["url"], _task(driver, prepared)))
    except Interrupted:
        # The peer is told, but nobody here knows what it had done by then.
        return ActionCanceled(action_id=action_id, unsettled=True, seconds=seconds())
    except PASSING:
        raise
    except (ConfigurationError, TransportError) as error:
        if isinstance(error, TransportError) and error.delivered:
            return _uncertain(driver, action_id, f"agent {name!r}: {_words(error)}", error, seconds())
        return ActionRejected(
            action_id=action_id,
            phase="execution",
            code="peer_unavailable",
            message=f"This agent could not be asked, so nothing was executed: {_words(error)}",
            arguments=prepared.arguments,
            seconds=seconds(),
        )
    except BaseException as error:  # a transport's own
        return _uncertain(driver, action_id, f"asking agent {name!r} failed: {describe_error(error)}", error, seconds())
    return _ending(driver, prepared, task, name, seconds())


def _words(error: Exception) -> str:
    """The words of an error that a peer may have chosen, as one line."""
    return visible(str(error), limit=500)


def _uncertain(driver: Driver, action_id: str, reason: str, cause: BaseException, seconds: float) -> ActionUncertain:
    driver.keep_cause(cause)
    return ActionUncertain(action_id=action_id, reason=reason, seconds=seconds)


def _task(driver: Driver, prepared: ActionPrepared) -> Task:
    """The task as it is sent: with what is left of the budget, and without the session, which is another's there."""
    context = driver.context.child(driver.configuration.agent_name)
    left = budget_left(driver.journal.tree.counters, driver.run.budget, driver.remaining_seconds())
    # The run is named after the action, so that whoever looks for it knows where it came from.
    context = replace(context, run_id=prepared.action_id, session_id=None, budget=left)
    payload = prepared.payload
    if payload["action"] == "infer":
        return Task.create_infer(payload["prompt"], context=context)
    return Task.create_tool_call(payload["tool"], payload["args"], context=context)


class _Asking:
    """One delegation under way: keeps what the peer reports of it."""

    def __init__(self, driver: Driver, action_id: str, peer: str) -> None:
        self._driver = driver
        self._action_id = action_id
        self._peer = peer
        self._reports = 0
        self._settled: set[str] = set()

    async def run(self, url: str, task: Task) -> Task:
        """Send the task and follow it to its end. Raises `TransportError`."""
        peers = self._driver.configuration.peers
        if peers is None:
            raise TransportError("the agent has no registry any more, so the peer cannot be asked")
        async with aclosing(peers.ask(url, task)) as given:
            async for item in given:
                if isinstance(item, RunEvent):
                    self._keep(item)
                    continue
                if item.id != task.id:
                    raise TransportError("the peer has answered with another task", delivered=True)
                for receipt in receipts_of(item, run_id=self._action_id, peer=self._peer):
                    if receipt.action_id not in self._settled:
                        self._keep(receipt)
                return item
        raise TransportError("the peer's stream ended without a task", delivered=True)

    def _keep(self, event: RunEvent) -> None:
        if self._reports >= MAX_REPORTS:
            return
        driver = self._driver
        kept = report_of(event, run_id=self._action_id, peer=self._peer, tree=driver.journal.tree)
        if kept is None:
            return
        try:
            driver.journal.note(driver.run_id, PeerReported(action_id=self._action_id, peer=self._peer, event=kept))
        except RecordRefused:
            return  # it was reported before, or the run was stopped and nobody is interested any more
        self._reports += 1
        if event.action_id is not None and event.type in ("action.completed", "action.rejected"):
            self._settled.add(event.action_id)


def _ending(driver: Driver, prepared: ActionPrepared, task: Task, name: str, seconds: float) -> Record:
    """What the end of the peer's run is for the delegation."""
    action_id = prepared.action_id
    error: Any = task.metadata.get("error")
    told = error.get("message") if is_mapping(error) else None
    why = visible(told, limit=500) if isinstance(told, str) and told else "it gave no reason"
    if task.state is TaskState.COMPLETED:
        result, changed = render(task.get_output())
        return ActionCompleted(action_id=action_id, result=result, rendered=changed, seconds=seconds)
    if task.metadata.get("uncertain_actions") or task.state not in (TaskState.FAILED, TaskState.CANCELED):
        # It may go on: somebody there can answer, resume or reconcile it.
        reason = f"the run of agent {name!r} is {task.state.value}, and what comes of it is not known here"
        return ActionUncertain(action_id=action_id, reason=reason, seconds=seconds)
    if task.state is TaskState.CANCELED:
        return _failed(action_id, "worker_canceled", f"the run of agent {name!r} was canceled there", seconds)
    rejection = _rejection(task)
    if prepared.payload["action"] == "tool_call" and rejection is not None:
        return ActionRejected(
            action_id=action_id,
            phase="execution",
            code="peer_rejected",
            message=visible(str(rejection.get("message") or "The agent has rejected the call."), limit=500),
            details={"code": visible(str(rejection.get("code")), limit=100)},
            arguments=prepared.arguments,
            seconds=seconds,
        )
    return _failed(action_id, "peer_failed", f"agent {name!r} failed: {why}", seconds)


def _failed(action_id: str, code: str, message: str, seconds: float) -> ActionFailed:
    return ActionFailed(action_id=action_id, error=ErrorInfo(code=code, message=message), seconds=seconds)


def _rejection(task: Task) -> dict[str, Any] | None:
    """What the receipt of a rejected call says, where that is the last thing that the task did."""
    last: Artifact | None = task.artifacts[-1] if task.artifacts else None
    if last is None or last.kind != "action_rejection" or len(last.parts) != 1:
        return None
    content = last.parts[0].content
    return dict(content) if is_mapping(content) else None
