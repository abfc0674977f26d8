"""What single services do differently, each as it was documented or seen."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from protolink._environment import use_environment
from protolink.llms import LLM, LLMReply, ModelCallError, create_llm
from protolink.testing import ManualClock
from tests.providers.asking import Reader, ask
from tests.providers.dialects import KEY, Anthropic, Chat, Compatible, Gemini, Said, sse
from tests.providers.wire import Answer, WireServer


@pytest.fixture
async def compatible(server: WireServer) -> AsyncIterator[LLM]:
    llm = Compatible().llm(server.url)
    yield llm
    await llm.aclose()


def chunks(*deltas: Any, reason: str = "tool_calls", **rest: Any) -> Answer:
    """Chunks with only what a compatible server cannot leave out."""
    events = [sse({"choices": [{"index": 0, "delta": delta}], **rest}) for delta in deltas]
    last = sse({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    return Answer(chunks=[*events, last, b"data: [DONE]\n\n"], content_type="text/event-stream")


def called(index: int | None, name: str, arguments: Any, id: str | None) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}


def made(reply: LLMReply) -> list[tuple[str, Any, str | None]]:
    return [(call.name, json.loads(call.arguments), call.id) for call in reply.calls]


@pytest.mark.parametrize("index", [0, None])
async def test_calls_without_a_number_of_their_own_stay_apart(
    index: int | None, server: WireServer, compatible: LLM
) -> None:
    """Some servers send each call whole, and number none of them or all of them alike."""
    server.play(chunks(called(index, "store", '{"item": 1}', "a"), called(index, "count", "{}", "b")))

    assert made(await ask(compatible)) == [("store", {"item": 1}, "a"), ("count", {}, "b")]


async def test_arguments_may_be_an_object_already(server: WireServer, compatible: LLM) -> None:
    """Servers that parse what the model said give an object where the documentation has a text."""
    server.play(chunks(called(0, "store", {"item": "milk 🥛"}, "a")))

    assert made(await ask(compatible)) == [("store", {"item": "milk 🥛"}, "a")]


async def test_reasoning_has_another_name_elsewhere(server: WireServer, compatible: LLM) -> None:
    """Newer servers call it `reasoning`."""
    server.play(chunks({"reasoning": "Hm."}, {"content": "Yes."}, reason="stop"))

    reply = await ask(compatible)

    assert (reply.text, reply.reasoning) == ("Yes.", "Hm.")


async def test_content_may_come_in_typed_pieces(server: WireServer, compatible: LLM) -> None:
    """Mistral's reasoning models separate thinking from text within the content."""
    thought = {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]}
    server.play(chunks(thought, {"content": [{"type": "text", "text": "Yes."}]}, reason="stop"))
    reader = Reader()

    reply = await ask(compatible, reader)

    assert (reply.text, reply.reasoning, reader.fragments) == ("Yes.", "Hm.", ["Yes."])


async def test_a_server_without_usage_leaves_it_unknown(server: WireServer, compatible: LLM) -> None:
    """A zero would let a run pass its budget; the runtime estimates, and says so."""
    server.play(chunks({"content": "Yes."}, reason="stop"))

    usage = (await ask(compatible)).usage

    assert (usage.input_tokens, usage.output_tokens, usage.source) == (None, None, "unknown")


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Fri, 01 Jan 2027 00:00:30 GMT"}, 30.0),
        ({"retry-after": "Fri, 01 Jan 2026 00:00:30 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
async def test_the_wish_to_wait_has_several_forms(
    headers: dict[str, str], seconds: float | None, server: WireServer
) -> None:
    """A number, milliseconds, or a date of HTTP; what is none of them is no wish."""
    llm = Chat().llm(server.url)
    server.play(Chat().error(429, headers))

    with use_environment(ManualClock(start=1_798_761_600.0)), pytest.raises(ModelCallError) as raised:
        await ask(llm)
    await llm.aclose()

    assert raised.value.retry_after == seconds


async def test_gemini_says_in_the_error_when_to_come_back(server: WireServer) -> None:
    """Its quota errors have no header."""
    body = Gemini().error_body(429, "Quota exceeded.")
    body["error"]["details"] = [
        {"@type": "type.googleapis.com/google.rpc.Help", "links": []},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "36s"},
    ]
    server.play(Answer(status=429, chunks=[json.dumps(body).encode()]))
    llm = Gemini().llm(server.url)

    with pytest.raises(ModelCallError, match="429 RESOURCE_EXHAUSTED") as raised:
        await ask(llm)
    await llm.aclose()

    assert raised.value.retry_after == 36.0


async def test_a_quota_that_is_used_up_is_not_waited_for(server: WireServer) -> None:
    """It is a 429 like any other but for its code."""
    error = {"message": "You exceeded your current quota.", "type": "insufficient_quota", "code": "insufficient_quota"}
    server.play(Answer(status=429, chunks=[json.dumps({"error": error}).encode()]))
    llm = Chat().llm(server.url)

    with pytest.raises(ModelCallError, match="insufficient_quota") as raised:
        await ask(llm)
    await llm.aclose()

    assert not raised.value.retryable


@pytest.mark.parametrize(("said", "retryable"), [("true", True), ("false", False)])
async def test_a_service_may_decide_about_retries(said: str, retryable: bool, server: WireServer) -> None:
    """Two of the services say so in a header, against what the status would mean."""
    llm = Anthropic().llm(server.url)
    server.play(Anthropic().error(400 if retryable else 500, {"x-should-retry": said}))

    with pytest.raises(ModelCallError) as raised:
        await ask(llm)
    await llm.aclose()

    assert raised.value.retryable is retryable


async def test_a_refused_call_names_its_request(server: WireServer) -> None:
    """The provider's support can find it; the words of the service stay in the cause."""
    llm = Anthropic().llm(server.url)
    server.play(Anthropic().error(400))

    with pytest.raises(ModelCallError, match=r"lost the call: 400 invalid_request_error$") as raised:
        await ask(llm)
    await llm.aclose()

    assert raised.value.request_id == Anthropic.request_id


async def test_a_prompt_that_gemini_blocks_is_no_answer(server: WireServer) -> None:
    """The stream then has no candidate at all."""
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 5}}
    server.play(Answer(chunks=[sse(blocked)], content_type="text/event-stream"))
    llm = Gemini().llm(server.url)

    with pytest.raises(ModelCallError, match="refused to answer") as raised:
        await ask(llm)
    await llm.aclose()

    assert not raised.value.retryable
    assert raised.value.usage is not None
    assert raised.value.usage.input_tokens == 5


async def test_a_call_that_gemini_cannot_read_may_be_tried_again(server: WireServer) -> None:
    """The model said something that only looked like a call; the next attempt may be better."""
    broken = {"candidates": [{"finishReason": "MALFORMED_FUNCTION_CALL", "index": 0}]}
    server.play(Answer(chunks=[sse(broken)], content_type="text/event-stream"))
    llm = Gemini().llm(server.url)

    with pytest.raises(ModelCallError, match="MALFORMED_FUNCTION_CALL") as raised:
        await ask(llm)
    await llm.aclose()

    assert raised.value.retryable


async def test_a_lost_reply_says_what_it_has_cost(server: WireServer) -> None:
    """Anthropic reports the input with the first event; the run is charged for it although it has no reply."""
    said = Said(text=["Once "])
    server.play(Anthropic().answer(said, chunks=Anthropic().events(said)[:4], ending="dropped"))
    llm = Anthropic().llm(server.url)

    with pytest.raises(ModelCallError) as raised:
        await ask(llm)
    await llm.aclose()

    assert raised.value.usage is not None
    assert (raised.value.usage.input_tokens, raised.value.usage.source) == (19, "provider")


@pytest.mark.parametrize("name", ["vllm", "lmstudio", "llamacpp", "xai", "deepseek", "mistral"])
async def test_presets_speak_chat_completions(name: str, server: WireServer) -> None:
    """They differ in where the service is, whose key it wants and what it refuses."""
    llm = create_llm(f"{name}:model", api_key=KEY, base_url=f"{server.url}/v1")
    server.play(Compatible().answer(Said(text=["Hello."])))
    history: Sequence[Any] = [
        {"role": "user", "content": "Store milk."},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "call_1", "name": "store", "arguments": {}}]},
        {"role": "tool", "name": "store", "tool_call_id": "call_1", "content": "stored"},
        {"role": "user", "content": "And?"},
    ]

    reply = await ask(llm, messages=history)
    await llm.aclose()

    body = server.requests[0].body
    roles = [message["role"] for message in body["messages"]]
    between = ["assistant"] if name == "mistral" else []
    assert reply.text == "Hello."
    assert roles == ["system", "user", "assistant", "tool", *between, "user"]
    assert (body["model"], server.requests[0].headers["authorization"]) == ("model", f"Bearer {KEY}")
