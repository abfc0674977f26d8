"""Attacks on the HTTP application, by their ids in the threat model: real sockets, and a real server around it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from protolink import AgentGroup
from protolink.http import ApplicationLimits, JWTAuthenticator, create_app
from protolink.http.routes import ROUTES
from protolink.testing import call
from protolink.transport.http import APIKeyAuthenticator
from tests.http.apps import (
    ALICE,
    BOB,
    KEYS,
    NDJSON,
    SSE,
    agent,
    delete,
    ended,
    events_of,
    messages_of,
    served,
    serving,
    start,
    stream,
)
from tests.http.servers import Reply, connected, exchange, get, hung_up, port_of, post, request_bytes
from tests.http.stored_app import process, reader
from tests.http.test_app_bad_input import assert_problem
from tests.http.test_app_runs import GO, Gate
from tests.http.test_app_streams import Writer
from tests.support import model

BODIES: dict[str, Any] = {
    "start": GO,
    "resume": {},
    "decide": {"request_id": "r", "approved": True},
}

PATHS = {
    ("POST", "/runs"): "start",
    ("GET", "/runs/{run_id}"): "status",
    ("DELETE", "/runs/{run_id}"): "cancel",
    ("GET", "/runs/{run_id}/events"): "events",
    ("GET", "/runs/{run_id}/evidence"): "evidence",
    ("POST", "/runs/{run_id}/resume"): "resume",
    ("POST", "/runs/{run_id}/decisions"): "decide",
    ("GET", "/openapi.json"): "describe",
}
"""Every route that there is. One that is added has to be listed here, and is then asked for by everybody below."""

OF_A_RUN = sorted(operation for (_, path), operation in PATHS.items() if "{run_id}" in path)


async def ask(url: str, operation: str, run_id: str, **headers: Any) -> Reply:
    """Ask for an operation, on a run where it concerns one."""
    method, path = next(at for at, listed in PATHS.items() if listed == operation)
    body = json.dumps(BODIES[operation]).encode() if operation in BODIES else None
    return await exchange(url, request_bytes(url, path.replace("{run_id}", run_id), body, method=method, **headers))


def test_c02_every_route_is_listed() -> None:
    """A route that nobody listed is one that nobody has tried to get into."""
    assert {(route.method, route.path): route.operation for route in ROUTES} == PATHS


@pytest.mark.parametrize("client", [("203.0.113.7", 1), ("10.0.0.1", 1), ("fe80::1", 1), ("2001:db8::1", 1)])
async def test_c01_other_machines_are_not_answered_without_authentication(client: tuple[str, int]) -> None:
    """Unless the application says that this is meant."""

    def coming_from(app: Any) -> Any:
        async def moved(scope: Any, receive: Any, send: Any) -> None:
            await app({**scope, "client": client} if scope["type"] == "http" else scope, receive, send)

        return moved

    group = AgentGroup([agent("answer", "answer")])
    async with serving(coming_from(create_app(group))) as url:
        assert_problem(await post(url, "/runs", GO), 403)
    async with serving(coming_from(create_app(group, allow_unauthenticated=True))) as url:
        assert (await post(url, "/runs", GO)).status == 202
    async with serving(coming_from(create_app(group, authenticator=KEYS))) as url:
        assert (await post(url, "/runs", GO, X_API_Key=ALICE)).status == 202


@pytest.mark.parametrize("operation", sorted(PATHS.values()))
async def test_c01_every_route_asks_who_is_there(operation: str) -> None:
    """Nobody, somebody with a wrong key, and somebody with a key in the wrong place."""
    async with served(agent("answer"), authenticator=KEYS) as url:
        for headers in ({}, {"X_API_Key": ALICE[:-1]}, {"Authorization": f"Basic {ALICE}"}, {"Cookie": f"key={ALICE}"}):
            reply = await ask(url, operation, "r", **headers)
            assert_problem(reply, 401)
            assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("operation", OF_A_RUN)
@pytest.mark.parametrize("state", ["at work", "ended", "stored"])
async def test_c02_what_is_not_yours_is_not_there(operation: str, state: str, tmp_path: Path) -> None:
    """Byte for byte the same answer, and the run goes on as if nobody had asked."""
    gate = Gate()
    members = {
        "at work": agent(call("hold"), tools=[gate.hold]),
        "ended": agent("answer"),
        "stored": reader(tmp_path / "runs.sqlite"),
    }
    async with served(members[state], authenticator=KEYS) as url:
        run_id = await start(url, "publish answer", key=ALICE)
        if state == "at work":
            await gate.entered.wait()
        else:
            await ended(url, run_id, X_API_Key=ALICE)
        before = (await get(url, f"/runs/{run_id}", X_API_Key=ALICE)).body
        theirs, nobodys = [await ask(url, operation, asked, X_API_Key=BOB) for asked in (run_id, "0" * 32)]
        after = (await get(url, f"/runs/{run_id}", X_API_Key=ALICE)).body

    assert_problem(theirs, 404)
    assert (theirs.body, {**theirs.headers, "date": ""}) == (nobodys.body, {**nobodys.headers, "date": ""})
    assert before == after


async def test_c02_runs_of_the_application_itself_are_nobodys() -> None:
    """What the host has started for itself is out of every client's reach."""
    group = AgentGroup([agent("answer")])
    async with serving(create_app(group)) as url:
        handle = group.run("reader", "go")
        await handle.result()
        assert (await get(url, f"/runs/{handle.run_id}")).status == 404


async def test_c02_an_idempotency_key_tells_nothing_of_anybody_else(tmp_path: Path) -> None:
    """The same key and the same body: each has a run of their own, in memory and in a store."""
    async with served(
        agent("a", "b"), agent(name="stored", durability=tmp_path / "r.sqlite"), authenticator=KEYS
    ) as url:
        for name in ("reader", "stored"):
            request = {**GO, "agent": name}
            mine, theirs = [
                await post(url, "/runs", request, Idempotency_Key=name, X_API_Key=key) for key in (ALICE, BOB)
            ]
            assert (mine.status, theirs.status) == (202, 202)
            assert mine.json["run_id"] != theirs.json["run_id"]
            other = await post(url, "/runs", {**request, "prompt": "x"}, Idempotency_Key=f"{name}2", X_API_Key=BOB)
            assert other.status == 202


HOSTS = [
    "evil.example",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "evil.example:80",
    "[::2]",
    "",
    "localhost@evil",
]
ORIGINS = [
    "https://evil.example",
    "http://localhost",
    "http://127.0.0.1",
    "null",
    "file://",
    "https://good.example.evil.example",
    "http://good.example",
    "https://good.example:444",
    "HTTPS://GOOD.EXAMPLE",
    "https://good.example/",
]


@pytest.mark.parametrize("operation", sorted(PATHS.values()))
async def test_c03_a_web_page_drives_no_local_server(operation: str) -> None:
    """Neither by a name that was made to lead here, nor from its own origin; whatever it asks for."""
    async with served(agent("answer"), allowed_origins=["https://good.example"]) as url:
        for host in HOSTS:
            assert_problem(await ask(url, operation, "r", Host=host), 403)
        for origin in ORIGINS:
            assert_problem(await ask(url, operation, "r", Origin=origin), 403)
        allowed = await ask(url, operation, "r", Origin="https://good.example")

    assert allowed.status != 403
    assert "access-control-allow-origin" not in allowed.headers


async def test_c03_the_hosts_own_names_are_allowed_by_name() -> None:
    """A public one has to be listed."""
    async with served(agent("answer", "answer"), allowed_hosts=["agents.example"]) as url:
        assert (await post(url, "/runs", GO, Host="agents.example")).status == 202
        assert (await post(url, "/runs", GO, Host="AGENTS.example:8443")).status == 202
        assert_problem(await post(url, "/runs", GO), 403)


async def test_c04_runs_at_work_are_counted_by_client() -> None:
    """What one client has at work keeps no other from starting anything."""
    gate, limits = Gate(), ApplicationLimits(max_runs_per_principal=2, max_runs=3)
    holding = agent(*[call("hold")] * 9, tools=[gate.hold])
    async with served(holding, authenticator=KEYS, limits=limits) as url:
        mine = [await post(url, "/runs", GO, X_API_Key=ALICE) for _ in range(3)]
        theirs = [await post(url, "/runs", GO, X_API_Key=BOB) for _ in range(2)]
        canceled = await delete(url, f"/runs/{mine[0].json['run_id']}", X_API_Key=ALICE)
        again = await post(url, "/runs", GO, X_API_Key=ALICE)

    assert [reply.status for reply in mine] == [202, 202, 429]
    assert [reply.status for reply in theirs] == [202, 429]
    assert mine[-1].headers["retry-after"] == "1"
    assert (canceled.status, again.status) == (200, 202)


async def test_c04_streams_are_counted_by_client() -> None:
    """An open stream is a request that is being answered."""
    gate, limits = Gate(), ApplicationLimits(max_requests_per_principal=2)
    async with served(agent(call("hold"), tools=[gate.hold]), authenticator=KEYS, limits=limits) as url:
        run_id = await start(url, key=ALICE)
        path = f"/runs/{run_id}/events"
        async with stream(url, path, X_API_Key=ALICE), stream(url, path, X_API_Key=ALICE):
            assert_problem(await get(url, f"/runs/{run_id}", X_API_Key=ALICE), 429)
            assert (await get(url, "/openapi.json", X_API_Key=BOB)).status == 200


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_c04_a_compressed_body_is_not_unpacked(encoding: str) -> None:
    """However small it is, nobody knows how large it would become."""
    async with served(agent("answer")) as url:
        assert_problem(await post(url, "/runs", GO, Content_Encoding=encoding), 415)


async def test_c04_a_slow_body_is_given_up_and_others_are_answered() -> None:
    """A sender that stops half-way holds up nobody."""
    limits = ApplicationLimits(body_seconds=0.2)
    async with served(agent("answer"), limits=limits) as url, connected(url) as (receiver, sender):
        sender.write(request_bytes(url, "/runs", b'{"agent"', Content_Length="100"))
        assert (await post(url, "/runs", GO)).status == 202
        assert b" 408 " in await receiver.readline()


async def test_c04_multipart_is_no_way_in() -> None:
    """There is no parser for it."""
    async with served(agent("answer")) as url:
        body = b'--x\r\nContent-Disposition: form-data; name="agent"\r\n\r\nreader\r\n--x--\r\n'
        assert_problem(
            await exchange(url, request_bytes(url, "/runs", body, Content_Type="multipart/form-data; boundary=x")), 415
        )


async def test_c04_large_headers_are_refused() -> None:
    """Many of them, or a long one."""
    limits = ApplicationLimits(max_header_bytes=4000, max_header_fields=20)
    async with served(agent("answer"), limits=limits) as url:
        assert_problem(await get(url, "/openapi.json", X_Long="x" * 5000), 431)
        assert_problem(await get(url, "/openapi.json", **{f"X_{number}": "x" for number in range(30)}), 431)


async def test_c05_no_part_of_a_request_becomes_an_address() -> None:
    """Forwarding fields and an absolute target change neither the location nor the description."""
    headers = {
        "X_Forwarded_Host": "evil.example",
        "X_Forwarded_Proto": "https",
        "X_Forwarded_Prefix": "/evil",
        "Forwarded": "host=evil.example",
        "Range": "bytes=" + ",".join(f"{number}-" for number in range(500)),
    }
    async with served(agent("answer")) as url:
        reply = await post(url, "/runs", GO, **headers)
        described = await get(url, "/openapi.json", **headers)

    assert reply.headers["location"] == f"/runs/{reply.json['run_id']}"
    assert (described.status, described.json["servers"]) == (200, [{"url": "/"}])
    assert b"evil" not in described.body


@pytest.mark.parametrize(
    "host", ["localhost/evil", "localhost?evil", "localhost#evil", "a b", "localhost\tevil", "[::1"]
)
async def test_c05_a_malformed_host_is_refused(host: str) -> None:
    """By the server or by the application, and never with a fault."""
    async with served(agent("answer")) as url:
        assert (await get(url, "/openapi.json", Host=host)).status in (400, 403)


async def test_c06_five_hundred_readers_that_read_nothing_cost_little(tmp_path: Path) -> None:
    """Of a run with a large list: the server grows by less than 64 MiB, and the next client is answered."""
    async with process(tmp_path / "runs.sqlite") as (url, server):
        run_id = await start(url, "look " * 9 + "answer " + "x" * 200_000)
        await ended(url, run_id)
        before = resident(server.pid)
        with contextlib.ExitStack() as stack:
            for _ in range(500):
                stuck = stack.enter_context(socket.socket())
                stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                stuck.connect(("127.0.0.1", port_of(url)))
                stuck.sendall(request_bytes(url, f"/runs/{run_id}/events"))
            run = (await get(url, f"/runs/{run_id}")).json
            grown = resident(server.pid) - before

    assert run["status"] == "completed"
    assert grown < 64 * 2**20


def resident(pid: int) -> int:
    """The memory of a process, in bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_c06_a_stuck_reader_holds_up_no_run_and_no_other_reader() -> None:
    """It is dropped after a while; the others see everything."""
    limits = ApplicationLimits(write_seconds=0.05)
    writer = Writer(fragments=150, stops=1, size=20_000)
    async with served(agent(llm=writer), limits=limits) as url:
        run_id = await start(url)
        with socket.socket() as stuck:
            stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            stuck.connect(("127.0.0.1", port_of(url)))
            stuck.sendall(request_bytes(url, f"/runs/{run_id}/events"))
            await asyncio.to_thread(stuck.recv, 1)
            writer.go.set()
            seen = messages_of((await get(url, f"/runs/{run_id}/events")).body)

    assert [int(message["id"]) for message in seen][-1] == 155
    assert events_of(seen)[-1]["final"]


async def test_c06_a_client_that_leaves_is_noticed() -> None:
    """A reset in the middle of a silent stream gives its place back, with no event to notice it by."""
    gate, limits = Gate(), ApplicationLimits(max_requests_per_principal=1)
    async with served(agent(call("hold"), tools=[gate.hold]), authenticator=KEYS, limits=limits) as url:
        run_id = await start(url, key=ALICE)
        await gate.entered.wait()
        for _ in range(20):
            async with connected(url) as (receiver, sender):
                sender.write(request_bytes(url, f"/runs/{run_id}/events", X_API_Key=ALICE))
                await receiver.readuntil(b"event: event")
                sender.transport.abort()
            while (await get(url, "/openapi.json", X_API_Key=ALICE)).status == 429:
                pass


PAYLOADS = [
    "\r\n\r\n",
    "\n\nevent: error\ndata: {}\n\n",
    "\r",
    "\u2028",
    "\u2029",
    "\x00",
    "\x85",
    "\ud800",
    ": \n\n",
    "\nid: 9999\n",
]


async def test_c07_what_a_model_says_begins_no_message() -> None:
    """In a name, an argument, a fragment, an answer and an error, as server-sent events and as lines."""
    random.seed(7)
    texts = ["".join(random.choices(PAYLOADS, k=4)) for _ in range(20)]

    def note(text: str) -> None:
        """Fail with a text."""
        raise ValueError(text)

    script = [call(f"no{texts[0]}", text=texts[1]), *texts]
    async with served(agent(*script, call("note", text=texts[2]), tools=[note])) as url:
        for _ in range(len(texts)):
            reply = await post(url, "/runs", {**GO, "prompt": texts[0].replace("\ud800", "?")}, Accept=SSE)
            messages = messages_of(reply.body)
            assert [int(message["id"]) for message in messages] == list(range(1, len(messages) + 1))
            assert {message["event"] for message in messages} == {"event"}
            lines = (await get(url, f"{reply.headers['location']}/events", Accept=NDJSON)).body
            assert [json.loads(line) for line in lines.decode().splitlines()] == events_of(messages)


@pytest.mark.parametrize("operation", sorted(PATHS.values()))
async def test_c08_nothing_is_served_that_a_browser_would_draw(operation: str) -> None:
    """Markup in a prompt, an answer or a name stays a value in JSON or in a stream, whatever a browser guesses."""
    markup = "<script>alert(1)</script>"
    async with served(agent(markup, name="reader"), agent(name=markup)) as url:
        run_id = await start(url, markup, session_id=markup)
        await ended(url, run_id)
        reply = await ask(url, operation, run_id)

    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["content-type"] in ("application/json", "application/problem+json", SSE)


async def test_c10_what_fails_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever stands in it; the client is told the id that the line has, and nothing else."""

    class Failing:
        async def authenticate(self, headers: Any) -> str | None:
            raise RuntimeError(f"hunter2\n\r\u2028ERROR forged {headers['x-api-key']}\x1b[2J")

    async with served(agent("answer"), authenticator=Failing()) as url:
        reply = await post(url, "/runs", GO, X_API_Key="ERROR forged")

    (record,) = [record for record in caplog.records if record.name == "protolink"]
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029]", record.getMessage())
    assert (reply.status, reply.headers["content-type"]) == (500, "application/problem+json")
    assert reply.json["id"] in record.getMessage()
    assert b"hunter2" not in reply.body


async def test_c12_a_token_for_another_audience_opens_nothing() -> None:
    """The signature alone proves nothing about whom it was meant for."""
    key = "a-secret-of-at-least-thirty-two-bytes"
    tokens = JWTAuthenticator(key, algorithms=["HS256"], audience="reader")
    claims = {"sub": "alice", "exp": time.time() + 60}
    async with served(agent("answer"), authenticator=tokens) as url:
        for audience, status in (("reader", 202), ("writer", 401)):
            token = jwt.encode({**claims, "aud": audience}, key, algorithm="HS256")
            assert (await post(url, "/runs", GO, Authorization=f"Bearer {token}")).status == status


async def test_c16_a_request_that_is_sent_again_is_one_run() -> None:
    """As long as its key is remembered, which is bounded for each client."""
    gate, limits = Gate(), ApplicationLimits(max_idempotency_keys_per_principal=2, max_idempotency_keys=100)
    holding = agent(*[call("hold")] * 20, tools=[gate.hold])
    async with served(holding, authenticator=KEYS, limits=limits) as url:

        async def sent(key: str, by: str) -> str:
            reply = await post(url, "/runs", GO, Idempotency_Key=key, X_API_Key=by)
            return str(reply.json["run_id"])

        first = await sent("k", ALICE)
        flood = [await sent(str(number), BOB) for number in range(10)]
        assert await sent("k", ALICE) == first
        assert await sent("9", BOB) == flood[9]
        assert await sent("0", BOB) != flood[0]


SECRETS = re.compile(rb"Traceback|File \"|/src/|/tmp/|site-packages|hunter2|protolink/|0x[0-9a-f]{6}")


async def test_c17_refusals_tell_nothing_of_the_inside(tmp_path: Path) -> None:
    """No path, no trace, no version, no prompt, no argument, no word of a store or of who drives a run."""
    store = tmp_path / "hunter2.sqlite"
    async with served(reader(store)) as url:
        run_id = await start(url, "publish hunter2")
        await ended(url, run_id)
        replies = [
            await post(url, "/runs", {**GO, "hunter2": "hunter2"}),
            await post(url, "/runs", {**GO, "agent": "hunter2"}),
            await post(url, "/runs", {**GO, "session_id": "hunter2\n"}),
            await post(url, "/runs", {**GO, "budget": {"max_steps": "hunter2"}}),
            await post(
                url, f"/runs/{run_id}/decisions", {"request_id": "no", "approved": True, "fingerprint": "hunter2"}
            ),
            await post(url, f"/runs/{run_id}/resume", {"hunter2": 1}),
            await get(url, "/runs/hunter2"),
            await get(url, f"/runs/{run_id}/events?after=hunter2"),
            await exchange(url, request_bytes(url, "/runs", b'{"hunter2')),
            await exchange(url, request_bytes(url, "/runs", b'["hunter2"]')),
            await exchange(url, request_bytes(url, "/runs", b'"hunter2"', Content_Type="text/hunter2")),
            await exchange(url, request_bytes(url, "/runs", b"{}", Content_Encoding="hunter2")),
            await exchange(url, request_bytes(url, "/runs", b"[" * 1000 + b"]" * 1000)),
            await exchange(url, request_bytes(url, "/runs", b'{"agent":"hunter2","agent":"hunter2"}')),
            await exchange(url, request_bytes(url, "/runs", b"x" * 2_000_000)),
            await exchange(url, request_bytes(url, "/hunter2")),
            await exchange(url, request_bytes(url, "/runs", method="HUNTER2")),
            await exchange(url, request_bytes(url, f"/runs/{run_id}", method="PUT")),
            await get(url, "/runs", Host="hunter2.example"),
            await get(url, "/runs", Origin="http://hunter2.example"),
            await get(url, f"/runs/{run_id}/events", Accept="application/hunter2"),
            await get(url, f"/runs/{run_id}/events", Last_Event_ID="hunter2"),
            await get(url, f"/runs/{run_id}/events?after=99999"),
            await get(url, f"/runs/{run_id}/hunter2"),
            await get(url, "/runs/%2e%2e%2fhunter2"),
            await get(url, "/openapi.json", X_Hunter2="hunter2" * 10_000),
            await post(url, "/runs", GO, Idempotency_Key="hunter2" * 100),
            await post(url, f"/runs/{run_id}/decisions", {"request_id": ["hunter2"]}),
            await post(url, f"/runs/{run_id}/decisions", {"request_id": "no", "approved": "hunter2"}),
        ]
        async with process(store) as (other, _):
            busy = await start(other, "hold answer")
            replies += [await delete(url, f"/runs/{busy}"), await post(url, f"/runs/{busy}/resume", {})]
    async with served(reader(store, execution_version="hunter2")) as url:
        asked = (await get(url, f"/runs/{run_id}")).json["interruption"]
        decision = {"request_id": asked["request_id"], "approved": True}
        replies.append(await post(url, f"/runs/{run_id}/decisions", decision))

    assert len(replies) >= 30
    assert [reply.status for reply in replies if not 400 <= reply.status < 500] == []
    assert [reply.body for reply in replies if SECRETS.search(reply.body)] == []


async def test_c17_a_fault_of_a_store_is_told_to_the_operator_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The client is given an id, under which the log says what happened."""
    store = tmp_path / "runs.sqlite"
    async with served(reader(store)) as url:
        run_id = await start(url, "publish answer")
        await ended(url, run_id)
    with contextlib.closing(sqlite3.connect(store)) as somebody, somebody:
        somebody.execute("""UPDATE records SET body = '{"hunter2": 1}' WHERE number = 2""")
    async with served(reader(store)) as url:
        reply = await get(url, f"/runs/{run_id}")

    assert_problem(reply, 503)
    assert not SECRETS.search(reply.body)
    assert reply.json["id"] in caplog.text


async def test_c19_a_client_cannot_run_up_costs() -> None:
    """Without a key it starts nothing; with one it stays within the application's budget and its share."""

    def look() -> str:
        """Look."""
        return "seen"

    endless = agent(llm=model(default_response=json.dumps(call("look"))), tools=[look])
    async with served(endless, authenticator=APIKeyAuthenticator({ALICE: "alice"})) as url:
        assert_problem(await post(url, "/runs", GO), 401)
        run = await ended(url, await start(url, key=ALICE, budget={"max_steps": 10**9}), X_API_Key=ALICE)

    assert (run["usage"]["llm_calls"], run["error"]["code"]) == (10, "budget_exceeded")


async def test_c04_a_flood_leaves_others_served() -> None:
    """A hundred bodies that are too large, and a hundred connections that say nothing, meanwhile."""
    async with served(agent(llm=model()), max_body_bytes=10_000) as url:
        large = request_bytes(url, "/runs", b"x" * 20_000)

        async def silent() -> bool:
            async with connected(url) as (receiver, sender):
                sender.write(b"POST /runs HTTP/1.1\r\nHost: localhost\r\n")
                await flooded.wait()
                sender.write(b"\x00\r\n\r\n")
                return b" 400 " in await receiver.readline() or await hung_up(receiver)

        flooded = asyncio.Event()
        waiting = [asyncio.create_task(silent()) for _ in range(100)]
        replies = await asyncio.gather(*(exchange(url, large) for _ in range(100)))
        run = await ended(url, await start(url))
        flooded.set()
        given_up = await asyncio.gather(*waiting)

    assert {reply.status for reply in replies} == {413}
    assert run["status"] == "completed"
    assert all(given_up)


FLOODS: dict[str, tuple[bytes, dict[str, str]]] = {
    "large bodies": (b"x" * 4_000_000, {}),
    "deep bodies": (b"[" * 100_000, {}),
    "bodies that are no JSON": (b'{"a":' + b"1," * 50_000, {}),
    "many fields": (b"{}", {f"X_{number}": "x" * 100 for number in range(2000)}),
    "silence": (b"", {}),
}


UVICORNS = {"large bodies": 64}
"""Mebibytes where a body is larger than what uvicorn reads of it before it asks anybody: 256 KiB, held twice."""


@pytest.mark.parametrize("kind", FLOODS)
async def test_c04_a_flood_costs_little_memory(kind: str, tmp_path: Path) -> None:
    """A hundred at a time, from outside: at most 32 MiB of our own, and another client is served meanwhile."""
    body, fields = FLOODS[kind]
    async with process(tmp_path / "runs.sqlite") as (url, server):
        await ended(url, await start(url, "answer"))
        before = resident(server.pid)
        data = request_bytes(url, "/runs", body, **fields) if body else b"POST /runs HTTP/1.1\r\nHost: localhost\r\n"

        async with contextlib.AsyncExitStack() as stack:
            for _ in range(100):
                _, sender = await stack.enter_async_context(connected(url))
                sender.write(data)
            run = await ended(url, await start(url, "answer"))
            grown = resident(server.pid) - before

    assert run["status"] == "completed"
    assert grown <= UVICORNS.get(kind, 32) * 2**20
