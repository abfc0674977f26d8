"""The policies speak about an exact operation."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from protolink._core.machine import Judge
from protolink._core.records import ActionDenied, ActionJudged, ApprovalAsked
from protolink._core.state import ActionState
from protolink._environment import iso
from protolink._runtime.scopes import PASSING
from protolink._text import describe_error
from protolink.action import RunAction
from protolink.message import Artifact
from protolink.policy.policies import (
    CapabilityPolicy,
    PolicyDecision,
    PolicyEffect,
    decide_all,
)

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["judge", "prepared_action"]


def prepared_action(action: ActionState) -> RunAction:
    """The recorded operation as the value that policies, people and executors see."""
    prepared = action.prepared
    if prepared is None:
        raise TypeError("only a prepared action is shown to anybody")
    return RunAction(
        kind=prepared.kind,
        name=prepared.name,
        payload=prepared.payload,
        capabilities=frozenset(prepared.capabilities),
        artifacts=tuple(Artifact.from_dict(item) for item in prepared.artifacts),
        description=prepared.description,
        metadata=prepared.metadata,
        action_id=prepared.action_id,
        created_at=iso(action.prepared_at),
    )


async def judge(driver: Driver, command: Judge) -> None:
    """Record the strictest decision over all policies and the run's own permissions."""
    action = driver.run.action(command.action_id)
    prepared = action.prepared
    if prepared is None:
        raise TypeError("only a prepared action is judged")
    if not driver.policies and not driver.context.permissions and not driver.run.denied:
        await driver.append(ActionJudged(action_id=command.action_id, effect="allow"))
        return
    try:
        decision = await _decided(driver, action, prepared.fingerprint)
    except PASSING:
        raise
    except BaseException as error:  # a policy's
        await driver.fail("policy_failed", f"a policy failed: {describe_error(error)}", error)
        return
    judged = ActionJudged(
        action_id=command.action_id,
        effect=decision.effect.value,
        reason=decision.reason,
        policy_name=decision.policy_name,
        matched_capabilities=decision.matched_capabilities,
    )
    match decision.effect:
        case PolicyEffect.ALLOW:
            await driver.append(judged)
        case PolicyEffect.DENY:
            reason = decision.reason or f"{prepared.name} is denied"
            await driver.append(judged, ActionDenied(action_id=command.action_id, code="policy_denied", reason=reason))
        case PolicyEffect.REQUIRE_APPROVAL:
            request_id = driver.environment.new_id()
            await driver.append(judged, ApprovalAsked(action_id=command.action_id, request_id=request_id))


async def _decided(driver: Driver, state: ActionState, fingerprint: str) -> PolicyDecision:
    if fingerprint in driver.run.denied:
        return PolicyDecision(
            PolicyEffect.DENY, reason="the same action was denied before", policy_name="denied_before"
        )
    action = prepared_action(state)
    policies = driver.policies
    deciding = decide_all(policies, action, driver.shared_context, driver.context.permissions)
    if all(type(policy) is CapabilityPolicy for policy in policies):
        return await deciding  # ours neither wait nor raise, so they need no task of their own
    return cast("PolicyDecision", await driver.scope.call(deciding))
