"""Following runs over HTTP: reconnecting, leaving, reading nothing. Real sockets, real processes."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import pytest

from protolink.http import ApplicationLimits
from protolink.llms import LLM, LLMReply, LLMRequest
from protolink.testing import DyingLog, call
from tests.http.apps import (
    ALICE,
    BOB,
    KEYS,
    NDJSON,
    SSE,
    Messages,
    agent,
    delete,
    ended,
    events_of,
    messages_of,
    served,
    start,
    stream,
)
from tests.http.servers import connected, get, port_of, post, request_bytes
from tests.http.test_app_runs import GO, Gate


class Writer(LLM):
    """Streams a number of fragments, and lets a test go on after any of them."""

    provider, model, streaming = "test", "writer", True

    def __init__(self, fragments: int, stops: int = 0, size: int = 1) -> None:
        self.fragments = fragments
        self.stops = stops
        self.size = size
        self.go = asyncio.Event()

    async def respond(self, request: LLMRequest) -> LLMReply:
        """Say `0 1 2 ...`."""
        words = [f"{number} ".ljust(self.size, ".") for number in range(self.fragments)]
        for number, word in enumerate(words):
            if self.stops and number == self.stops:
                await self.go.wait()
            request.fragment(word)
            await asyncio.sleep(0)
        return LLMReply(text="".join(words))


def ids(messages: list[dict[str, str]]) -> list[int]:
    """The numbers of the messages."""
    return [int(message["id"]) for message in messages if "id" in message]


async def test_events_are_replayed_and_then_come_live() -> None:
    """The first ones before the tool that they announce has ended, with the numbers of the run's list."""
    gate, seen = Gate(), list[dict[str, str]]()
    async with served(agent(call("hold"), "answer", tools=[gate.hold])) as url:
        run_id = await start(url)
        await gate.entered.wait()
        async with stream(url, f"/runs/{run_id}/events") as messages:
            async for message in messages:
                seen.append(message)
                if '"action.started"' in message["data"]:
                    gate.go.set()
        replayed = messages_of((await get(url, f"/runs/{run_id}/events")).body)

    events = events_of(seen)
    assert ids(seen) == [event["sequence"] for event in events] == list(range(1, len(seen) + 1))
    assert (events[-1]["type"], events[-1]["final"]) == ("task.status", True)
    assert replayed == seen


@pytest.mark.parametrize("asked_by", ["header", "parameter"])
async def test_a_reconnect_loses_nothing_and_repeats_nothing(asked_by: str) -> None:
    """Broken off at every place, with a reset, and taken up behind it again."""
    writer = Writer(fragments=12, stops=6)
    async with served(agent(llm=writer)) as url:
        run_id = await start(url)
        last, seen = 0, list[dict[str, str]]()
        while not seen or '"final":true' not in seen[-1]["data"] or "task.status" not in seen[-1]["data"]:
            path = f"/runs/{run_id}/events" + (f"?after={last}" if asked_by == "parameter" else "")
            headers = {"Last_Event_ID": str(last)} if asked_by == "header" and last else {}
            async with connected(url) as (reader, writing):
                writing.write(request_bytes(url, path, Accept=SSE, **headers))
                async for message in await Messages(reader).begin():
                    seen.append(message)
                    last = int(message["id"])
                    if len(seen) == 7:
                        writer.go.set()
                    break
                writing.transport.abort()
        whole = messages_of((await get(url, f"/runs/{run_id}/events")).body)

    assert seen == whole
    assert ids(seen) == list(range(1, len(seen) + 1))


async def test_a_reader_at_the_end_is_told_not_to_come_back() -> None:
    """A browser connects again whenever a stream ends, unless it is answered that there is no content."""
    async with served(agent("answer")) as url:
        run_id = await start(url)
        run = await ended(url, run_id)
        reply = await get(url, f"/runs/{run_id}/events", Last_Event_ID=str(run["last_event"]))

    assert (reply.status, reply.body) == (204, b"")


@pytest.mark.parametrize(
    ("cursor", "status"), [("1000", 409), ("-1", 400), ("one", 400), ("9" * 30, 400), ("1.5", 400)]
)
async def test_a_cursor_that_leads_nowhere_is_refused(cursor: str, status: int) -> None:
    """Beyond the end, before the beginning, or no number: whoever sends it is told."""
    async with served(agent("answer")) as url:
        run_id = await start(url)
        await ended(url, run_id)
        by_header = await get(url, f"/runs/{run_id}/events", Last_Event_ID=cursor)
        by_parameter = await get(url, f"/runs/{run_id}/events?after={cursor}")

    assert (by_header.status, by_parameter.status) == (status, status)
    assert by_header.headers["content-type"] == by_parameter.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("media", [SSE, NDJSON])
async def test_a_silent_stream_shows_signs_of_life(media: str) -> None:
    """Which whoever parses it takes for nothing."""
    gate, limits = Gate(), ApplicationLimits(keep_alive_seconds=0.01)
    async with served(agent(call("hold"), "answer", tools=[gate.hold]), limits=limits) as url:
        run_id = await start(url)
        await gate.entered.wait()
        async with connected(url) as (reader, writer):
            writer.write(request_bytes(url, f"/runs/{run_id}/events", Accept=media))
            await reader.readuntil(b"\r\n: \n\n" if media == SSE else b"\r\n\n")
            gate.go.set()
            rest = await reader.read()

    assert b'"final":true' in rest


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_client_that_leaves_ends_no_run_unless_it_has_asked_for_that(cancels: bool) -> None:
    """The connection is reset in the middle of a stream."""
    gate = Gate()
    async with served(agent(call("hold"), "answer", tools=[gate.hold])) as url:
        path = f"/runs?cancel_on_disconnect={str(cancels).lower()}"
        async with connected(url) as (reader, writer):
            writer.write(request_bytes(url, path, json.dumps(GO).encode(), Accept=SSE))
            messages = await Messages(reader).begin()
            await gate.entered.wait()
            writer.transport.abort()
        run_id = messages.head.lower().partition(b"x-run-id: ")[2][:32].decode()
        if cancels:
            await gate.canceled.wait()
        else:
            gate.go.set()
        run = await ended(url, run_id)

    assert run["status"] == ("canceled" if cancels else "completed")


_LISTENER = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
connection.request("POST", "/runs", '{"agent": "reader", "prompt": "go"}',
                   {"Content-Type": "application/json", "Accept": "text/event-stream"})
reply = connection.getresponse()
print(reply.headers["X-Run-ID"], flush=True)
while line := reply.readline():
    if b"action.started" in line:
        print("started", flush=True)
"""


async def test_a_client_that_is_killed_ends_no_run() -> None:
    """Its process is gone in the middle of the stream; the next one reads all of it."""
    gate = Gate()
    async with served(agent(call("hold"), "answer", tools=[gate.hold])) as url:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _LISTENER, str(port_of(url)), stdout=asyncio.subprocess.PIPE
        )
        assert client.stdout is not None
        run_id = (await client.stdout.readline()).decode().strip()
        assert await client.stdout.readline() == b"started\n"
        client.kill()
        await client.wait()
        gate.go.set()
        run = await ended(url, run_id)
        messages = messages_of((await get(url, f"/runs/{run_id}/events")).body)

    assert (run["status"], run["output"]) == ("completed", "answer")
    assert ids(messages) == list(range(1, len(messages) + 1))


async def test_two_hundred_streams_at_once_lose_nothing() -> None:
    """Of a hundred events each, in order, while all of them are open."""
    streams, fragments = 200, 95
    async with served(agent(llm=Writer(fragments))) as url:

        async def watch() -> list[int]:
            reply = await post(url, "/runs", GO, Accept=SSE)
            messages = messages_of(reply.body)
            said = [event["payload"]["content"] for event in events_of(messages) if "content" in event["payload"]]
            assert "".join(said[:-1]) == said[-1]
            return ids(messages)

        seen = await asyncio.gather(*(watch() for _ in range(streams)))

    assert all(numbers == list(range(1, fragments + 6)) for numbers in seen)


async def test_readers_of_one_run_see_the_same() -> None:
    """However many there are, and whenever they came."""
    writer = Writer(fragments=20, stops=10)
    async with served(agent(llm=writer)) as url:
        run_id = await start(url)

        async def watch() -> list[dict[str, str]]:
            return messages_of((await get(url, f"/runs/{run_id}/events", Accept=SSE)).body)

        reading = [asyncio.create_task(watch()) for _ in range(10)]
        async with stream(url, f"/runs/{run_id}/events") as messages:
            async for message in messages:
                if '"9 "' in message["data"]:
                    writer.go.set()
        seen = await asyncio.gather(*reading, watch())

    assert all(messages == seen[0] for messages in seen)
    assert len(seen[0]) == 25


async def test_a_client_that_stops_reading_is_dropped_and_the_run_goes_on() -> None:
    """It holds up nobody, and what it has not read is not kept for it."""
    limits = ApplicationLimits(write_seconds=0.05, max_requests_per_principal=2)
    writer = Writer(fragments=150, stops=1, size=20_000)
    async with served(agent(llm=writer), limits=limits) as url:
        run_id = await start(url)
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck.connect(("127.0.0.1", port_of(url)))
            stuck.sendall(request_bytes(url, f"/runs/{run_id}/events"))
            await asyncio.to_thread(stuck.recv, 1)
            writer.go.set()
            run = await ended(url, run_id)
            # The place of the dropped one is free again.
            async with stream(url, f"/runs/{run_id}/events"), stream(url, f"/runs/{run_id}/events"):
                pass

    assert run["status"] == "completed"


async def test_what_is_over_leaves_nobody_behind() -> None:
    """A hundred clients that leave a silent run leave no task and no reader."""
    gate = Gate()
    async with served(agent(call("hold"), "answer", tools=[gate.hold])) as url:
        run_id = await start(url)
        await gate.entered.wait()
        before = len(asyncio.all_tasks())
        for _ in range(100):
            async with stream(url, f"/runs/{run_id}/events") as messages:
                async for _ in messages:
                    break
        while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110 - nobody tells when a task of uvicorn's is over
            await asyncio.sleep(0)
        await delete(url, f"/runs/{run_id}")


async def test_a_stream_of_somebody_else_is_not_there() -> None:
    """Also with a number that its owner has seen."""
    gate = Gate()
    async with served(agent(call("hold"), tools=[gate.hold]), authenticator=KEYS) as url:
        run_id = await start(url, key=ALICE)
        await gate.entered.wait()
        reply = await get(url, f"/runs/{run_id}/events", Last_Event_ID="2", X_API_Key=BOB)

    assert reply.status == 404


async def test_the_last_words_of_a_run_whose_store_fails_are_a_problem() -> None:
    """The stream does not just end: nobody could tell that from a run that has."""
    reader = agent(call("hold"), tools=[Gate().hold], durability=DyingLog(dies_at=3))
    async with served(reader) as url:
        reply = await post(url, "/runs", GO, Accept=SSE)

    last: Any = messages_of(reply.body)[-1]
    assert last["event"] == "error"
    assert json.loads(last["data"])["status"] == 503
