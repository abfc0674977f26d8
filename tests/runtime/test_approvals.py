"""Approvals: exactly what was asked, by exactly the answer that was given."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from protolink import (
    ActionDeniedError,
    Agent,
    ApprovalDecision,
    ApprovalRequest,
    CapabilityPolicy,
    Policy,
    PolicyDecision,
    PolicyEffect,
    RunAction,
    RunContext,
    TaskExecutionError,
)
from protolink.testing import ManualClock, call, use_environment
from protolink.tools import PreparedTool, ToolExecution, current_execution
from tests.support import blocker, model, observe, of_type

ASKING = CapabilityPolicy(default_effect="require_approval")


def _agent(entered: list[Any], handler: Any, *script: Any) -> Agent:
    def pay(amount: int) -> str:
        entered.append(amount)
        return f"paid {amount}"

    script = script or (call("pay", amount=3),)
    return Agent(name="a", tools=[pay], llm=model(*script), policy=ASKING, approval_handler=handler)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("answer", [True, False])
async def test_a_bool_is_a_decision(answer: bool, asynchronous: bool) -> None:
    """True and False are short for a decision about the request that was asked."""
    entered: list[Any] = []

    def plain(_request: ApprovalRequest, _context: RunContext) -> bool:
        return answer

    async def later(_request: ApprovalRequest, _context: RunContext) -> bool:
        return answer

    events, result = await observe(_agent(entered, later if asynchronous else plain))

    assert bool(entered) == answer
    assert result.status == ("completed" if answer else "failed")
    assert of_type(events, "approval.decided")[0].payload["decision"]["approved"] is answer


async def test_a_plain_handler_runs_off_the_event_loop() -> None:
    """It may wait for a person; meanwhile everybody else is served."""
    home = threading.get_ident()
    async with blocker(result=True) as person:
        threads: list[int] = []

        def ask(_request: ApprovalRequest, _context: RunContext) -> bool:
            threads.append(threading.get_ident())
            return bool(person.wait())

        handle = _agent([], ask).start_run("go")
        await person.entered.wait()
        _, other = await observe(Agent(name="b", llm=model("meanwhile")))
        person.release()
        await handle.result()

    assert other.output == "meanwhile"
    assert home not in threads


async def test_a_decision_says_who_and_why() -> None:
    """Both are recorded, and a refusal's reason reaches the caller."""

    def refuse(request: ApprovalRequest, _context: RunContext) -> ApprovalDecision:
        return ApprovalDecision(False, request.request_id, reason="too expensive", decided_by="alice")

    agent = _agent([], refuse)
    handle = agent.start_run("go")

    with pytest.raises(ActionDeniedError, match="too expensive"):
        await handle.outcome()

    decision = of_type(list(handle.report.events), "approval.decided")[0].payload["decision"]
    assert (decision["decided_by"], decision["reason"]) == ("alice", "too expensive")


WRONG: dict[str, Any] = {
    "None": lambda _request: None,
    "a text": lambda _request: "yes",
    "one": lambda _request: 1,
    "a truthy object": lambda _request: object(),
    "the request itself": lambda request: request,
    "the class": lambda _request: ApprovalDecision,
    "a dictionary": lambda request: {"approved": True, "request_id": request.request_id},
    "another request": lambda _request: ApprovalDecision(True, "another"),
    "an empty id": lambda _request: ApprovalDecision(True, ""),
    "the action's id": lambda request: ApprovalDecision(True, request.action.action_id),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_anything_but_a_decision_about_this_request_permits_nothing(wrong: str) -> None:
    """Silence, truthiness and somebody else's consent are no consent."""
    entered: list[Any] = []

    def answer(request: ApprovalRequest, _context: RunContext) -> Any:
        return WRONG[wrong](request)

    with pytest.raises(TaskExecutionError) as raised:
        await _agent(entered, answer).invoke("go")

    assert raised.value.code == "approval_failed"
    assert entered == []


async def test_a_handler_that_raises_permits_nothing() -> None:
    """Its exception is the cause."""
    entered: list[Any] = []

    def explode(_request: ApprovalRequest, _context: RunContext) -> bool:
        raise ConnectionError("nobody is there")

    with pytest.raises(TaskExecutionError, match="nobody is there") as raised:
        await _agent(entered, explode).invoke("go")

    assert isinstance(raised.value.__cause__, ConnectionError)
    assert entered == []


async def test_two_requests_have_ids_of_their_own_and_answers_cannot_be_swapped() -> None:
    """An answer that names the other request is refused, and the run fails."""
    entered: list[Any] = []
    asked: list[ApprovalRequest] = []
    both = asyncio.Event()

    async def swap(request: ApprovalRequest, _context: RunContext) -> ApprovalDecision:
        asked.append(request)
        if len(asked) == 2:
            both.set()
        await both.wait()
        other = next(item for item in asked if item.request_id != request.request_id)
        return ApprovalDecision(True, other.request_id)

    agent = _agent(entered, swap, [call("pay", amount=1), call("pay", amount=2)])
    _, result = await observe(agent)

    assert len({request.request_id for request in asked}) == 2
    assert result.status == "failed"
    assert entered == []


async def test_each_execution_is_asked_about() -> None:
    """An approval is used once: another amount, or the same tool again, is another question."""
    entered: list[Any] = []
    asked: list[str] = []

    def approve(request: ApprovalRequest, _context: RunContext) -> bool:
        asked.append(request.fingerprint)
        return True

    agent = _agent(entered, approve, call("pay", amount=1), call("pay", amount=2))
    await observe(agent)
    await observe(agent, "again")
    agent.llm = model(call("pay", amount=1))
    await observe(agent, "once more")

    assert entered == [1, 2, 1]
    assert len(asked) == 3
    assert asked[0] == asked[2] != asked[1]


async def test_the_request_shows_the_action_and_its_run() -> None:
    """Everything that a dialog has to say is a field."""
    seen: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest, _context: RunContext) -> bool:
        seen.append(request)
        return True

    events, result = await observe(_agent([], approve))

    request, public = seen[0], of_type(events, "approval.required")[0].payload["request"]
    assert request.action.payload == {"arguments": {"amount": 3}}
    assert request.metadata["agent_name"] == "a"
    assert request.run_id == result.report.context.run_id
    assert (public["request_id"], public["fingerprint"]) == (request.request_id, request.fingerprint)
    assert ApprovalRequest.from_dict(request.to_dict()).fingerprint == request.fingerprint


async def test_the_executor_gets_the_action_that_was_approved() -> None:
    """The same id, the same fingerprint, with the request and the answer beside it."""
    asked: list[ApprovalRequest] = []
    executed: list[ToolExecution] = []

    def move(amount: int) -> str:
        """Move money."""
        raise AssertionError("a signature is never called")

    def prepare(arguments: dict[str, Any], _context: RunContext) -> RunAction:
        return RunAction(kind="money.move", name="move", payload={"cents": arguments["amount"] * 100})

    async def execute(execution: ToolExecution) -> int:
        executed.append(execution)
        return int(execution.action.payload["cents"])

    def approve(request: ApprovalRequest, _context: RunContext) -> ApprovalDecision:
        asked.append(request)
        return ApprovalDecision(True, request.request_id, decided_by="bob")

    tool = PreparedTool(move, prepare=prepare, execute=execute, capabilities={"money.send"})
    agent = Agent(name="a", tools=[tool], llm=model(call("move", amount=3)), policy=ASKING, approval_handler=approve)
    await observe(agent)

    authorization = executed[0].authorization
    assert authorization.action.action_id == asked[0].action.action_id
    assert authorization.action.fingerprint == asked[0].fingerprint
    assert authorization.action.payload == {"cents": 300}
    assert authorization.action.capabilities == {"money.send"}
    assert authorization.approval_request is not None
    assert authorization.approval_request.request_id == asked[0].request_id
    assert authorization.approval_decision is not None
    assert authorization.approval_decision.decided_by == "bob"


async def test_policy_person_and_executor_see_one_and_the_same_value() -> None:
    """Down to its time of creation: a value that differs in anything is another value than was approved."""
    seen: list[RunAction] = []

    def pay() -> None:
        seen.append(current_execution().action)

    class Looking(Policy):
        async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
            seen.append(action)
            clock.advance(1)
            return PolicyDecision(PolicyEffect.REQUIRE_APPROVAL)

    def approve(request: ApprovalRequest, _context: RunContext) -> bool:
        seen.append(request.action)
        clock.advance(1)
        return True

    clock = ManualClock()
    with use_environment(clock):
        agent = Agent(name="a", tools=[pay], llm=model(call("pay")), policy=Looking(), approval_handler=approve)
        await observe(agent)

    assert seen[0] == seen[1] == seen[2]


async def test_a_handler_cannot_change_what_it_approves() -> None:
    """The action is frozen through and through."""
    entered: list[Any] = []
    refused: list[str] = []

    def tamper(request: ApprovalRequest, context: RunContext) -> bool:
        try:
            request.action.payload["arguments"]["amount"] = 10_000
        except TypeError as error:
            refused.append(str(error))
        context.permissions["*"] = "deny"
        return True

    await observe(_agent(entered, tamper))

    assert entered == [3]
    assert refused


async def test_a_handler_that_is_not_callable_is_refused() -> None:
    """At construction."""
    with pytest.raises(ValueError, match="approval_handler"):
        Agent(name="a", approval_handler="yes")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def test_an_approval_is_asked_for_direct_calls_as_well() -> None:
    """The application's own call walks the same road."""
    entered: list[Any] = []

    with pytest.raises(ActionDeniedError):
        await _agent(entered, lambda *_: False).call_tool("pay", amount=5)

    assert entered == []


async def test_an_application_can_have_its_own_action_approved() -> None:
    """`authorize_action` gives the authorization with the request and the answer."""
    action = RunAction(kind="page.publish", name="home")

    authorization = await _agent([], lambda *_: True).authorize_action(action)

    assert authorization.action is action
    assert authorization.approval_decision is not None
    assert authorization.approval_decision.approved


@pytest.mark.parametrize("approved", [None, 1, "yes", [True]])
def test_a_decision_is_true_or_false(approved: Any) -> None:
    """Nothing in between can be written down."""
    with pytest.raises(TypeError):
        ApprovalDecision(approved, "request")
