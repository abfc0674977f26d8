"""Policies: whether an action may run, must be asked about, or is refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self

from protolink._json import is_mapping
from protolink._record import new_dict
from protolink._values import Reader
from protolink.action import RunAction
from protolink.context import RunContext

__all__ = ["CapabilityPolicy", "Policy", "PolicyDecision", "PolicyEffect", "decide_all", "strictest"]


class PolicyEffect(Enum):
    """What a policy says of an action, from the mildest to the strictest."""

    ALLOW = "allow"
    REQUIRE_APPROVAL = "require_approval"
    DENY = "deny"


_STRICTNESS = {PolicyEffect.ALLOW: 0, PolicyEffect.REQUIRE_APPROVAL: 1, PolicyEffect.DENY: 2}


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """One policy's word on one action."""

    effect: PolicyEffect
    reason: str = ""
    """For people and for the record; it names no rules, so that a model cannot probe them."""

    policy_name: str = ""
    matched_capabilities: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=new_dict)

    def to_dict(self) -> dict[str, Any]:
        """Every field by its name, as JSON."""
        return {
            "effect": self.effect.value,
            "reason": self.reason,
            "policy_name": self.policy_name,
            "matched_capabilities": list(self.matched_capabilities),
            "metadata": dict(self.metadata),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a decision back; unknown keys are ignored."""
        read = Reader(data, "PolicyDecision")
        return cls(
            effect=_effect(read.text("effect"), "PolicyDecision.effect"),
            reason=read.text("reason", ""),
            policy_name=read.text("policy_name", ""),
            matched_capabilities=read.texts("matched_capabilities"),
            metadata=read.mapping("metadata"),
        )


class Policy(ABC):
    """Decides about actions. It sees the exact value that will be executed and cannot change it."""

    name: str = "policy"

    @abstractmethod
    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        """Say whether `action` may run in `context`. An exception fails the run; nothing is executed."""


def strictest(decisions: Iterable[PolicyDecision]) -> PolicyDecision:
    """The strictest of several decisions, the first of equals; without any, the action is allowed."""
    return max(decisions, key=lambda decision: _STRICTNESS[decision.effect], default=PolicyDecision(PolicyEffect.ALLOW))


class CapabilityPolicy(Policy):
    """Effects by capability name, with `"files.*"` for everything below `files.` and `"*"` for everything.

    For each capability of an action the most specific rule counts; over all of its capabilities the
    strictest effect wins. A capability without a rule, and an action without capabilities, get
    `default_effect`.

    Raises `ValueError` for a pattern or an effect that is none.
    """

    def __init__(
        self,
        rules: Mapping[str, Any] | None = None,
        *,
        default_effect: PolicyEffect | str | bool = "allow",
        name: str = "capability_policy",
    ) -> None:
        self.name = name
        self.rules: dict[str, PolicyEffect] = {
            _pattern(pattern): _effect(effect, f"the rule for {pattern!r}") for pattern, effect in (rules or {}).items()
        }
        self.default_effect: PolicyEffect = _effect(default_effect, "default_effect")

    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        """The strictest effect over the action's capabilities."""
        return _decide(self.rules, action.capabilities, self.default_effect, self.name)

    def to_dict(self) -> dict[str, Any]:
        """The rules, the default and the name, as JSON."""
        return {
            "name": self.name,
            "rules": {pattern: effect.value for pattern, effect in self.rules.items()},
            "default_effect": self.default_effect.value,
        }


async def decide_all(
    policies: Iterable[Policy], action: RunAction, context: RunContext, permissions: Mapping[str, Any]
) -> PolicyDecision:
    """The strictest decision over all policies and the run's own permissions.

    Raises what a policy raises, `TypeError` for a policy that gives no decision, and `ValueError` for a
    permission that is no effect.
    """
    decisions: list[PolicyDecision] = []
    for policy in policies:
        made: object = await policy.evaluate(action, context)
        if not isinstance(made, PolicyDecision):
            raise TypeError(f"policy {policy.name!r} must give a PolicyDecision, not {type(made).__name__}")
        decisions.append(made)
    permitted = _permission_decision(action, permissions) if permissions else None
    return strictest(decisions if permitted is None else [*decisions, permitted])


def _permission_decision(action: RunAction, permissions: Mapping[str, Any]) -> PolicyDecision | None:
    """What the permissions of a run say of an action, or None where none concerns it."""
    rules = {
        _pattern(pattern): _effect(effect, f"the permission for {pattern!r}") for pattern, effect in permissions.items()
    }
    concerned = [capability for capability in action.capabilities if _most_specific(rules, capability) is not None]
    return _decide(rules, concerned, PolicyEffect.ALLOW, "run_permissions") if concerned else None


def _decide(
    rules: Mapping[str, PolicyEffect], capabilities: Iterable[str], default: PolicyEffect, name: str
) -> PolicyDecision:
    effects: dict[str, PolicyEffect] = {}
    for capability in capabilities:
        pattern = _most_specific(rules, capability)
        effects[capability] = default if pattern is None else rules[pattern]
    effect = max(effects.values(), key=_STRICTNESS.__getitem__, default=default)
    matched = tuple(sorted(capability for capability, found in effects.items() if found is effect))
    return PolicyDecision(effect, reason=_reason(effect, matched), policy_name=name, matched_capabilities=matched)


def _reason(effect: PolicyEffect, capabilities: tuple[str, ...]) -> str:
    if effect is PolicyEffect.ALLOW:
        return ""
    what = ", ".join(capabilities) or "this action"
    return f"{what} {'is denied' if effect is PolicyEffect.DENY else 'requires approval'}"


def _most_specific(rules: Mapping[str, PolicyEffect], capability: str) -> str | None:
    if capability in rules:
        return capability
    parts = capability.split(".")
    for length in range(len(parts) - 1, 0, -1):
        pattern = ".".join(parts[:length]) + ".*"
        if pattern in rules:
            return pattern
    return "*" if "*" in rules else None


def _pattern(pattern: object) -> str:
    if not isinstance(pattern, str) or not pattern or ("*" in pattern and pattern != "*" and pattern[-2:] != ".*"):
        raise ValueError(f"{pattern!r} is no capability; write 'files.read', 'files.*' or '*'")
    if "*" in pattern.removesuffix("*"):
        raise ValueError(f"{pattern!r} has a wildcard in its middle; only a last '.*' is understood")
    return pattern


def _effect(value: object, what: str) -> PolicyEffect:
    if is_mapping(value):
        value = value.get("effect")
    if isinstance(value, PolicyEffect):
        return value
    if isinstance(value, bool):
        return PolicyEffect.ALLOW if value else PolicyEffect.DENY
    if isinstance(value, str) and value in PolicyEffect._value2member_map_:
        return PolicyEffect(value)
    raise ValueError(f"{what} must be 'allow', 'require_approval' or 'deny'")
