"""Models: native calls, fragments, providers that block, and providers that say anything at all."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from protolink import Agent, ModelFailedError, RunBudget, Task, TaskExecutionError, ToolCorrectionLimitError
from protolink.errors import ConfigurationError
from protolink.llms import LLM, LLMReply, LLMRequest, MockLLM, MockTurn, ModelUsage, ToolCall, create_llm
from protolink.llms.port import InThread
from protolink.testing import call, calls
from tests.support import (
    PATIENCE_SECONDS,
    ListeningLLM,
    assert_settled,
    blocker,
    model,
    observe,
    of_type,
    results,
)


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


class Provider(LLM):
    """A provider that answers with what a function makes of the request."""

    provider, model = "test", "t-1"

    def __init__(self, answer: Callable[[LLMRequest], Any], *, native: bool = False) -> None:
        self._answer = answer
        self.native_tools = native

    async def respond(self, request: LLMRequest) -> LLMReply:
        return cast("LLMReply", self._answer(request))


async def test_a_native_call_is_answered_under_its_id() -> None:
    """The conversation has the shape that providers ask for: calls, then one message for each."""
    llm = ListeningLLM(call("add", left=1, right=2), tool_calling="native")

    _, result = await observe(Agent(name="a", tools=[add], llm=llm))

    question, reply, answer = llm.heard[1]
    assert question == {"role": "user", "content": "go"}
    assert reply["tool_calls"][0]["name"] == "add"
    assert reply["tool_calls"][0]["arguments"] == {"left": 1, "right": 2}
    assert answer["tool_call_id"] == reply["tool_calls"][0]["id"]
    assert results([answer]) == [3]
    assert result.output == "done"


async def test_native_tools_are_offered_as_declarations_and_not_in_words() -> None:
    """The prompt is the application's own; the schemas travel beside it."""
    llm = ListeningLLM(tool_calling="native")

    await observe(Agent(name="a", tools=[add], llm=llm, system_prompt="You add."))

    request = llm.requests[0]
    assert request.system_prompt == "You add."
    assert request.native
    assert request.tools[0].input_schema["properties"]["left"]["type"] == "integer"


async def test_json_tools_are_explained_in_the_prompt() -> None:
    """Name, description, schema and examples."""
    from protolink import Tool

    llm = ListeningLLM()
    tool = Tool(add, examples=[{"left": 20, "right": 22}])

    await observe(Agent(name="a", tools=[tool], llm=llm, system_prompt="You add."))

    prompt = llm.requests[0].system_prompt
    for text in ("You add.", "Add two numbers.", '"integer"', '{"left":20,"right":22}'):
        assert text in prompt


async def test_text_of_a_native_model_is_never_read_as_an_action() -> None:
    """It has calls for that; an action in its text is an answer that talks about one."""
    action = '{"type": "tool_call", "tool": "add", "args": {"left": 1, "right": 2}}'

    events, result = await observe(
        Agent(name="a", tools=[add], llm=Provider(lambda _: LLMReply(text=action), native=True))
    )

    assert result.output == action
    assert of_type(events, "action.started") == []


@pytest.mark.parametrize(
    "arguments",
    ['{"left":1,"right":2}', {"left": 1, "right": 2}],
    ids=["as text", "as data"],
)
async def test_native_arguments_come_as_text_or_as_data(arguments: Any) -> None:
    """Providers differ; validation sees the same."""
    replies = iter([LLMReply(calls=(ToolCall(name="add", arguments=arguments, id="1"),)), LLMReply(text="done")])

    events, _ = await observe(Agent(name="a", tools=[add], llm=Provider(lambda _: next(replies), native=True)))

    assert len(of_type(events, "action.completed")) == 1


@pytest.mark.parametrize(
    "arguments", ["", "{", '{"left":1,"left":2,"right":3}', "[1,2]", "null", None, 3, ["x"], '{"left":NaN,"right":1}']
)
async def test_native_arguments_that_are_none_are_a_mistake_that_runs_nothing(arguments: Any) -> None:
    """Whatever a provider hands over is validated before anything else happens."""
    replies = iter([LLMReply(calls=(ToolCall(name="add", arguments=arguments, id="1"),)), LLMReply(text="sorry")])

    events, result = await observe(Agent(name="a", tools=[add], llm=Provider(lambda _: next(replies), native=True)))

    assert of_type(events, "action.started") == []
    assert of_type(events, "action.rejected")[0].payload["metadata"]["error"]["code"] == "invalid_arguments"
    assert result.output == "sorry"


async def test_text_beside_native_calls_is_kept_for_the_model_only() -> None:
    """What was said beside a call is part of the conversation and not the answer."""
    heard: list[Any] = []

    def answer(request: LLMRequest) -> LLMReply:
        heard.append([dict(message) for message in request.messages])
        if len(heard) == 1:
            return LLMReply(text="Let me add.", calls=(ToolCall(name="add", arguments={"left": 1, "right": 2}),))
        return LLMReply(text="3")

    _, result = await observe(Agent(name="a", tools=[add], llm=Provider(answer, native=True)))

    assert heard[1][1]["content"] == "Let me add."
    assert result.output == "3"


@pytest.mark.parametrize("tool_calling", ["json", "native"])
async def test_fragments_make_up_the_replies(tool_calling: Any) -> None:
    """In order and complete, over all turns."""
    llm = model(call("add", left=1, right=2), "the answer", fragment_size=3, tool_calling=tool_calling)
    handle = Agent(name="a", tools=[add], llm=llm).start_run("go")

    chunks = [chunk async for chunk in handle.chunks()]

    assert "".join(chunks).endswith("the answer")
    assert max(map(len, chunks)) == 3
    assert '"tool":"add"' in "".join(chunks)


async def test_a_provider_that_does_not_stream_is_a_stream_of_one_fragment() -> None:
    """Readers need no second way."""
    handle = Agent(name="a", llm=Provider(lambda _: LLMReply(text="whole"))).start_run("go")

    assert [chunk async for chunk in handle.chunks()] == ["whole"]


async def test_fragments_that_are_handed_over_too_late_are_dropped() -> None:
    """A reply that is complete gets no more pieces, whoever kept the request."""
    kept: list[LLMRequest] = []

    def answer(request: LLMRequest) -> LLMReply:
        kept.append(request)
        return LLMReply(text="whole")

    events, _ = await observe(Agent(name="a", llm=Provider(answer)))
    with contextlib.suppress(ConnectionAbortedError):
        kept[0].fragment("afterwards")

    assert "afterwards" not in str([event.to_dict() for event in events])


@pytest.mark.parametrize("fragment", [None, 3, b"bytes", ["x"]])
async def test_a_fragment_that_is_no_text_fails_the_attempt(fragment: Any) -> None:
    """Readers are promised texts; a falsy nothing is skipped."""

    def answer(request: LLMRequest) -> LLMReply:
        request.fragment(fragment)
        return LLMReply(text="whole")

    handle = Agent(name="a", llm=Provider(answer)).start_run("go")

    assert all(isinstance(chunk, str) for chunk in [chunk async for chunk in handle.chunks()])
    assert (await handle.result()).status == ("failed" if fragment else "completed")


async def test_a_blocking_provider_runs_in_a_worker_thread() -> None:
    """A plain `respond` may block; the loop serves others meanwhile, and its fragments arrive live."""
    home = threading.get_ident()
    threads: list[int] = []
    async with blocker() as network:

        class Blocking(LLM):
            provider, model, streaming = "blocking", "b-1", True

            def respond(self, request: LLMRequest) -> LLMReply:
                threads.append(threading.get_ident())
                request.fragment("first ")
                network.wait()
                request.fragment("second")
                return LLMReply(text="first second")

        handle = Agent(name="a", llm=Blocking()).start_run("go")
        chunks = handle.chunks()
        early = await anext(chunks)
        network.release()
        rest = [chunk async for chunk in chunks]

    assert (early, rest) == ("first ", ["second"])
    assert threads[0] != home
    assert (await handle.result()).output == "first second"


async def test_blocking_providers_are_within_the_bound_of_the_agent() -> None:
    """Model calls take worker slots as tools do."""
    lock, running, most = threading.Lock(), [0], [0]
    gate = threading.Barrier(2)

    class Blocking(LLM):
        provider, model = "blocking", "b-1"

        def respond(self, request: LLMRequest) -> LLMReply:
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            gate.wait(PATIENCE_SECONDS)
            with lock:
                running[0] -= 1
            return LLMReply(text="answer")

    agent = Agent(name="a", llm=Blocking(), max_sync_workers=2)
    answers = await asyncio.gather(*(agent.invoke("go") for _ in range(6)))

    assert answers == ["answer"] * 6
    assert most == [2]


NONSENSE: dict[str, Any] = {
    "None": None,
    "number": 3,
    "text": "answer",
    "bytes": b"answer",
    "dictionary": {"text": "answer"},
    "list": [],
    "the class": LLMReply,
    "exception": ValueError("x"),
    "text that is none": LLMReply(text=None),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "text of bytes": LLMReply(text=b"x"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "calls that are none": LLMReply(calls=("add",)),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "calls of None": LLMReply(calls=None),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "a nameless call": LLMReply(calls=(ToolCall(name=None, arguments={}),)),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "usage that is none": LLMReply(text="x", usage=None),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "calls with ids that are none": LLMReply(calls=(ToolCall(name="add", arguments={}, id=3),)),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "negative usage": LLMReply(text="x", usage=ModelUsage(input_tokens=-1000, output_tokens=1)),
    "usage without end": LLMReply(text="x", usage=ModelUsage(cost=float("inf"))),
    "usage of no number": LLMReply(text="x", usage=ModelUsage(cost=float("nan"))),
    "usage in words": LLMReply(text="x", usage=ModelUsage(output_tokens="7")),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "a request id of bytes": LLMReply(text="x", request_id=b"1"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "attempts that are none": LLMReply(text="x", attempts="many"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("said", NONSENSE)
async def test_a_provider_that_returns_nonsense_fails_the_attempt(said: str) -> None:
    """It enters no action, kills no loop, and is called a failure of the model and not of ours."""
    events, result = await observe(Agent(name="a", tools=[add], llm=Provider(lambda _: NONSENSE[said])))

    assert result.status == "failed"
    assert result.task.metadata["error"]["code"] == "model_failed"
    assert of_type(events, "action.started") == []
    assert_settled(events)


ODD_TEXTS: dict[str, str] = {
    "empty": "",
    "blank": " \n\t ",
    "lone surrogate": "half \ud800 a character",
    "NUL": "a\x00b",
    "ANSI": "\x1b[2J\x1b]0;title\x07",
    "two megabytes": "x" * 2_000_000,
    "brackets": "[" * 100_000,
    "braces": '{"a":' * 100_000,
    "NaN": '{"type":"final","content":NaN}',
    "deep nesting": '{"type":"tool_call","tool":"add","args":' + '{"a":' * 5000 + "1" + "}" * 5001,
    "two actions": '{"type":"tool_call","tool":"add","args":{}} {"type":"tool_call","tool":"add","args":{}}',
    "unknown type": '{"type":"launch","args":{}}',
    "number": "42",
    "null": "null",
    "huge number": "1" * 100_000,
}


@pytest.mark.parametrize("text", ODD_TEXTS)
async def test_odd_text_enters_nothing_and_ends_the_run_properly(text: str) -> None:
    """Any text has a meaning: an answer, or a mistake that the model is told about."""
    script = [ODD_TEXTS[text]] * 4

    events, result = await observe(Agent(name="a", tools=[add], llm=model(*script)))

    assert of_type(events, "action.started") == []
    assert result.status in ("completed", "failed")
    assert_settled(events)
    assert "\ud800" not in str([event.to_dict() for event in events])


async def test_malformed_json_can_be_corrected() -> None:
    """The model is told what is wrong, and that nothing was run."""
    llm = ListeningLLM('{"type": "tool_call", "tool": "add", "args": {', call("add", left=1, right=2))

    events, result = await observe(Agent(name="a", tools=[add], llm=llm))

    told = llm.heard[1][-1]["content"]
    assert "Nothing was run" in told
    assert '"attempt":1' in told
    assert len(of_type(events, "action.completed")) == 1
    assert result.output == "done"


@pytest.mark.parametrize("allowed", [0, 1, 2, 5, 10])
async def test_the_allowance_of_corrections_is_the_models(allowed: int) -> None:
    """`max_tool_corrections` mistakes may be corrected; one more ends the run."""
    llm = ListeningLLM(*(["{broken tool_call {"] and [f'{{"type":"tool_call","x":{n}}}' for n in range(20)]))
    llm.max_tool_corrections = allowed

    with pytest.raises(ToolCorrectionLimitError) as raised:
        await Agent(name="a", llm=llm).invoke("go", budget=RunBudget(max_steps=20))

    assert len(llm.heard) == allowed + 1
    assert (raised.value.attempts, raised.value.limit) == (allowed + 1, allowed)
    assert raised.value.last_error


@pytest.mark.parametrize("allowed", [-1, 11, True, 1.0, "2", None])
def test_an_allowance_that_is_none_is_refused(allowed: Any) -> None:
    """It is a whole number from 0 to 10."""
    with pytest.raises(ValueError, match="max_tool_corrections"):
        model().max_tool_corrections = allowed


async def test_an_exception_entry_is_a_failure_of_the_provider() -> None:
    """The caller gets it as the cause; the run says that it is recoverable."""
    with pytest.raises(ModelFailedError, match="rate limit") as raised:
        await Agent(name="a", llm=model(ConnectionError("rate limit"))).invoke("go")

    assert isinstance(raised.value.__cause__, ConnectionError)


async def test_entries_may_be_computed() -> None:
    """Callables with and without the conversation, sync and async, and awaitables in between."""

    async def later() -> str:
        return "three"

    script = [
        lambda: call("add", left=1, right=1),
        lambda history, prompt: call("add", left=len(history.messages), right=len(prompt) * 0),
        lambda: later(),
    ]

    events, result = await observe(Agent(name="a", tools=[add], llm=model(*script)))

    assert result.output == "three"
    assert len(of_type(events, "action.completed")) == 2


async def test_a_callback_reads_copies() -> None:
    """What it changes in the history changes no run."""
    sizes: list[int] = []

    def answer(history: Any, _prompt: str) -> Any:
        sizes.append(len(history.messages))
        for message in history.messages:
            message["content"] = "changed"
            message.clear()
        return call("add", left=1, right=2) if len(sizes) == 1 else "done"

    _, result = await observe(Agent(name="a", tools=[add], llm=MockLLM(response_callback=answer)))

    assert result.output == "done"
    assert sizes == [2, 4]


async def test_a_mock_turn_carries_usage_delay_and_finish_reason() -> None:
    """A scripted provider can be slow and can report."""
    turn = MockTurn("answer", delay_seconds=0.001, finish_reason="length")

    events, result = await observe(Agent(name="a", llm=model(turn)))

    details = of_type(events, "llm.call.completed")[0].payload["metadata"]
    assert details["finish_reason"] == "length"
    assert details["latency_ms"] >= 1
    assert result.output == "answer"


async def test_responses_can_depend_on_the_question() -> None:
    """`mock_responses` picks by a text in the last user message."""
    agent = Agent(name="a", llm=MockLLM(mock_responses={"weather": "sunny", "time": "late"}, default_response="?"))

    assert [await agent.invoke(text) for text in ("the weather", "the time", "else")] == ["sunny", "late", "?"]


async def test_several_parts_of_a_task_share_one_model() -> None:
    """Each is answered in turn, within one run."""
    from protolink import Message, Part

    task = Task(messages=[Message(parts=[Task.infer(prompt="one"), Part.text("two")])])

    _, result = await observe(Agent(name="a", llm=model("first", "second")), task)

    answers = [
        part.content for message in result.task.messages for part in message.parts if part.type == "infer_output"
    ]
    assert answers == ["first", "second"]
    assert result.output == "second"


async def test_a_final_action_is_its_content() -> None:
    """Also where it is data."""
    outputs = [
        (await observe(Agent(name="a", llm=model(said))))[1].output
        for said in ({"type": "final", "content": "text"}, '{"type":"final","content":{"a":1}}', {"answer": 42})
    ]

    assert outputs == ["text", '{"a":1}', '{"answer":42}']


async def test_an_agent_without_a_model_says_so() -> None:
    """At the run that needs one."""
    with pytest.raises(TaskExecutionError, match="has no model"):
        await Agent(name="a").invoke("go")


@pytest.mark.parametrize("specification", ["unknown", "openia:gpt", "", "Mock", " mock"])
def test_an_unknown_provider_lists_the_known_ones(specification: str) -> None:
    """The message helps."""
    with pytest.raises(ValueError, match="mock"):
        create_llm(specification)


@pytest.mark.parametrize("made", [None, 3, "unknown:model", object(), MockLLM])
async def test_a_factory_that_gives_no_model_fails_clearly(made: Any) -> None:
    """It is a failure of the model's side: the run is unharmed."""
    with pytest.raises(ModelFailedError):
        await Agent(name="a", llm_factory=lambda: made).invoke("go")


async def test_several_calls_of_a_reply_can_be_malformed_together() -> None:
    """One item that is no action makes the whole list a mistake; nothing of it runs."""
    script = model([call("add", left=1, right=2), {"type": "tool_call"}], calls(call("add", left=1, right=2)))

    events, _ = await observe(Agent(name="a", tools=[add], llm=script))

    assert len(of_type(events, "action.started")) == 1
    assert of_type(events, "llm.stream")[1].payload["llm_event_type"] == "llm_parse_error"


class Stateful(LLM):
    """Wants its own words back, in a form that JSON alone cannot carry."""

    provider = "stateful"
    model = "one"
    native_tools = True

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.prepared = 0

    async def prepare(self, in_thread: InThread) -> None:
        """Count."""
        self.prepared += await in_thread(int, "1")

    async def respond(self, request: LLMRequest) -> LLMReply:
        """Call a tool, then answer."""
        self.asked.append(list(request.messages))
        if len(self.asked) == 1:
            return LLMReply(calls=(ToolCall(name="look", arguments={}, id="a"),), provider_state={"signed": b"\x00"})
        return LLMReply(text="There.")


async def test_what_a_provider_wants_back_returns_with_its_reply() -> None:
    """Signed reasoning belongs in front of its calls, and to nobody but the provider."""

    def look() -> str:
        """Look."""
        return "seen"

    llm = Stateful()
    handle = Agent(name="a", llm=llm, tools=[look], verbosity=0).start_run("Where?")
    result = await handle.result()

    assert result.output == "There."
    assert llm.asked[1][1]["provider_state"] == {"signed": "AA=="}
    assert "AA==" not in str(result.report.to_dict())
    assert "AA==" not in str(result.task.to_dict())


async def test_a_model_is_prepared_once_for_a_run() -> None:
    """What it can do has to be known before its first turn, and does not change within a run."""
    llm = Stateful()

    def look() -> str:
        """Look."""
        return "seen"

    await Agent(name="a", llm=llm, tools=[look], verbosity=0).invoke("Where?")

    assert (len(llm.asked), llm.prepared) == (2, 1)


async def test_a_model_that_cannot_be_prepared_fails_its_run() -> None:
    """A missing SDK, for one, is known before anything was asked."""

    class Broken(Stateful):
        async def prepare(self, in_thread: InThread) -> None:
            raise ConfigurationError("install it")

        async def respond(self, request: LLMRequest) -> LLMReply:
            raise AssertionError("it must not be asked")

    with pytest.raises(ModelFailedError, match="cannot be used: ConfigurationError: install it"):
        await Agent(name="a", llm=Broken(), verbosity=0).invoke("Where?")
