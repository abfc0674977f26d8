"""What every implementation of a port promises, as test classes to be subclassed.

A suite is a plain class: its `test_…` methods take nothing, return nothing and raise `AssertionError` for a
broken promise. pytest collects a subclass whose name begins with `Test`; anything else may call the methods.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from unittest import SkipTest

from protolink._json import canonical, require_json, thaw
from protolink.action import RunAction
from protolink.agent import Agent
from protolink.context import RunContext
from protolink.llms.port import LLM, LLMReply, LLMRequest, ToolDeclaration
from protolink.policy.policies import Policy, PolicyDecision
from protolink.testing.actions import call, calls
from protolink.testing.runs import collect
from protolink.tools.tool import Tool

__all__ = ["LLMConformance", "PolicyConformance"]

T = TypeVar("T")

TEXT: Final = 'Grüße: {"kind": "note"} and a 🥛,\nover two lines.'
RESCUE_SECONDS: Final = 10.0
"""When a suite frees an event loop that a provider blocks, to be able to say so."""


def _require(promise: bool, complaint: str) -> None:
    if not promise:
        raise AssertionError(complaint)


def _run(scenario: Coroutine[Any, Any, T]) -> T:
    # With a factory of its own the runner leaves the thread's current loop alone.
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(scenario)


class LLMConformance(ABC):
    """What a model's implementation promises to the runtime.

    Subclass it and say how a model that plays a script is made, typically the real class over a fake
    transport:

        class TestMyProvider(LLMConformance):
            def make_llm(self, script):
                return MyProvider(transport=FakeService(script))

    An entry of a script is one reply of the service: a text, or a list of calls as `protolink.testing.calls`
    builds them. A suite asks for no more replies than its script has.
    """

    @abstractmethod
    def make_llm(self, script: Sequence[Any]) -> LLM:
        """A fresh model whose service replies with the entries of `script`, one per turn."""

    def make_held_llm(self, text: str, release: threading.Event) -> LLM | None:
        """A fresh model whose service answers `text` only once `release` is set; None skips what needs it.

        The service waits the way a slow one would: an asynchronous provider awaits, a blocking one blocks
        in `release.wait()`.
        """
        return None

    def test_it_says_who_it_is(self) -> None:
        """Events and configurations name the provider and the model; neither may hold anything but JSON."""
        llm = self.make_llm([])
        for name in ("provider", "model"):
            value = getattr(llm, name)
            _require(isinstance(value, str) and bool(value), f"{name} must be a non-empty text, not {value!r}")
        require_json(llm.to_dict(), "to_dict()")

    def test_a_text_is_the_answer(self) -> None:
        """Nothing is trimmed, escaped or taken for an action."""
        reply, _ = self._ask(self.make_llm([TEXT]))
        _require(reply.text == TEXT, f"the text must arrive as it was said, not as {reply.text!r}")
        _require(reply.calls == (), "a text without calls must give a reply without calls")

    def test_fragments_make_up_the_text(self) -> None:
        """A reader who joins the fragments has the reply, without a gap and without a repeat."""
        reply, fragments = self._ask(self.make_llm([TEXT]))
        if fragments:
            _require("".join(fragments) == reply.text, f"the fragments {fragments!r} do not make up the text")

    def test_calls_are_proposed_in_order_with_their_arguments(self) -> None:
        """The runtime validates and executes what was proposed, so each name and argument has to arrive."""
        stored: list[dict[str, Any]] = []
        arguments = {"item": "milk 🥛", "count": 2, "labels": ["cold", 'quo"ted'], "place": {"shelf": None}}
        script = [calls(call("store", **arguments), call("store", item="bread")), call("store", item="tea"), "Stored."]

        answer, _ = _run(self._played(script, stored))

        expected = [arguments, {"item": "bread"}, {"item": "tea"}]
        _require(answer == "Stored.", f"the answer after three calls must be the last text, not {answer!r}")
        _require(stored == expected, f"the tool was called with {stored!r} and not with {expected!r}")

    def test_native_calls_have_ids_of_their_own(self) -> None:
        """A result is matched to its call by the id, where the provider has ids."""
        llm = self.make_llm([calls(call("store", item="milk"), call("store", item="bread"))])
        if not llm.native_tools:
            return
        reply, _ = self._ask(llm)
        ids = [made.id for made in reply.calls if made.id is not None]
        _require([made.name for made in reply.calls] == ["store", "store"], "both calls must be in `calls`")
        _require(len(ids) == len(set(ids)), f"two calls of a reply share an id: {ids!r}")

    def test_fragments_of_every_turn_reach_the_readers(self) -> None:
        """A reader of the run sees each turn, whether or not the provider streams."""
        _, chunks = _run(self._played([call("store", item="milk"), TEXT], []))
        _require("".join(chunks).endswith(TEXT), "the last answer must be the end of what was streamed")

    def test_consumption_is_a_count_or_unknown(self) -> None:
        """Unknown is None: a made-up zero would let a run pass its budget, a negative number pay into it."""
        reply, _ = self._ask(self.make_llm([TEXT]))
        for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"):
            value = getattr(reply.usage, name)
            whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            _require(value is None or whole, f"usage.{name} must be a count or None, not {value!r}")
        cost = reply.usage.cost
        _require(cost is None or (math.isfinite(cost) and cost >= 0), f"usage.cost must be money or None, not {cost!r}")
        _require(reply.attempts >= 1, "a reply took one call at least")

    def test_a_request_is_left_as_it_is(self) -> None:
        """The messages are the run's own conversation."""
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "Store milk."},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_1", "name": "store", "arguments": {"item": "milk"}}],
            },
            {"role": "tool", "name": "store", "tool_call_id": "call_1", "content": '{"result":"ok"}'},
        ]
        before = thaw(messages)

        self._ask(self.make_llm([TEXT]), messages)

        _require(messages == before, "the provider changed the messages that it was given")

    def test_a_stream_is_left_when_nobody_wants_it(self) -> None:
        """`fragment` raises once the run was stopped; a provider that goes on would be paid for nothing."""
        handed: list[str] = []
        refusals: list[int] = []

        def stopped() -> bool:
            if handed:
                refusals.append(len(handed))
            return bool(handed)

        llm = self.make_llm([TEXT])
        with suppress(ConnectionAbortedError):
            _run(_respond(llm, _request(llm, handed.append, stopped=stopped)))
        _require(len(refusals) <= 1, "the provider goes on after the ConnectionAbortedError of request.fragment()")

    def test_the_event_loop_goes_on_while_it_waits(self) -> None:
        """One slow reply must not stop every other run of the process."""
        release = threading.Event()
        llm = self.make_held_llm(TEXT, release)
        if llm is None:
            raise SkipTest("make_held_llm gives no model")
        blocked = threading.Event()

        def rescue() -> None:
            blocked.set()
            release.set()

        async def scenario() -> LLMReply:
            turn = asyncio.ensure_future(_respond(llm, _request(llm, lambda text: None)))
            await asyncio.sleep(0)
            release.set()
            return await turn

        timer = threading.Timer(RESCUE_SECONDS, rescue)
        timer.start()
        try:
            reply = _run(scenario())
        finally:
            timer.cancel()
        _require(not blocked.is_set(), "respond() blocked the event loop; is `blocking` True?")
        _require(reply.text == TEXT, f"the held answer must arrive, not {reply.text!r}")

    def test_a_canceled_turn_ends_its_run(self) -> None:
        """A run that waits for a model is ended by `cancel`, not by the model."""
        release = threading.Event()
        llm = self.make_held_llm(TEXT, release)
        if llm is None:
            raise SkipTest("make_held_llm gives no model")

        async def scenario() -> str:
            handle = Agent(name="keeper", llm=llm, verbosity=0).start_run("Wait.")
            async for event in handle.events():
                if event.type == "llm.call.started":
                    break
            await handle.cancel()
            return (await handle.result()).status

        try:
            status = _run(scenario())
        finally:
            release.set()
        _require(status == "canceled", f"the run must be canceled, not {status}")

    def _ask(self, llm: LLM, messages: Sequence[Mapping[str, Any]] = ()) -> tuple[LLMReply, list[str]]:
        """One turn, with the fragments that were handed over."""
        fragments: list[str] = []
        reply = _run(_respond(llm, _request(llm, fragments.append, messages)))
        return reply, fragments

    async def _played(self, script: Sequence[Any], stored: list[dict[str, Any]]) -> tuple[Any, list[str]]:
        """A whole run of the script with one tool, which keeps the arguments it is called with."""

        def store(**item: Any) -> str:
            """Store an item."""
            stored.append(item)
            return "stored"

        agent = Agent(name="keeper", llm=self.make_llm(script), tools=[Tool(store)], verbosity=0)
        events, result = await collect(agent.start_run("Store it."))
        _require(result.status == "completed", f"the run must complete, but it {result.status}: {result.error}")
        chunks = [event.payload["content"] for event in events if event.payload.get("llm_event_type") == "llm_chunk"]
        return result.output, chunks


def _request(
    llm: LLM,
    fragment: Callable[[str], None],
    messages: Sequence[Mapping[str, Any]] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> LLMRequest:
    schema = {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]}
    return LLMRequest(
        messages=messages or [{"role": "user", "content": "Store it."}],
        system_prompt="You keep things.",
        tools=[ToolDeclaration(name="store", description="Store an item.", input_schema=schema)],
        native=llm.native_tools,
        step=1,
        turn=_Turn(fragment, stopped),
    )


class _Turn:
    """The runtime's side of a turn, as far as a provider can see it."""

    def __init__(self, fragment: Callable[[str], None], stopped: Callable[[], bool]) -> None:
        self._fragment = fragment
        self._stopped = stopped

    @property
    def stopped(self) -> bool:
        return self._stopped()

    def fragment(self, text: str) -> None:
        self._fragment(text)

    def in_thread(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        return asyncio.to_thread(function, *args)


async def _respond(llm: LLM, request: LLMRequest) -> LLMReply:
    """One turn the way the runtime makes it."""
    if type(llm).blocking:
        reply = await asyncio.to_thread(llm.respond, request)
    else:
        reply = llm.respond(request)
    if inspect.isawaitable(reply):
        reply = await reply
    _require(isinstance(reply, LLMReply), f"respond() must give an LLMReply, not {type(reply).__name__}")
    return reply


class PolicyConformance(ABC):
    """What a policy promises to the runtime.

    Subclass it and say how the policy is made; `actions` may add those that the policy is about.
    """

    @abstractmethod
    def make_policy(self) -> Policy:
        """A fresh policy."""

    def actions(self) -> Sequence[RunAction]:
        """Actions to be judged, in all kinds that a run can propose."""
        return (
            RunAction(kind="tool.call", name="lookup", payload={"arguments": {"item": 1}}),
            RunAction(kind="tool.call", name="remove", capabilities=frozenset({"files.delete", "files.read"})),
            RunAction(kind="agent.call", name="researcher", capabilities=frozenset({"agent.delegate"})),
            RunAction(kind="an application's own", name="name with spaces", payload={"deep": [{"er": None}]}),
        )

    def test_it_has_a_name(self) -> None:
        """Decisions in the record say whose they are."""
        name = self.make_policy().name
        _require(isinstance(name, str) and bool(name.strip()), f"name must be a non-blank text, not {name!r}")

    def test_every_action_gets_a_decision(self) -> None:
        """An exception fails the run, so an action that a policy does not know needs a decision too."""
        for action in self.actions():
            decision: object = self._decisions(self.make_policy(), [action])[0]
            _require(
                isinstance(decision, PolicyDecision), f"a decision is a PolicyDecision, not {type(decision).__name__}"
            )

    def test_a_decision_can_be_recorded(self) -> None:
        """It is stored as JSON and read back after a restart."""
        for decision in self._decisions(self.make_policy(), self.actions()):
            stored = require_json(decision.to_dict(), "to_dict()")
            _require(PolicyDecision.from_dict(stored) == decision, "the stored decision is not the one that was made")

    def test_the_same_operation_gets_the_same_decision(self) -> None:
        """A decision depends on what would happen, not on who asked first or when."""
        policy = self.make_policy()
        actions = self.actions()
        again = [RunAction.from_dict({**action.to_dict(), "action_id": f"another {action.name}"}) for action in actions]

        first = self._decisions(policy, actions)
        second = self._decisions(policy, list(reversed(again)))[::-1]

        for action, before, after in zip(actions, first, second, strict=True):
            _require(
                before.effect is after.effect, f"{action.name!r} is {before.effect} first and {after.effect} later"
            )

    def test_the_context_is_left_as_it_is(self) -> None:
        """The same context is given to tools and recorded with the run."""
        context = RunContext(permissions={"files.*": "deny"}, metadata={"team": "keepers"})
        before = canonical(context.to_dict())

        self._decisions(self.make_policy(), self.actions(), context)

        _require(canonical(context.to_dict()) == before, "the policy changed the context that it was given")

    def test_one_policy_serves_many_runs_at_once(self) -> None:
        """An agent's policy is shared by all of its runs."""
        policy = self.make_policy()
        alone = self._decisions(policy, self.actions())

        async def together() -> list[PolicyDecision]:
            return list(await asyncio.gather(*(policy.evaluate(action, RunContext()) for action in self.actions())))

        effects = [decision.effect for decision in _run(together())]
        _require(
            effects == [decision.effect for decision in alone], "decisions made at once differ from those made alone"
        )

    def _decisions(
        self, policy: Policy, actions: Sequence[RunAction], context: RunContext | None = None
    ) -> list[PolicyDecision]:
        async def evaluated() -> list[PolicyDecision]:
            return [await policy.evaluate(action, context or RunContext()) for action in actions]

        return _run(evaluated())
