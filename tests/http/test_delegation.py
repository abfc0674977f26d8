"""A model delegates to an agent that a registry knows, in another process as far as anybody can tell."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest

from protolink import (
    Agent,
    AgentCard,
    ApprovalRequest,
    CapabilityPolicy,
    RunBudget,
    RunContext,
    RunEvent,
    SubagentLimits,
    Task,
    UncertainExecutionError,
    collect_tool_evidence,
    current_request_context,
    request_context,
)
from protolink._core.reported import MAX_REPORT_CHARACTERS, MAX_REPORTS
from protolink.client import AgentClient
from protolink.discovery import Registry
from protolink.errors import UnknownRunError
from protolink.llms import MockLLM
from protolink.testing import DyingLog, LogDiedError, call, delegate
from protolink.transport import HTTPTransport, PeerRefusedError
from protolink.transport.port import Frame
from tests.http.servers import agent_at, free_url
from tests.support import ListeningLLM, model, observe, of_type, results, types

REGISTRY = "runtime://delegation-test-registry"


@asynccontextmanager
async def registry() -> AsyncGenerator[Registry]:
    """A started registry, stopped at the end."""
    made = Registry("runtime", REGISTRY)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def caller(*responses: Any, known: Any, **options: Any) -> Agent:
    """An agent that asks peers and serves nobody."""
    settings: dict[str, Any] = {"llm": model(*responses, "done"), **options}
    return Agent(name="caller", registry=known, **settings)


def addressed(kind: str) -> dict[str, Any]:
    """Where a peer is, over a transport that streams and over one that does not."""
    return {"url": free_url()} if kind == "http" else {"url": "runtime://delegation-test-peer", "transport": "runtime"}


@pytest.mark.parametrize("kind", ["http", "runtime"])
@pytest.mark.parametrize("native", ["json", "native"])
async def test_a_model_is_told_of_peers_and_asks_them(kind: str, native: Any) -> None:
    """As it asks owned workers: for an answer, and for one of their tools."""
    llm = ListeningLLM(
        delegate("helper", "What is it?"),
        {"type": "agent_call", "agent": "helper", "action": "tool_call", "tool": "double", "args": {"number": 4}},
        tool_calling=native,
    )
    async with (
        registry() as known,
        agent_at(
            **addressed(kind),
            llm=model("an answer"),
            name="helper",
            description="Helps.",
            tools=[double],
            registry=known,
        ),
    ):
        _, result = await observe(Agent(name="caller", llm=llm, registry=known))

    told = llm.requests[0].system_prompt + "".join(tool.description for tool in llm.requests[0].tools)
    assert "- helper: Helps. (tools: double)" in told
    assert results(llm.heard[-1]) == ["an answer", 8]
    assert (result.status, result.output) == ("completed", "done")


async def test_a_peers_events_arrive_while_it_works() -> None:
    """Each once, under its own ids, in an unbroken list of the parent's, with who said so."""
    go = asyncio.Event()

    async def hold(number: int) -> int:
        """Wait to be let go."""
        await go.wait()
        return number

    helper: dict[str, Any] = {"llm": model(call("hold", number=7), "it is 7"), "tools": [hold]}
    async with (
        registry() as known,
        agent_at(free_url(), name="helper", registry=known, **helper, expose_tool_results=True),
    ):
        handle = caller(delegate("helper", "go"), known=known).start_run("go")
        events: list[RunEvent] = []
        async for event in handle.events():
            events.append(event)
            if event.type == "action.started" and event.agent_name == "helper":
                go.set()

    theirs = [event for event in events if event.agent_name == "helper"]
    delegation = of_type(events, "action.requested")[0].action_id
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len({event.event_id for event in events}) == len(events)
    assert {event.run_id for event in theirs} == {delegation}
    assert {(event.parent_action_id, event.delegation_id, event.final) for event in theirs} == {
        (delegation, delegation, False)
    }
    assert {event.metadata["peer"] for event in theirs} == {"helper"}
    assert theirs[-1].metadata["source_final"] is True
    assert [event.metadata["source_sequence"] for event in theirs] == sorted(
        event.metadata["source_sequence"] for event in theirs
    )


@pytest.mark.parametrize("kind", ["http", "runtime"])
async def test_a_peers_tools_are_evidence_once(kind: str) -> None:
    """From its events, and where it does not stream from the receipts of the task that it returned."""
    helper: dict[str, Any] = {"llm": model(call("double", number=2), "4"), "tools": [double], "name": "helper"}
    async with registry() as known, agent_at(**addressed(kind), **helper, registry=known, expose_tool_results=True):
        handle = caller(delegate("helper", "go"), known=known).start_run("go")
        events = [event async for event in handle.events()]
        result = await handle.result()

    (evidence,) = result.tool_evidence
    delegation = of_type(events, "action.requested")[0].action_id
    assert (evidence.tool_name, evidence.outcome, evidence.result) == ("double", "completed", 4)
    assert (evidence.agent_name, evidence.run_id, evidence.parent_action_id) == ("helper", delegation, delegation)
    assert (evidence.arguments, evidence.started_at is None) == (
        ({"number": 2}, False) if kind == "http" else (None, True)
    )
    assert collect_tool_evidence([*events, *events]) == result.tool_evidence
    assert [artifact.action_id for artifact in result.task.artifacts] == [delegation]


async def test_a_peers_own_workers_keep_their_links() -> None:
    """A grandchild points at the child's action."""
    worker = Agent(name="worker", llm=model(call("double", number=3), "6"), tools=[double])
    helper = {"llm": model(delegate("worker", "go"), "6"), "subagents": [worker]}
    async with registry() as known, agent_at(free_url(), name="helper", registry=known, **helper):
        _, result = await observe(caller(delegate("helper", "go"), known=known))

    (evidence,) = result.tool_evidence
    requested = {event.action_id: event for event in result.report.events if event.type == "action.requested"}
    above = requested[evidence.parent_action_id]
    assert evidence.agent_name == "worker"
    assert (above.agent_name, above.run_id) == ("helper", above.parent_action_id)


async def test_nothing_private_crosses_to_a_peer() -> None:
    """Neither private values, however they may be inherited, nor the session, which is another's there."""
    seen: list[Any] = []

    def look() -> str:
        """Look at what came along."""
        seen.append(dict(current_request_context()))
        return "seen"

    llm = ListeningLLM(call("look"), "seen")
    async with registry() as known, agent_at(free_url(), name="helper", llm=llm, tools=[look], registry=known):
        with request_context({"token": "canary"}, inherit=("token",)):
            handle = caller(delegate("helper", "go"), known=known).start_run("go", session_id="alice")
        events = [event async for event in handle.events()]

    started = [event for event in events if event.agent_name == "helper" and event.type == "task.status"]
    assert seen == [{}]
    assert "canary" not in json.dumps([event.to_dict() for event in events]) + llm.everything
    assert started[0].payload["metadata"]["session_id"] is None


async def test_a_peer_works_within_what_is_left_of_the_budget() -> None:
    """It enforces the limits itself; what it uses is counted there."""
    helper = {"llm": model(call("double", number=1), call("double", number=2), "3"), "tools": [double]}
    async with registry() as known, agent_at(free_url(), name="helper", registry=known, **helper):
        agent = caller(delegate("helper", "go"), known=known)
        _, result = await observe(agent, budget=RunBudget(max_steps=3, max_tool_calls=1))

    assert (result.status, result.error) == (
        "failed",
        "agent 'helper' failed: the run's max_tool_calls of 1 is reached",
    )


@pytest.mark.parametrize("effect", ["deny", "require_approval"])
async def test_asking_a_peer_needs_its_own_capability(effect: str) -> None:
    """So that a policy can tell work that leaves the process; what is approved is one address."""
    asked: list[ApprovalRequest] = []

    async def decline(request: ApprovalRequest, context: RunContext) -> bool:
        asked.append(request)
        return False

    url = free_url()
    async with registry() as known, agent_at(url, "answer", name="helper", registry=known):
        agent = caller(
            delegate("helper", "go"),
            known=known,
            policy=CapabilityPolicy({"agent.peer": effect}),
            approval_handler=decline,
        )
        events, result = await observe(agent)

    assert result.status == "failed"
    assert not of_type(events, "action.started")
    assert [request.action.payload["url"] for request in asked] == [url] * (effect == "require_approval")


@pytest.mark.parametrize(
    ("names", "asked", "code"),
    [
        ([], "helper", "unknown_worker"),
        (["helper", "helper"], "helper", "ambiguous_worker"),
        (["caller"], "caller", "agent_loop"),
    ],
)
async def test_c11_a_name_that_is_not_one_agents_is_no_agent(names: list[str], asked: str, code: str) -> None:
    """Whoever enters a second card under a taken name makes the name useless, and gets nothing by it."""
    async with registry() as known:
        for number, name in enumerate(names):
            await known.register(AgentCard(name, url=f"http://127.0.0.1:{number + 1}"))
        events, result = await observe(caller(delegate(asked, "go"), "I do it myself", known=known))

    assert [event.payload["metadata"]["error"]["code"] for event in of_type(events, "action.rejected")] == [code]
    assert result.output == "I do it myself"


async def test_an_owned_worker_is_never_replaced_by_a_peer() -> None:
    """Of one name, the agent's own is meant."""
    async with registry() as known, agent_at(free_url(), "from outside", name="helper", registry=known):
        llm = ListeningLLM(delegate("helper", "go"))
        own = Agent(name="helper", llm=model("from inside"))
        await observe(Agent(name="caller", llm=llm, subagents=[own], registry=known))

    assert results(llm.heard[-1]) == ["from inside"]
    assert llm.requests[0].system_prompt.count("- helper") == 1


async def test_c15_a_ring_of_agents_stops() -> None:
    """Each asks the next; the one that would close the ring is told that it cannot, and answers itself."""
    async with registry() as known:
        ring: dict[str, Any] = {"one": "two", "two": "three", "three": "one"}
        agents = [
            Agent(
                name=name,
                llm=model(delegate(after, "go"), f"{name} answers"),
                transport="http",
                url=free_url(),
                registry=known,
            )
            for name, after in ring.items()
        ]
        for agent in agents:
            await agent.start()
        events, result = await observe(agents[0])
        for agent in agents:
            await agent.stop()

    rejected = of_type(events, "action.rejected")
    assert [(event.agent_name, event.payload["metadata"]["error"]["code"]) for event in rejected] == [
        ("three", "agent_loop")
    ]
    assert result.output == "one answers"


async def test_c15_a_run_asks_so_many_peers_and_no_more() -> None:
    """Peers count as the owned children do."""
    asked = [delegate("helper", f"part {number}") for number in range(3)]
    async with registry() as known, agent_at(free_url(), "an answer", name="helper", registry=known):
        agent = caller(*asked, known=known, subagent_limits=SubagentLimits(max_children=2))
        events, _ = await observe(agent)

    rejected = of_type(events, "action.rejected")
    assert [event.payload["metadata"]["error"]["code"] for event in rejected] == ["too_many_children"]


@pytest.mark.parametrize("chain", [["one", "helper", "two"], [f"agent{number}" for number in range(9)]])
async def test_c15_a_peer_refuses_work_that_has_gone_round_or_too_far(chain: list[str]) -> None:
    """Also from somebody who does not check that."""
    url = free_url()
    async with agent_at(url, "answer", name="helper"):
        with pytest.raises(PeerRefusedError, match=r"at work above this task|agents have passed this task on"):
            await AgentClient("http").send_task(url, Task.create_infer("go", context=RunContext(agent_chain=chain)))


async def test_a_peer_that_is_not_there_leaves_the_model_to_go_on() -> None:
    """Nothing was sent, so nothing happened, and the model is told so."""
    llm = ListeningLLM(delegate("helper", "go"), "I do it myself")
    async with registry() as known:
        await known.register(AgentCard("helper", url=free_url()))
        events, result = await observe(Agent(name="caller", llm=llm, registry=known))

    assert (result.status, result.output) == ("completed", "I do it myself")
    assert of_type(events, "action.rejected")[0].payload["metadata"]["error"]["code"] == "peer_unavailable"


@pytest.mark.parametrize("address", ["http://169.254.169.254/", "http://192.0.2.1:1", "pigeon://helper", "http://:1"])
async def test_a16_an_address_that_no_peer_can_have_is_not_asked(address: str) -> None:
    """Whoever entered it in the registry: nothing was sent, and the model is told so."""
    async with registry() as known:
        await known.register(AgentCard("helper", url=address))
        events, result = await observe(caller(delegate("helper", "go"), "I do it myself", known=known))

    assert of_type(events, "action.rejected")[0].payload["metadata"]["error"]["code"] == "peer_unavailable"
    assert result.output == "I do it myself"


async def test_a_registry_that_is_down_leaves_the_agent_to_work_at_home(caplog: pytest.LogCaptureFixture) -> None:
    """It is told of no peers, and asking for one is refused in words; the operator is told once."""
    agent = caller(
        delegate("helper", "go"), call("double", number=2), "4", known="http", registry_url=free_url(), tools=[double]
    )
    with caplog.at_level(logging.WARNING):
        events, result = await observe(agent)

    assert of_type(events, "action.rejected")[0].payload["metadata"]["error"]["code"] == "registry_unavailable"
    assert result.output == "4"
    assert caplog.text.count("goes on without its registry") == 1


seen: list[str] = []


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that takes the request and closes."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2]).get(b"Content-Length", b"0"))
    await reader.readexactly(length)
    seen.append(head.split(b" ", 2)[1].decode())
    writer.close()


@pytest.mark.parametrize("durable", [False, True])
async def test_a_connection_that_breaks_after_the_request_leaves_the_action_uncertain(
    durable: bool, tmp_path: Any
) -> None:
    """It is neither a failure nor a reason to send the task again; a stored run waits for somebody to look."""
    seen.clear()
    server = await asyncio.start_server(hangs_up, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    stored: dict[str, Any] = {"durability": tmp_path / "runs.sqlite"} if durable else {}
    async with registry() as known:
        await known.register(AgentCard("helper", url=url))
        agent = caller(delegate("helper", "pay"), "paid", known=known, **stored)
        handle = agent.start_run("go")
        result = await handle.result()
        with pytest.raises(UncertainExecutionError):
            await handle.raise_for_uncertain()
        assert (seen.count("/tasks"), result.tool_evidence) == (1, ())
        assert types(result.report.events).count("action.uncertain") == 1
        if durable:
            action_id = result.task.metadata["uncertain_actions"][0]
            await agent.reconcile(handle.run_id, action_id, result="paid indeed")
            assert (await agent.resume_task(handle.run_id)).get_output() == "paid"
    server.close()
    await server.wait_closed()


def deciding(first: Any) -> MockLLM:
    """A model that acts first, and answers once it has heard what came of it; it needs no memory of its own."""

    def decide(history: Any, system_prompt: Any) -> Any:
        heard = any(message["role"] == "tool" for message in history.messages)
        return "done" if heard else first

    return MockLLM(response_callback=decide)


@pytest.mark.parametrize("applied", [True, False], ids=["stored", "lost"])
async def test_wherever_the_caller_dies_the_peer_is_asked_once(applied: bool) -> None:
    """What it may have done is uncertain then, until somebody has looked; it is never asked again for the same."""
    paid: list[str] = []

    def pay() -> str:
        """Pay."""
        paid.append("paid")
        return "paid"

    async def lived(log: DyingLog) -> tuple[int, bool]:
        """How often the peer paid over a death and all that follows, and whether somebody had to look."""
        paid.clear()
        looked = False
        context = RunContext()
        with suppress(LogDiedError):
            await Agent(
                name="caller", llm=deciding(delegate("helper", "pay")), registry=known, durability=log
            ).run_task(Task.create_infer("go", context=context))
        agent = Agent(name="caller", llm=deciding(delegate("helper", "pay")), registry=known, durability=log.reopened())
        try:
            task = await agent.resume_task(context.run_id)
        except UnknownRunError:
            return len(paid), looked
        except UncertainExecutionError as error:
            looked = True
            await agent.reconcile(context.run_id, str(error.action_id), result="looked")
            task = await agent.resume_task(context.run_id)
        assert task.get_output() == "done"
        return len(paid), looked

    helper: dict[str, Any] = {"llm": deciding(call("pay"))}
    async with (
        registry() as known,
        agent_at(**addressed("runtime"), name="helper", tools=[pay], registry=known, **helper),
    ):
        clean = DyingLog()
        assert await lived(clean) == (1, False)
        outcomes = [await lived(DyingLog(dies_at=place, applied=applied)) for place in range(1, clean.writes + 1)]

    assert {times for times, _ in outcomes} <= {0, 1}
    assert any(looked for _, looked in outcomes)


async def test_canceling_the_run_cancels_the_peers() -> None:
    """Its tool is told; here the action counts as canceled, and as one that may yet have had its effect."""
    entered, canceled = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        """Wait for ever."""
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            canceled.set()
            raise

    helper: dict[str, Any] = {"llm": model(call("wait")), "tools": [wait]}
    async with registry() as known, agent_at(free_url(), name="helper", registry=known, **helper):
        handle = caller(delegate("helper", "go"), known=known).start_run("go")
        await entered.wait()
        await handle.cancel("enough")
        result = await handle.result()
        await canceled.wait()

    own = [event for event in of_type(result.report.events, "action.canceled") if event.agent_name == "caller"]
    assert result.status == "canceled"
    assert [event.payload["metadata"]["unsettled"] for event in own] == [True]


async def test_a_peers_rejection_is_one_that_the_model_can_correct() -> None:
    """The peer knows the schema of its tool, and says what is wrong."""
    wrong, right = (
        {"type": "agent_call", "agent": "helper", "action": "tool_call", "tool": "double", "args": {"number": number}}
        for number in ("two", 2)
    )
    llm = ListeningLLM(wrong, right)
    async with registry() as known, agent_at(free_url(), name="helper", tools=[double], registry=known):
        _, result = await observe(Agent(name="caller", llm=llm, registry=known))

    assert result.status == "completed"
    assert results(llm.heard[1])[0]["code"] == "peer_rejected"
    assert results(llm.heard[2])[-1] == 4


LIES: dict[str, Callable[[Any, str], Any]] = {
    "the parent's run": lambda event, parent: {**event, "run_id": parent},
    "the parent's event": lambda event, parent: {**event, "run_id": parent, "event_id": f"{parent}:2"},
    "the parent's action": lambda event, parent: {**event, "action_id": f"{parent}.1"},
    "an action to come": lambda event, parent: {**event, "action_id": f"{parent}.2"},
    "another delegation": lambda event, parent: {
        **event,
        "run_id": f"{parent}.2",
        "event_id": f"{parent}.2:1",
        "action_id": f"{parent}.2.1",
    },
    "an event of nobody": lambda event, parent: {**event, "event_id": "e"},
    "an approval": lambda event, parent: {**event, "type": "approval.required"},
    "a consent": lambda event, parent: {**event, "type": "approval.decided"},
    "a policy": lambda event, parent: {**event, "type": "action.policy"},
    "a question": lambda event, parent: {**event, "type": "input.required"},
    "a budget": lambda event, parent: {**event, "type": "budget.exceeded"},
    "a made-up kind": lambda event, parent: {**event, "type": "tick"},
    "no time": lambda event, parent: {**event, "timestamp": "yesterday"},
    "a time without a zone": lambda event, parent: {**event, "timestamp": "2026-01-01T00:00:00"},
    "an id with a line": lambda event, parent: {**event, "task_id": "t\n\x1b[2J"},
    "a long id": lambda event, parent: {**event, "task_id": "t" * 1000},
    "no action of its run": lambda event, parent: {**event, "action_id": "x.1"},
}
"""What a peer may make of an event; none of these is kept."""


@asynccontextmanager
async def lying(
    known: Registry, lies: Callable[[dict[str, Any], str], list[Any]], **answer: Any
) -> AsyncGenerator[None]:
    """A peer that reports what `lies` makes of an action of its run, and then that all is well."""

    async def stream(operation: str, payload: Any) -> AsyncGenerator[Frame]:
        context = payload["metadata"]["run_context"]
        run_id, parent = context["run_id"], context["parent_run_id"]
        event = RunEvent(
            type="action.completed",
            run_id=run_id,
            task_id=payload["id"],
            agent_name="helper",
            action_id=f"{run_id}.1",
            event_id=f"{run_id}:1",
            payload={"metadata": {"tool": "transfer", "action_kind": "tool.call", "args": {}, "result": "lie"}},
        )
        for number, lie in enumerate(lies(event.to_dict(), parent), 1):
            yield Frame("event", {**lie, "sequence": number}, number)
        said: Any = {"role": "agent", "parts": [{"type": "infer_output", "content": "fine"}]}
        yield Frame("task", {**payload, "state": "completed", "messages": [said], **answer})

    async def unstreamed(operation: str, payload: Any) -> Any:
        raise ValueError("streams only")

    url = free_url()
    transport = HTTPTransport(url)
    transport.serve_network(unstreamed, acting_as=lambda _: nullcontext(), stream=stream)
    await transport.start()
    await known.register(AgentCard("helper", url=url))
    try:
        yield
    finally:
        await transport.stop()


@pytest.mark.parametrize("lie", LIES)
async def test_c14_a_peer_that_lies_changes_nothing_here(lie: str) -> None:
    """Not the receipts, not the counters, not the status, not the evidence of anything that it did not do."""
    async with registry() as known, lying(known, lambda event, parent: [LIES[lie](event, parent)]):
        events, result = await observe(caller(delegate("helper", "go"), known=known))

    assert (result.status, result.output, result.tool_evidence) == ("completed", "done", ())
    assert {event.agent_name for event in events} == {"caller"}
    assert [artifact.name for artifact in result.task.artifacts] == ["helper"]


async def test_c14_what_a_peer_says_of_itself_is_its_word_and_counts_nothing() -> None:
    """It is evidence under the peer's identity; the receipts and the counters of here are those without it."""
    usage = {"usage": {"input_tokens": 10**9}, "cost": 1e9}
    asked = {"llm_event_type": "llm_call_completed", "metadata": {"metrics": usage, "budget": {"steps": 10**9}}}

    def reports(event: dict[str, Any], parent: str) -> list[Any]:
        call_made = {**event, "type": "llm.call.completed", "action_id": None, "payload": asked}
        return [event, event, {**call_made, "event_id": f"{event['run_id']}:2"}]

    async with registry() as known, lying(known, reports):
        events, result = await observe(caller(delegate("helper", "go"), known=known))

    theirs = [event for event in events if event.metadata.get("peer") == "helper"]
    assert [event.type for event in theirs] == ["action.completed", "llm.call.completed"]
    assert [(evidence.tool_name, evidence.agent_name) for evidence in result.tool_evidence] == [("transfer", "helper")]
    assert [artifact.name for artifact in result.task.artifacts] == ["helper"]
    assert result.report.metrics["budget"]["steps"] == 2
    assert result.report.metrics["llm_calls"] == 2


async def test_c14_a_flood_of_reports_is_cut() -> None:
    """The run ends as it would have; what is too large is left out and says so."""
    text = "x" * (MAX_REPORT_CHARACTERS + 1)

    def reports(event: dict[str, Any], parent: str) -> list[Any]:
        large = {**event, "payload": {**event["payload"], "content": text}}
        return [large, *({**event, "event_id": f"{event['run_id']}:{number}"} for number in range(2, MAX_REPORTS + 50))]

    async with registry() as known, lying(known, reports):
        events, result = await observe(caller(delegate("helper", "go"), known=known))

    theirs = [event for event in events if event.metadata.get("peer") == "helper"]
    assert (result.status, len(theirs)) == ("completed", MAX_REPORTS)
    assert theirs[0].payload["metadata"]["omitted"] is True
    assert "content" not in theirs[0].payload


@pytest.mark.parametrize(
    ("answer", "status"),
    [({"id": "another"}, "uncertain"), ({"state": "working"}, "uncertain"), ({"state": "input-required"}, "uncertain")],
)
async def test_c14_an_end_that_is_none_leaves_the_action_uncertain(answer: dict[str, Any], status: str) -> None:
    """Another task, or one that goes on there: nobody here knows what comes of it."""
    async with registry() as known, lying(known, lambda event, parent: [], **answer):
        events, result = await observe(caller(delegate("helper", "go"), known=known))

    assert (result.status, types(events).count(f"action.{status}")) == ("failed", 1)
