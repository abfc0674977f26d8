"""The suites pass what keeps its promises and catch what breaks one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from protolink import CapabilityPolicy, Policy, PolicyDecision, PolicyEffect, RunAction, RunContext
from protolink.llms import LLM, LLMReply, LLMRequest, MockLLM, ModelUsage
from protolink.testing import LLMConformance, PolicyConformance, ScriptedLLM


class TestMockLLMInJSON(LLMConformance):
    """Actions as JSON text, the whole reply at once."""

    def make_llm(self, script: Sequence[Any]) -> LLM:
        return MockLLM(sequential_responses=script)

    def make_held_llm(self, text: str, release: threading.Event) -> LLM:
        return MockLLM(sequential_responses=[lambda: (release.wait(), text)[1]])


class TestMockLLMInPieces(TestMockLLMInJSON):
    """The same, streamed."""

    def make_llm(self, script: Sequence[Any]) -> LLM:
        return MockLLM(sequential_responses=script, fragment_size=3)


class TestMockLLMWithNativeCalls(TestMockLLMInJSON):
    """Calls in a provider's own format."""

    def make_llm(self, script: Sequence[Any]) -> LLM:
        return MockLLM(sequential_responses=script, tool_calling="native", fragment_size=5)


class TestScriptedLLM(TestMockLLMInJSON):
    """Recording changes nothing."""

    def make_llm(self, script: Sequence[Any]) -> LLM:
        return ScriptedLLM(script, tool_calling="native")


class TestCapabilityPolicy(PolicyConformance):
    """The policy that comes with the library."""

    def make_policy(self) -> Policy:
        return CapabilityPolicy({"files.*": "require_approval", "files.delete": "deny"})


class Blocking(LLM):
    """A provider that blocks, in a thread as it should or on the event loop."""

    provider = "test"
    model = "blocking"

    def __init__(self, text: str, release: threading.Event) -> None:
        self._text = text
        self._release = release

    def respond(self, request: LLMRequest) -> LLMReply:
        self._release.wait()
        return LLMReply(text=self._text)


class TestABlockingProvider(TestMockLLMInJSON):
    """A plain method runs in a worker thread, and that is enough."""

    def make_held_llm(self, text: str, release: threading.Event) -> LLM:
        return Blocking(text, release)


class Faulty(LLMConformance):
    """A suite over a provider whose replies are spoiled."""

    def __init__(self, spoil: Callable[[LLMRequest, str], LLMReply]) -> None:
        self._spoil = spoil

    def make_llm(self, script: Sequence[Any]) -> LLM:
        spoil = self._spoil

        class Provider(LLM):
            provider = "test"
            model = "faulty"

            async def respond(self, request: LLMRequest) -> LLMReply:
                return spoil(request, str(script[0]))

        return Provider()


def stripped(request: LLMRequest, text: str) -> LLMReply:
    return LLMReply(text=text.split("\n")[0])


def twice(request: LLMRequest, text: str) -> LLMReply:
    request.fragment(text)
    request.fragment(text)
    return LLMReply(text=text)


def deaf(request: LLMRequest, text: str) -> LLMReply:
    for piece in text:
        with suppress(ConnectionAbortedError):
            request.fragment(piece)
    return LLMReply(text=text)


def paying(request: LLMRequest, text: str) -> LLMReply:
    return LLMReply(text=text, usage=ModelUsage(input_tokens=-1))


def meddling(request: LLMRequest, text: str) -> LLMReply:
    list.append(request.messages, {"role": "user", "content": "more"})  # type: ignore[arg-type]
    return LLMReply(text=text)


def raw(request: LLMRequest, text: str) -> LLMReply:
    return text  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("spoil", "test"),
    [
        (stripped, "test_a_text_is_the_answer"),
        (stripped, "test_calls_are_proposed_in_order_with_their_arguments"),
        (twice, "test_fragments_make_up_the_text"),
        (deaf, "test_a_stream_is_left_when_nobody_wants_it"),
        (paying, "test_consumption_is_a_count_or_unknown"),
        (meddling, "test_a_request_is_left_as_it_is"),
        (raw, "test_a_text_is_the_answer"),
    ],
)
def test_a_broken_promise_of_a_provider_is_caught(spoil: Any, test: str) -> None:
    """A suite that no provider can fail would promise nothing."""
    with pytest.raises(AssertionError):
        getattr(Faulty(spoil), test)()


def test_a_provider_that_raises_out_of_a_dead_stream_keeps_its_promise() -> None:
    """Leaving with the error of `fragment` is the documented way."""
    Faulty(twice).test_a_stream_is_left_when_nobody_wants_it()


class Ask(Policy):
    """A policy with an opinion that is given from outside."""

    def __init__(self, judge: Callable[[RunAction, RunContext], Any]) -> None:
        self._judge = judge

    async def evaluate(self, action: RunAction, context: RunContext) -> PolicyDecision:
        return self._judge(action, context)  # type: ignore[no-any-return]


class Judged(PolicyConformance):
    """A suite over such a policy."""

    def __init__(self, judge: Callable[[RunAction, RunContext], Any]) -> None:
        self._judge = judge

    def make_policy(self) -> Policy:
        return Ask(self._judge)


def by_id(action: RunAction, context: RunContext) -> PolicyDecision:
    return PolicyDecision(PolicyEffect.DENY if "another" in action.action_id else PolicyEffect.ALLOW)


def undecided(action: RunAction, context: RunContext) -> None:
    return None


def widening(action: RunAction, context: RunContext) -> PolicyDecision:
    context.permissions.clear()
    return PolicyDecision(PolicyEffect.ALLOW)


def unrecordable(action: RunAction, context: RunContext) -> PolicyDecision:
    return PolicyDecision(PolicyEffect.ALLOW, metadata={"lock": threading.Lock()})


@pytest.mark.parametrize(
    ("judge", "test", "error"),
    [
        (by_id, "test_the_same_operation_gets_the_same_decision", AssertionError),
        (undecided, "test_every_action_gets_a_decision", AssertionError),
        (widening, "test_the_context_is_left_as_it_is", AssertionError),
        (unrecordable, "test_a_decision_can_be_recorded", Exception),
    ],
)
def test_a_broken_promise_of_a_policy_is_caught(judge: Any, test: str, error: type[Exception]) -> None:
    """A suite that no policy can fail would promise nothing."""
    with pytest.raises(error):
        getattr(Judged(judge), test)()


def test_a_provider_that_blocks_the_event_loop_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suite frees the loop itself in the end, so that it can say so instead of hanging."""

    class BlocksTheLoop(Blocking):
        blocking = False

    class Suite(TestABlockingProvider):
        def make_held_llm(self, text: str, release: threading.Event) -> LLM:
            return BlocksTheLoop(text, release)

    monkeypatch.setattr("protolink.testing.conformance.RESCUE_SECONDS", 0.0)

    with pytest.raises(AssertionError, match="blocked the event loop"):
        Suite().test_the_event_loop_goes_on_while_it_waits()
