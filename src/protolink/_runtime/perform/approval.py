"""Asking people: about exact actions, and what a model wants to know. What they say is recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from protolink._core.machine import Ask, Deny
from protolink._core.records import ActionDenied, ActionJudged, ApprovalAnswered, QuestionAsked, RunPaused
from protolink._core.state import ActionState, RecordRefused
from protolink._environment import iso
from protolink._runtime.perform.calls import call
from protolink._runtime.perform.judge import prepared_action
from protolink._runtime.scopes import PASSING
from protolink._text import describe_error
from protolink.interruption import RunInterruption
from protolink.policy.approvals import ApprovalDecision, ApprovalHandler, ApprovalRequest
from protolink.policy.policies import PolicyDecision, PolicyEffect

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["approval_request", "ask", "decision_of", "deny", "policy_decision"]


def policy_decision(judged: ActionJudged) -> PolicyDecision:
    """A recorded judgement as the public value."""
    return PolicyDecision(
        PolicyEffect(judged.effect),
        reason=judged.reason,
        policy_name=judged.policy_name,
        matched_capabilities=judged.matched_capabilities,
    )


def approval_request(driver: Driver, action: ActionState) -> ApprovalRequest:
    """The request that asks about a recorded action."""
    if action.prepared is None or action.judged is None or action.request_id is None:
        raise TypeError("only a judged action is asked about")
    now = driver.environment.now()
    return ApprovalRequest(
        action=prepared_action(action),
        policy_decision=policy_decision(action.judged),
        run_id=driver.run_id,
        request_id=action.request_id,
        created_at=iso(now),
        metadata={"agent_name": driver.configuration.agent_name, "root_run_id": driver.journal.tree.root_id},
    )


async def ask(driver: Driver, command: Ask) -> None:
    """Get a decision for each waiting action, and an answer to each question; they wait side by side."""
    handler = driver.approval_handler
    waiting = [driver.run.action(action_id) for action_id in command.action_ids]
    actions = [action for action in waiting if action.stage == "asking"]
    if driver.journal.durable and (handler is None or not actions):
        await _pause(driver, waiting)
        return
    if not actions:
        message = f"{waiting[0].proposal.name} asks a person, and a run that is not durable has no way to wait for one"
        await driver.fail("input_required", message)
        return
    if handler is None:
        first = actions[0].proposal
        reason = f"{first.name} requires approval, and the agent has no approval_handler to ask"
        await driver.append(ActionDenied(action_id=first.action_id, code="approval_required", reason=reason))
        return
    if len(actions) == 1:
        await _ask_one(driver, handler, actions[0])
        return
    outcomes = await asyncio.gather(*(_ask_one(driver, handler, action) for action in actions), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _pause(driver: Driver, waiting: list[ActionState]) -> None:
    """Ask what was not asked yet, and pause, so that somebody can say something, in this process or another."""
    asked: list[QuestionAsked] = []
    interruptions: list[dict[str, Any]] = []
    for action in waiting:
        if action.stage == "asking":
            interruptions.append(_approval(driver, action).to_dict())
            continue
        request_id = action.question_id
        if request_id is None:
            request_id = driver.environment.new_id()
            asked.append(QuestionAsked(action_id=action.proposal.action_id, request_id=request_id))
        interruptions.append(_question(driver, action, request_id).to_dict())
    is_approval = any(action.stage == "asking" for action in waiting)
    paused = RunPaused(
        kind="approval" if is_approval else "input",
        interruptions=tuple(interruptions),
        seconds=driver.elapsed_seconds,
    )
    await driver.append(*asked, paused)


def _approval(driver: Driver, action: ActionState) -> RunInterruption:
    request = approval_request(driver, action)
    return RunInterruption(
        run_id=driver.run_id,
        request_id=request.request_id,
        kind="approval",
        request=request.to_dict(),
        fingerprint=request.fingerprint,
    )


def _question(driver: Driver, action: ActionState, request_id: str) -> RunInterruption:
    prepared = action.prepared
    if prepared is None:
        raise TypeError("only a prepared question is asked")
    return RunInterruption(
        run_id=driver.run_id,
        request_id=request_id,
        kind="input",
        request={
            "question": prepared.arguments["question"],
            "choices": prepared.arguments.get("choices"),
            "agent_name": driver.configuration.agent_name,
            "action_id": prepared.action_id,
        },
        fingerprint=prepared.fingerprint,
    )


async def _ask_one(driver: Driver, handler: ApprovalHandler, action: ActionState) -> None:
    request = approval_request(driver, action)
    try:
        # A plain handler runs in a thread, for it may wait for a person.
        answer = await call(driver, handler, request, driver.shared_context, in_thread=True)
        decision = decision_of(answer, request)
    except PASSING:
        raise
    except BaseException as error:  # the handler's
        if driver.run.stop is None:
            await driver.fail("approval_failed", f"the approval handler failed: {describe_error(error)}", error)
        return
    try:
        await driver.append(
            ApprovalAnswered(
                action_id=action.proposal.action_id,
                request_id=request.request_id,
                approved=decision.approved,
                reason=decision.reason,
                decided_by=decision.decided_by,
            )
        )
    except RecordRefused:
        return  # the run was stopped while somebody decided


def decision_of(answer: object, request: ApprovalRequest) -> ApprovalDecision:
    """An answer to exactly this request. Anything else is no decision, and silence is no consent."""
    if isinstance(answer, bool):
        return ApprovalDecision(approved=answer, request_id=request.request_id)
    if not isinstance(answer, ApprovalDecision):
        raise TypeError(f"an approval handler returns an ApprovalDecision or a bool, not {type(answer).__name__}")
    if answer.request_id != request.request_id:
        raise ValueError("the decision belongs to another request")
    return answer


async def deny(driver: Driver, command: Deny) -> None:
    """Record that an action was refused, by a person or by a policy."""
    action = driver.run.action(command.action_id)
    if action.answer is not None:
        reason = action.answer.reason or f"{action.proposal.name} was not approved"
        await driver.append(ActionDenied(action_id=command.action_id, code="approval_declined", reason=reason))
        return
    judged = action.judged
    reason = (judged.reason if judged is not None else "") or f"{action.proposal.name} is denied"
    await driver.append(ActionDenied(action_id=command.action_id, code="policy_denied", reason=reason))
