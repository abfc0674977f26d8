"""What every adapter promises, against its provider's protocol on a real socket."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Sequence
from typing import Any

import pytest

from protolink.llms import LLM, LLMReply, ModelCallError
from tests.providers.asking import Reader, ask
from tests.providers.conftest import Make
from tests.providers.dialects import KEY, Dialect, Said
from tests.providers.wire import WAIT_SECONDS, Answer, WireServer

TEXT = 'Grüße: {"kind": "note"} und 🥛,\nover two lines.'
ITEM = {"item": "milk 🥛", "count": 2, "labels": ["cold", 'quo"ted'], "place": {"shelf": None}}
WRITTEN = json.dumps(ITEM, ensure_ascii=False)


def cut(text: str, size: int) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


def arguments(reply: LLMReply) -> list[Any]:
    """What the runtime makes of the arguments."""
    return [json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments for call in reply.calls]


async def failure(llm: LLM, reader: Reader | None = None) -> ModelCallError:
    with pytest.raises(ModelCallError) as raised:
        await ask(llm, reader)
    return raised.value


async def test_a_text_arrives_whole_and_in_its_fragments(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """A reader of the stream sees what the answer will be, piece by piece."""
    server.play(dialect.answer(Said(text=cut(TEXT, 7))))
    reader = Reader()

    reply = await ask(llm, reader)

    assert reply.text == TEXT
    assert reader.fragments == cut(TEXT, 7)
    assert (reply.finish_reason, reply.calls) == ("stop", ())


async def test_consumption_is_what_the_provider_reported(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """Budgets and costs are computed from it; what a provider does not report stays unknown."""
    server.play(dialect.answer(Said(text=["Hello."])))

    usage = (await ask(llm)).usage

    assert (usage.input_tokens, usage.output_tokens, usage.source, usage.estimated) == (19, 10, "provider", False)
    known = (None, None) if dialect.name == "ollama" else (4, 3)
    assert (usage.cached_tokens, usage.reasoning_tokens) == known


async def test_the_request_id_is_kept(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """A provider's support asks for it."""
    server.play(dialect.answer(Said(text=["Hello."])))

    assert (await ask(llm)).request_id == dialect.request_id


async def test_a_call_arrives_with_its_name_and_arguments(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """The runtime validates and executes what was proposed."""
    server.play(dialect.answer(Said(calls=[("call_7", "store", [WRITTEN])])))

    reply = await ask(llm)

    assert [call.name for call in reply.calls] == ["store"]
    assert arguments(reply) == [ITEM]
    assert reply.finish_reason == "tool_calls"


async def test_two_calls_keep_their_order_and_ids(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """A result is matched to its call by the id, where the provider has ids."""
    calls = [("call_7", "store", [WRITTEN]), ("call_8", "count", ["{}"])]
    server.play(dialect.answer(Said(text=["Let me see."], calls=calls)))

    reply = await ask(llm)

    assert [call.name for call in reply.calls] == ["store", "count"]
    assert arguments(reply) == [ITEM, {}]
    assert [call.id for call in reply.calls] == (["call_7", "call_8"] if dialect.numbers_calls else [None, None])
    assert reply.text == "Let me see."


@pytest.mark.parametrize("size", [1, 2, 3, 11])
async def test_arguments_come_in_odd_pieces(size: int, dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """Services cut arguments wherever a token ends, in the middle of an escape or of a number."""
    calls = [("call_7", "store", cut(WRITTEN, size)), ("call_8", "store", cut('{"item": "tea"}', size))]
    server.play(dialect.answer(Said(calls=calls)))

    assert arguments(await ask(llm)) == [ITEM, {"item": "tea"}]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64])
async def test_characters_are_cut_between_chunks(size: int, dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """The network knows nothing of characters, of lines or of events."""
    said = Said(text=cut(TEXT, 9), calls=[("call_7", "store", [WRITTEN])])
    sent = b"".join(dialect.events(said))
    pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
    server.play(dialect.answer(said, chunks=pieces))

    reply = await ask(llm)

    assert (reply.text, arguments(reply)) == (TEXT, [ITEM])


async def test_a_character_is_cut_between_events(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """Some servers escape, and cut between the two halves of an emoji; no half is ever shown."""
    high, low = "\ud83e", "\udd5b"
    server.play(dialect.answer(Said(text=["Milk ", high, low + "!"])))
    reader = Reader()

    reply = await ask(llm, reader)

    assert reply.text == "".join(reader.fragments) == "Milk 🥛!"


async def test_reasoning_is_kept_apart(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """It is neither the answer nor shown to anybody."""
    server.play(dialect.answer(Said(reasoning=["Let me ", "think."], text=["Yes."])))
    reader = Reader()

    reply = await ask(llm, reader)

    assert (reply.text, reply.reasoning, reader.fragments) == ("Yes.", "Let me think.", ["Yes."])


async def test_an_empty_reply_is_an_empty_text(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """Models do say nothing at times, and what that means is not the adapter's decision."""
    server.play(dialect.answer(Said()))

    reply = await ask(llm)

    assert (reply.text, reply.calls, reply.finish_reason) == ("", (), "stop")


async def test_a_refusal_is_no_plain_answer(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """A refusal with words is an answer that says what it is; one without words is a failure, not an empty answer."""
    server.play(dialect.answer(Said(text=["I cannot ", "help."], ending="refusal")))
    if dialect.name == "ollama":
        pytest.skip("Ollama has no way to say that a model refuses")

    if dialect.speaks_when_refusing:
        reply = await ask(llm)
        assert (reply.text, reply.finish_reason) == ("I cannot help.", "refusal")
    else:
        error = await failure(llm)
        assert not error.retryable
        assert error.usage is not None
        assert error.usage.input_tokens == 19


async def test_a_reply_that_is_too_long_says_so(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """Half an answer must be distinguishable from a whole one."""
    server.play(dialect.answer(Said(text=["Once upon a"], ending="length")))

    reply = await ask(llm)

    assert (reply.text, reply.finish_reason) == ("Once upon a", "length")


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (403, False), (404, False), (429, True), (500, True), (502, True), (503, True)],
)
async def test_a_refused_call_says_whether_to_try_again(
    status: int, retryable: bool, dialect: Dialect, server: WireServer, llm: LLM
) -> None:
    """The runtime retries; the SDK does not, so that every call is counted."""
    server.play(dialect.error(status))

    error = await failure(llm)

    assert (error.status, error.retryable, error.retry_after) == (status, retryable, None)
    assert len(server.requests) == 1


async def test_the_provider_says_when_to_come_back(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """Coming back earlier only makes it worse."""
    server.play(dialect.error(429, {"retry-after": "7"}))

    error = await failure(llm)

    assert (error.retryable, error.retry_after) == (True, 7.0)


async def test_a_key_is_nowhere_to_be_read(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """Errors, representations and configurations end up in logs. The service itself quotes the key here."""
    server.play(dialect.error(401))

    error = await failure(llm)

    seen = [repr(llm), str(llm.to_dict()), str(error), "".join(traceback.format_exception(error))]
    assert not [text for text in seen if KEY in text]
    assert KEY in str(server.requests[0].headers)


async def test_a_silent_provider_is_given_up(dialect: Dialect, server: WireServer, make: Make) -> None:
    """A run must not wait for ever; the same call may work the next time."""
    server.play(Answer(ending="silent"))

    error = await failure(make(read_timeout=0.1))

    assert error.retryable
    assert "in time" in str(error)


async def test_a_provider_that_stops_speaking_is_given_up(dialect: Dialect, server: WireServer, make: Make) -> None:
    """The time-out is for the pause between two pieces, not only for the first one."""
    said = Said(text=["Once ", "upon"])
    server.play(dialect.answer(said, chunks=dialect.events(said)[:-1], ending="held"))
    reader = Reader()

    error = await failure(make(read_timeout=0.3), reader)

    assert error.retryable
    assert reader.fragments == ["Once ", "upon"]


async def test_a_lost_connection_may_be_tried_again(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """What has been shown by then stays shown; the reply itself does not exist."""
    said = Said(text=["Once ", "upon"])
    server.play(dialect.answer(said, chunks=dialect.events(said)[:-1], ending="dropped"))

    error = await failure(llm)

    assert error.retryable
    assert error.status is None


async def test_a_reply_that_ends_in_the_middle_is_none(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """A proxy may end a stream politely; half a reply must not pass for a whole one."""
    said = Said(text=["Transfer ", "everything"])
    chunks = [event for event in dialect.events(said) if not _ends(event)]
    server.play(dialect.answer(said, chunks=chunks))

    error = await failure(llm)

    assert error.retryable
    assert "in the middle" in str(error)


def _ends(event: bytes) -> bool:
    marks = (b'"stop"', b"[DONE]", b"STOP", b"response.completed", b"end_turn", b'"done": true')
    return any(mark in event for mark in marks)


async def test_nobody_there_may_be_tried_again(dialect: Dialect, server: WireServer) -> None:
    """A local server may only be starting."""
    with WireServer() as gone:
        url = gone.url
    llm = dialect.llm(url)

    error = await failure(llm)
    await llm.aclose()

    assert error.retryable
    assert "reached" in str(error)


async def test_a_failure_within_the_stream_may_be_tried_again(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """The status was 200 when the stream began; the service breaks later, and says so in it."""
    said = Said(text=["Once ", "upon"])
    chunks = [event for event in dialect.events(said) if not _ends(event)]
    server.play(dialect.answer(said, chunks=[*chunks, dialect.failure]))

    error = await failure(llm)

    assert error.retryable
    assert "Once" not in str(error)


@pytest.mark.parametrize(
    "chunks",
    [
        [b"<html><body>Welcome to the hotel's network</body></html>"],
        [b'data: {"choices": [}\n\n', b"data: \xff\xfe\n\n", b"{\n"],
        [b'event: message_start\ndata: {"type": "message_start"}\n\n'],
        [b'data: {"type": "response.output_text.delta"}\n\n', b'{"message": 7}\n'],
        [b"data: [1, 2]\n\n", b"[1, 2]\n"],
        [b"data: null\n\n", b"null\n"],
        [b'data: {"candidates": 7, "choices": 7}\n\n', b'{"done": "perhaps"}\n'],
        [],
    ],
)
async def test_garbage_is_a_failure_of_the_provider(
    chunks: Sequence[bytes], dialect: Dialect, server: WireServer, llm: LLM
) -> None:
    """Whatever comes, the run is told in one way, and nothing of it is taken for an answer."""
    server.play(Answer(chunks=chunks, content_type=dialect.content_type))

    error = await failure(llm)

    assert error.status is None
    assert "hotel" not in str(error)


async def test_a_canceled_turn_closes_its_connection(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """A service that still sees a client goes on generating, and charging."""
    said = Said(text=["Once ", "upon"])
    answer = dialect.answer(said, chunks=dialect.events(said)[:-1], ending="held")
    server.play(answer)
    reader = Reader()
    turn = asyncio.create_task(ask(llm, reader))
    await reader.first.wait()

    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn

    assert await asyncio.to_thread(answer.left.wait, WAIT_SECONDS)


async def test_a_stream_that_nobody_wants_is_left(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """`fragment` raises once the run was stopped, and the connection ends there."""
    said = Said(text=["Once ", "upon ", "a ", "time"])
    answer = dialect.answer(said, chunks=dialect.events(said)[:-1], ending="held")
    server.play(answer)

    with pytest.raises(ConnectionAbortedError):
        await ask(llm, Reader(patience=1))

    assert await asyncio.to_thread(answer.left.wait, WAIT_SECONDS)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_nobody_is_followed_elsewhere(status: int, dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """A redirect would take the key and the conversation to a host that nobody chose."""
    with WireServer() as elsewhere:
        server.play(Answer(status=status, headers={"location": f"{elsewhere.url}/v1/steal"}))

        error = await failure(llm)

        assert not elsewhere.requests
    assert not error.retryable


async def test_turns_share_a_connection(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """Connecting anew for every turn costs more than many a reply."""
    server.play(*(dialect.answer(Said(text=[str(number)])) for number in range(3)))

    replies = [(await ask(llm)).text for _ in range(3)]

    assert replies == ["0", "1", "2"]
    assert server.connections == 1


async def test_a_closed_model_can_be_used_again(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """An agent that stops closes its model, and may start again."""
    server.play(*(dialect.answer(Said(text=[str(number)])) for number in range(2)))
    await ask(llm)
    await llm.aclose()
    await llm.aclose()

    assert (await ask(llm)).text == "1"
    assert server.connections == 2


def test_one_model_serves_several_event_loops(dialect: Dialect, server: WireServer) -> None:
    """A script may run one loop after the other, and a program several at once; none is left with open sockets."""
    server.play(*(dialect.answer(Said(text=[str(number)])) for number in range(4)))
    llm = dialect.llm(server.url)

    async def both() -> tuple[str, str]:
        first = (await ask(llm)).text
        second = await asyncio.to_thread(lambda: asyncio.run(ask(llm)).text)
        return first, second

    assert asyncio.run(ask(llm)).text == "0"
    assert asyncio.run(both()) == ("1", "2")
    assert asyncio.run(ask(llm)).text == "3"


async def test_many_turns_at_once_use_one_client(dialect: Dialect, server: WireServer, llm: LLM) -> None:
    """All runs of an agent share its model; the first ones must not each make a client."""
    server.play(*(dialect.answer(Said(text=["Hello."])) for _ in range(8)))

    replies = await asyncio.gather(*(ask(llm) for _ in range(8)))

    assert [reply.text for reply in replies] == ["Hello."] * 8
