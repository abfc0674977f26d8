"""Policies: they see the exact action, they can only narrow, and one that fails permits nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import pytest

from protolink import (
    ActionDeniedError,
    Agent,
    ApprovalRequiredError,
    CapabilityPolicy,
    ConfigurationError,
    Policy,
    PolicyDecision,
    PolicyEffect,
    RunAction,
    RunContext,
    TaskExecutionError,
    Tool,
)
from protolink.testing import call
from tests.support import ListeningLLM, model, observe, of_type, turns


class Scripted(Policy):
    """A policy that does what it is told and keeps what it saw."""

    name = "scripted"

    def __init__(self, say: Callable[[RunAction], Any]) -> None:
        self._say = say
        self.seen: list[RunAction] = []

    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        self.seen.append(action)
        await turns(1)
        return cast("PolicyDecision", self._say(action))


def _decided(effect: PolicyEffect, reason: str = "because") -> PolicyDecision:
    return PolicyDecision(effect, reason=reason, policy_name="scripted")


def _always(effect: PolicyEffect, _action: RunAction) -> PolicyDecision:
    return _decided(effect)


def _agent(policy: Any, entered: list[str], **options: Any) -> Agent:
    def write(path: str) -> str:
        entered.append(path)
        return path

    tool = Tool(write, capabilities=["files.write", "disk.use"])
    return Agent(name="a", tools=[tool], llm=model(call("write", path="x")), policy=policy, **options)


async def test_a_policy_sees_the_exact_action() -> None:
    """Kind, name, capabilities and the very arguments that would be executed."""
    policy = Scripted(lambda _action: _decided(PolicyEffect.ALLOW))

    events, _ = await observe(_agent(policy, []))

    seen = policy.seen[0]
    assert (seen.kind, seen.name) == ("tool.call", "write")
    assert seen.capabilities == {"files.write", "disk.use"}
    assert seen.payload == {"arguments": {"path": "x"}}
    assert seen.action_id == of_type(events, "action.started")[0].action_id


@pytest.mark.parametrize(
    ("effects", "outcome"),
    [
        (["allow", "allow"], "completed"),
        (["allow", "deny"], "failed"),
        (["deny", "allow"], "failed"),
        (["require_approval", "deny"], "failed"),
        (["require_approval", "allow"], "failed"),
    ],
)
async def test_the_strictest_of_several_policies_wins(effects: list[str], outcome: str) -> None:
    """All have to agree; one that allows cannot overrule one that does not."""
    entered: list[str] = []
    policies = [Scripted(functools.partial(_always, PolicyEffect(effect))) for effect in effects]

    _, result = await observe(_agent(policies, entered))

    assert result.status == outcome
    assert bool(entered) == (outcome == "completed")


@pytest.mark.parametrize("wrong", [None, True, "allow", PolicyEffect.ALLOW, {"effect": "allow"}, object()])
async def test_a_policy_that_gives_no_decision_permits_nothing(wrong: object) -> None:
    """Something that merely looks like consent is a mistake of the policy."""
    entered: list[str] = []
    agent = _agent(Scripted(lambda _action: wrong), entered)

    with pytest.raises(TaskExecutionError, match="PolicyDecision") as raised:
        await agent.invoke("go")

    assert raised.value.code == "policy_failed"
    assert entered == []


async def test_a_policy_that_raises_permits_nothing() -> None:
    """An exception of a safeguard fails the run, with that exception as the cause."""
    entered: list[str] = []

    def explode(_action: RunAction) -> PolicyDecision:
        raise ConnectionError("policy server is gone")

    with pytest.raises(TaskExecutionError, match="policy server is gone") as raised:
        await _agent(Scripted(explode), entered).invoke("go")

    assert isinstance(raised.value.__cause__, ConnectionError)
    assert entered == []


async def test_a_policy_that_is_no_coroutine_permits_nothing() -> None:
    """`def evaluate` instead of `async def` is a common slip; it must not count as consent."""
    entered: list[str] = []

    class Plain(Policy):
        def evaluate(self, action: RunAction, context: RunContext) -> Any:
            return _decided(PolicyEffect.ALLOW)

    _, result = await observe(_agent(Plain(), entered))

    assert result.status == "failed"
    assert entered == []


async def test_a_denial_says_its_reason_and_ends_the_run() -> None:
    """The caller gets the action it concerns."""
    entered: list[str] = []
    agent = _agent(Scripted(lambda _action: _decided(PolicyEffect.DENY, "not on my disk")), entered)

    with pytest.raises(ActionDeniedError, match="not on my disk") as raised:
        await agent.invoke("go")

    assert raised.value.action_id
    assert raised.value.task is not None
    assert entered == []


async def test_a_denial_names_no_rules() -> None:
    """What is written down for the model and the record cannot be used to map the policy."""
    policy = CapabilityPolicy({"files.*": "deny", "secret.rule": "allow"})

    events, result = await observe(_agent(policy, []))

    assert "secret.rule" not in str(result.report.to_dict())
    assert of_type(events, "action.denied")[0].payload["metadata"]["error"]["code"] == "policy_denied"


async def test_approval_without_anybody_to_ask_is_an_error_of_its_own() -> None:
    """Nothing is executed, and the message says what is missing."""
    entered: list[str] = []

    with pytest.raises(ApprovalRequiredError, match="approval_handler"):
        await _agent(CapabilityPolicy({"disk.*": "require_approval"}), entered).invoke("go")

    assert entered == []


@pytest.mark.parametrize(
    ("rules", "default", "allowed"),
    [
        ({}, "allow", True),
        ({}, "deny", False),
        ({"files.write": "allow"}, "deny", False),  # disk.use falls back to the default
        ({"files.write": "allow", "disk.use": "allow"}, "deny", True),
        ({"files.*": "deny", "files.write": "allow"}, "allow", True),
        ({"files.write": "deny", "files.*": "allow"}, "allow", False),
        ({"*": "deny", "files.*": "allow", "disk.*": True}, "allow", True),
        ({"*": {"effect": "deny"}}, "allow", False),
        ({"files": "deny"}, "allow", True),  # no prefix of a name, but another name
        ({"files.write.*": "deny"}, "allow", True),
        ({"disk.use": False}, "allow", False),
    ],
)
async def test_capability_rules(rules: dict[str, Any], default: str, allowed: bool) -> None:
    """The most specific rule counts for each capability, the strictest effect over all of them."""
    entered: list[str] = []

    _, result = await observe(_agent(CapabilityPolicy(rules, default_effect=default), entered))

    assert (result.status == "completed") == bool(entered) == allowed


@pytest.mark.parametrize("pattern", ["", "files.*.read", "*.read", "files*", "**", ".*.*", 3, None])
def test_a_pattern_that_is_none_is_refused(pattern: Any) -> None:
    """A typing mistake in a rule must not become a rule that matches nothing."""
    with pytest.raises(ValueError, match=r"capability|wildcard"):
        CapabilityPolicy({pattern: "deny"})


@pytest.mark.parametrize("effect", ["Allow", "yes", None, 1, {}, {"effect": "perhaps"}, []])
def test_an_effect_that_is_none_is_refused(effect: Any) -> None:
    """The same for what a rule says."""
    with pytest.raises(ValueError, match="must be"):
        CapabilityPolicy({"files.read": effect})


async def test_permissions_of_a_run_narrow_what_the_policy_allows() -> None:
    """A caller may take away."""
    entered: list[str] = []
    context = RunContext(permissions={"disk.*": "deny"})

    _, result = await observe(_agent(CapabilityPolicy(), entered), context=context)

    assert result.status == "failed"
    assert entered == []


async def test_permissions_of_a_run_do_not_widen_what_the_policy_denies() -> None:
    """A caller cannot give what the application did not."""
    entered: list[str] = []
    context = RunContext(permissions={"*": "allow"})

    _, result = await observe(_agent(CapabilityPolicy(default_effect="deny"), entered), context=context)

    assert result.status == "failed"
    assert entered == []


async def test_permissions_apply_without_any_policy() -> None:
    """They are the run's own."""
    entered: list[str] = []

    _, result = await observe(_agent(None, entered), context=RunContext(permissions={"files.write": "deny"}))

    assert result.status == "failed"
    assert entered == []


async def test_a_permission_that_is_no_effect_permits_nothing() -> None:
    """Unreadable permissions are a failure, never a shrug."""
    entered: list[str] = []

    _, result = await observe(_agent(None, entered), context=RunContext(permissions={"files.write": "maybe"}))

    assert result.status == "failed"
    assert entered == []


async def test_a_policy_cannot_change_the_context_of_the_run() -> None:
    """It is given a copy."""

    class Widening(Policy):
        async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
            context.permissions["*"] = "allow"
            context.session_id = "other"
            return PolicyDecision(PolicyEffect.ALLOW)

    _, result = await observe(_agent(Widening(), []), session_id="mine")

    assert result.report.context.permissions == {}
    assert result.report.context.session_id == "mine"


async def test_what_was_denied_is_denied_for_the_rest_of_the_run() -> None:
    """`authorize_action` judges an application's own actions by the same rules, without running anything."""
    agent = Agent(name="a", policy=CapabilityPolicy({"files.*": "deny"}))
    action = RunAction(kind="file.write", name="notes", capabilities=frozenset({"files.write"}))

    with pytest.raises(ActionDeniedError) as raised:
        await agent.authorize_action(action)

    assert raised.value.action_id == action.action_id


async def test_an_allowed_action_of_the_application_gets_an_authorization() -> None:
    """The very action comes back with the decision."""
    action = RunAction(kind="file.read", name="notes", capabilities=frozenset({"files.read"}))

    authorization = await Agent(name="a", policy=CapabilityPolicy()).authorize_action(action)

    assert authorization.action is action
    assert authorization.policy_decision.effect is PolicyEffect.ALLOW
    assert authorization.approval_request is None


async def test_an_invalid_call_is_not_judged() -> None:
    """Validation comes first: a policy need not defend itself against nonsense."""
    policy = Scripted(lambda _action: _decided(PolicyEffect.ALLOW))
    agent = _agent(policy, [])
    agent.llm = ListeningLLM(call("write", path=3))

    await observe(agent)

    assert policy.seen == []


@pytest.mark.parametrize("wrong", ["deny", 3, [CapabilityPolicy(), "deny"], CapabilityPolicy])
def test_something_that_is_no_policy_is_refused_at_once(wrong: Any) -> None:
    """A safeguard that was wired up wrongly must not be skipped at run time."""
    with pytest.raises((ConfigurationError, TypeError)):
        Agent(name="a", policy=wrong)
