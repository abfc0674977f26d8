"""Whether an action may run: the most specific rule for each capability, and the strictest of them all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolink import Agent, CapabilityPolicy, Policy, PolicyDecision, PolicyEffect, RunAction, RunContext
from protolink.policy.policies import decide_all
from protolink.testing import ScriptedLLM, call, run_events

ALLOW, ASK, DENY = PolicyEffect.ALLOW, PolicyEffect.REQUIRE_APPROVAL, PolicyEffect.DENY

RULES = {
    "*": "allow",
    "files.*": "require_approval",
    "files.read": "allow",
    "files.secret.*": "deny",
    "files.secret.public.*": "allow",
    "mail": "deny",
}


def action(*capabilities: str) -> RunAction:
    return RunAction(kind="tool.call", name="note", capabilities=frozenset(capabilities))


async def effect(policy: Policy, *capabilities: str) -> PolicyEffect:
    return (await policy.evaluate(action(*capabilities), RunContext())).effect


@pytest.mark.parametrize(
    ("capability", "expected"),
    [
        ("files.read", ALLOW),
        ("files.write", ASK),
        ("files.read.deep", ASK),
        ("files", ALLOW),
        ("filesystem", ALLOW),
        ("files.secret", ASK),
        ("files.secret.key", DENY),
        ("files.secret.public.key", ALLOW),
        ("files.secret.public", DENY),
        ("mail", DENY),
        ("mail.send", ALLOW),
        ("Files.secret.key", ALLOW),
    ],
)
async def test_the_most_specific_rule_counts(capability: str, expected: PolicyEffect) -> None:
    """A wildcard covers what is below its dot and nothing else; names are exact."""
    assert await effect(CapabilityPolicy(RULES), capability) is expected


async def test_the_strictest_of_several_capabilities_counts() -> None:
    """An action needs all that it asks for."""
    policy = CapabilityPolicy(RULES)

    assert await effect(policy, "files.read", "web") is ALLOW
    assert await effect(policy, "files.read", "files.write") is ASK
    assert await effect(policy, "files.read", "files.write", "mail") is DENY


@pytest.mark.parametrize(
    ("default", "expected"), [("allow", ALLOW), ("deny", DENY), (ASK, ASK), (True, ALLOW), (False, DENY)]
)
async def test_what_no_rule_covers_gets_the_default(default: Any, expected: PolicyEffect) -> None:
    """An action without capabilities too: undeclared is not allowed by a policy that denies by default."""
    policy = CapabilityPolicy({"files.*": "allow"}, default_effect=default)

    assert await effect(policy, "mail") is expected
    assert await effect(policy) is expected
    assert await effect(policy, "files.read") is ALLOW
    assert await effect(policy, "files.read", "mail") is expected


async def test_a_decision_names_what_decided() -> None:
    """The capabilities with the decisive effect, sorted, and the policy's name."""
    policy = CapabilityPolicy(RULES, name="house rules")

    decision = await policy.evaluate(action("files.b", "files.a", "web"), RunContext())

    assert decision.matched_capabilities == ("files.a", "files.b")
    assert decision.policy_name == "house rules"
    assert "files.secret" not in decision.reason


@pytest.mark.parametrize(
    ("value", "expected"),
    [("deny", DENY), (DENY, DENY), (False, DENY), ({"effect": "deny"}, DENY), (True, ALLOW), ({"effect": True}, ALLOW)],
)
async def test_an_effect_has_several_spellings(value: Any, expected: PolicyEffect) -> None:
    """As configuration files have them."""
    assert await effect(CapabilityPolicy({"mail": value}), "mail") is expected


@pytest.mark.parametrize("value", ["DENY", "maybe", 1, None, {}, {"effect": "maybe"}, ["deny"]])
def test_an_effect_that_is_none_is_refused(value: Any) -> None:
    """A misspelt denial must not allow."""
    with pytest.raises(ValueError, match="'mail'"):
        CapabilityPolicy({"mail": value})


@pytest.mark.parametrize("pattern", ["", "*.read", "files*", "files.*.read", "files.**", "**", 1])
def test_a_pattern_that_would_match_nothing_is_refused(pattern: Any) -> None:
    """A denial that looks as if it held is worse than none."""
    with pytest.raises(ValueError, match=r"no capability|wildcard"):
        CapabilityPolicy({pattern: "deny"})


def test_a_policy_can_be_shown() -> None:
    """Every rule in one spelling, in their order."""
    assert CapabilityPolicy({"b": False, "a.*": "allow"}, default_effect="require_approval").to_dict() == {
        "name": "capability_policy",
        "rules": {"b": "deny", "a.*": "allow"},
        "default_effect": "require_approval",
    }


effects = st.sampled_from(["allow", "require_approval", "deny"])
patterns = st.sampled_from(["*", "files.*", "files.read", "mail"])


async def outcome(policy: Policy | None, permissions: dict[str, Any]) -> PolicyEffect:
    """How a run with one proposed action judges it."""

    def read() -> str:
        """Read."""
        return "read"

    llm = ScriptedLLM([call("read"), "Done."])
    agent = Agent(name="keeper", llm=llm, policy=policy, approval_handler=lambda request, context: True, verbosity=0)
    agent.tool(capabilities=["files.read"])(read)
    events, _ = await run_events(agent, "Read.", context=RunContext(permissions=permissions))
    judged = next(event for event in events if event.type == "action.policy")
    return PolicyEffect(judged.payload["metadata"]["decision"]["effect"])


@pytest.mark.parametrize(
    ("permissions", "expected"),
    [
        ({}, ASK),
        ({"files.read": "allow"}, ASK),
        ({"*": "allow"}, ASK),
        ({"files.*": "deny"}, DENY),
        ({"mail": "deny"}, ASK),
        ({"files.read": {"effect": "deny"}}, DENY),
    ],
)
async def test_permissions_only_narrow(permissions: dict[str, Any], expected: PolicyEffect) -> None:
    """They come with the request, so they cannot allow what the agent's own policy restricts."""
    policy = CapabilityPolicy({"files.*": "require_approval"})

    assert await outcome(policy, permissions) is expected


async def test_permissions_hold_without_a_policy() -> None:
    """A request can restrict an agent that has no rules of its own."""
    assert await outcome(None, {"files.read": "deny"}) is DENY


@given(st.dictionaries(patterns, effects, max_size=4), st.dictionaries(patterns, effects, max_size=4), effects)
def test_two_policies_are_as_strict_as_the_stricter_one(
    first: dict[str, str], second: dict[str, str], default: str
) -> None:
    """Adding a policy never allows more."""
    policies = [CapabilityPolicy(first, default_effect=default), CapabilityPolicy(second)]
    order = (ALLOW, ASK, DENY)

    async def judged(*chosen: Policy) -> int:
        decision = await decide_all(chosen, action("files.read", "mail"), RunContext(), {})
        return order.index(decision.effect)

    async def scenario() -> tuple[int, int]:
        return await judged(*policies), max(await judged(policies[0]), await judged(policies[1]))

    both, strictest = asyncio.run(scenario())
    assert both == strictest


class Silent(Policy):
    """A policy that forgets to decide."""

    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        return None  # type: ignore[return-value]


async def test_a_policy_that_gives_no_decision_fails_the_run() -> None:
    """And nothing is executed, for silence is no consent."""
    executed: list[str] = []

    def read() -> str:
        """Read."""
        executed.append("read")
        return "read"

    agent = Agent(name="keeper", llm=ScriptedLLM([call("read")]), policy=Silent(), tools=[read], verbosity=0)
    _, result = await run_events(agent, "Read.")

    assert (result.status, executed) == ("failed", [])
