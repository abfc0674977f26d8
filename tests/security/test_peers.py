"""Attacks by peers, by other tenants and over HTTP, with the numbers of the threat model."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, AgentCard, ConfigurationError, RunContext, Task
from protolink._runtime.principal import acting_as
from protolink.client import AgentClient
from protolink.discovery import Registry, RegistryClient
from protolink.storage import SQLiteRunStore
from protolink.transport import HTTPTransport, PeerRefusedError, PeerUnavailableError, TransportError
from protolink.transport.http import APIKeyAuthenticator, HTTPLimits
from protolink.transport.http.routes import ROUTES
from protolink.transport.port import Frame
from tests.http.servers import agent_at, connected, exchange, free_url, get, port_of, request_bytes, served
from tests.reliability.scale import scaled
from tests.security.measures import measured
from tests.support import model

ROOT = Path(__file__).resolve().parents[2]
ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789ab"
KEYS = APIKeyAuthenticator({ALICE: "alice", BOB: "bob"})


class Held:
    """A tool that waits to be let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.go = asyncio.Event()

    async def hold(self) -> str:
        """Wait to be let go."""
        self.entered.set()
        await self.go.wait()
        return "alice's result"


def requests_for(url: str, task: Task, key: str | None) -> Iterator[tuple[str, bytes]]:
    """A request to each route about one task, in the name of a key: generated, so that a new route takes part."""
    for route in ROUTES:
        fields: dict[str, Any] = {}
        if key is not None:
            fields["Authorization"] = f"Bearer {key}"
        body: Any = {"task": task.to_dict(), "cancel": {}, "discover": {}}.get(route.operation, {"url": "http://h:1"})
        data = None if route.method == "GET" else json.dumps(body).encode()
        yield route.operation, request_bytes(url, route.path.replace("{task_id}", task.id), data, **fields)


EXPECTED: dict[str, tuple[int, int, int]] = {
    # by route: of nobody, of Bob about Alice's task, of Bob about his own, which ends at once
    "task": (401, 409, 200),
    "status": (401, 404, 200),
    "events": (401, 404, 200),
    "cancel": (401, 404, 404),
    "card": (401, 200, 200),
    # An agent is no registry.
    "register": (401, 404, 404),
    "unregister": (401, 404, 404),
    "heartbeat": (401, 404, 404),
    "discover": (401, 404, 404),
}


async def test_c02_the_matrix_of_routes_and_principals() -> None:
    """Every route for nobody, for another tenant, and for the owner; a new route fails until it is listed."""
    held, url = Held(), free_url()
    task = Task.create_tool_call("hold", context=RunContext())
    other = Task.create_infer("go", context=RunContext())
    found: dict[str, tuple[int, ...]] = {}
    async with agent_at(url, "answer", tools=[held.hold], authenticator=KEYS):
        asking = asyncio.create_task(AgentClient(HTTPTransport(credentials={url: ALICE})).send_task(url, task))
        await held.entered.wait()
        columns = [requests_for(url, task, None), requests_for(url, task, BOB), requests_for(url, other, BOB)]
        for column in columns:
            for operation, request in column:
                reply = await exchange(url, request)
                found[operation] = (*found.get(operation, ()), reply.status)
                assert b"alice" not in reply.body
        held.go.set()
        await asking

    assert found == EXPECTED


@pytest.mark.parametrize("same", ["task", "run"])
async def test_c02_nobody_replaces_what_is_kept_of_anothers_run(same: str, tmp_path: Path) -> None:
    """A sender chooses the ids of its task; those of a run that is kept are taken."""
    url, store = free_url(), SQLiteRunStore(str(tmp_path / "runs.sqlite"))
    first = Task.create_infer("alice's", context=RunContext())
    run_id = RunContext.from_task(first).run_id
    other = Task.create_infer("bob's", context=RunContext(run_id=run_id) if same == "run" else RunContext())
    other.id = first.id if same == "task" else other.id
    async with agent_at(url, "answer", authenticator=KEYS, run_store=store):
        await AgentClient(HTTPTransport(credentials={url: ALICE})).send_task(url, first)
        before = store.get_report(run_id)
        with pytest.raises(PeerRefusedError, match="409"):
            await AgentClient(HTTPTransport(credentials={url: BOB})).send_task(url, other)
        after, task = store.get_report(run_id), store.get_task(first.id)

    assert before is not None
    assert after is not None
    assert after.to_dict() == before.to_dict()
    assert task is not None
    assert "alice's" in json.dumps(task.to_dict())


TRICKS: list[tuple[str, dict[str, Any], set[int]]] = [
    ("/card", {"Range": "bytes=" + ",".join(f"{n}-{n}" for n in range(1000))}, {200, 431}),
    ("/card", {"X_Forwarded_For": "127.0.0.1", "X_Forwarded_Host": "evil.example", "Forwarded": "host=evil"}, {200}),
    ("/card", {"Host": "evil.example", "X_Forwarded_Host": "127.0.0.1"}, {403}),
    ("/card/", {}, {404}),
    ("//card", {}, {404}),
    ("/./card", {}, {404}),
    ("/%63ard", {}, {200, 404}),
    ("/card%2f..%2fhealth", {}, {404}),
    ("/tasks/%2e%2e%2fcard/events", {}, {404}),
    ("/tasks/..%2f..%2fetc%2fpasswd/events", {}, {404}),
    ("http://evil.example/card", {}, {200, 400, 403, 404}),
    ("/card?x=" + "a" * 4000, {}, {200}),
    ("/card#fragment", {}, {200, 400, 404}),
    ("/../../etc/passwd", {}, {404}),
    ("*", {}, {400, 404}),
]


@pytest.mark.parametrize("trick", TRICKS, ids=range(len(TRICKS)))
async def test_c05_tricks_with_paths_and_fields_lead_nowhere(trick: tuple[str, dict[str, Any], set[int]]) -> None:
    """No ranges, no forwarded names, one spelling of a path; and the server answers the next one."""
    path, fields, statuses = trick
    url = free_url()
    async with agent_at(url):
        reply = await exchange(url, request_bytes(url, path, **fields))
        assert reply.status in statuses
        assert not {"location", "content-range", "set-cookie"} & set(reply.headers)
        assert b"evil" not in reply.body
        assert (await get(url, "/health")).status == 200


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "OPTIONS", "PUT", "PROPFIND", "GET", "get"])
async def test_c05_other_methods_do_nothing(method: str) -> None:
    """Only the listed one of a route is answered."""
    url = free_url()
    async with agent_at(url):
        reply = await exchange(url, request_bytes(url, "/tasks", method=method))

    assert reply.status in (400, 403, 404, 405)


def test_c05_dependencies_have_floors_above_known_advisories() -> None:
    """And nothing parses forms, which is where most of the advisories were."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    floors = dict(entry.split(">=") for entry in extras["http"])

    assert _version(floors["starlette"]) >= (1, 3, 1)
    assert _version(floors["h11"]) >= (0, 16)
    assert not any("multipart" in entry for entries in extras.values() for entry in entries)


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


@pytest.mark.time_limit(120)
async def test_c06_readers_that_read_nothing_cost_little_and_hold_up_nobody() -> None:
    """For five hundred, a server grows by at most 64 MiB, and here by as much for each; who reads is answered."""
    readers = scaled(100, 500, 500)

    async def endless(operation: str, payload: Any) -> AsyncGenerator[Frame]:
        while True:
            yield Frame("event", {"text": "x" * 10_000})

    async def plain(operation: str, payload: Any) -> Any:
        return "answered"

    url = free_url()
    limits = HTTPLimits(max_requests=1000, max_requests_per_principal=1000, write_seconds=600)
    transport = HTTPTransport(url, limits=limits)
    transport.serve_network(plain, acting_as=acting_as, stream=endless)
    await transport.start()
    with measured() as cost:
        with ExitStack() as stack:
            for _ in range(readers):
                stuck = stack.enter_context(socket.socket())
                stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
                stuck.setblocking(False)
                await asyncio.get_running_loop().sock_connect(stuck, ("127.0.0.1", port_of(url)))
                stuck.send(request_bytes(url, "/tasks", b"{}", Accept="application/x-ndjson"))
                await asyncio.get_running_loop().sock_recv(stuck, 1)
            replies = [(await get(url, "/card")).json for _ in range(20)]
        await transport.stop()

    assert replies == ["answered"] * 20
    assert cost.mebibytes <= 64 * readers / 500


async def test_c06_a_reader_that_leaves_a_source_that_never_waits_is_noticed() -> None:
    """A connection that is gone takes all that is written to it, and must not keep the event loop by that."""

    async def endless(operation: str, payload: Any) -> AsyncGenerator[Frame]:
        try:
            while True:
                yield Frame("event", {"text": "x"})
        finally:
            ended.set()

    async def plain(operation: str, payload: Any) -> Any:
        return "answered"

    url, ended = free_url(), asyncio.Event()
    transport = HTTPTransport(url)
    transport.serve_network(plain, acting_as=acting_as, stream=endless)
    await transport.start()
    async with connected(url) as (reader, writer):
        writer.write(request_bytes(url, "/tasks", b"{}", Accept="application/x-ndjson"))
        await reader.readexactly(100)
        writer.transport.abort()
    await ended.wait()
    await transport.stop()

    assert ended.is_set()


FORGED = ["a\nERROR forged", "a\r\nERROR forged", "a\x1b[2K\rERROR forged", "a\u2028ERROR forged", "a\x85ERROR forged"]


@pytest.mark.parametrize("text", FORGED, ids=range(len(FORGED)))
async def test_c10_one_thing_that_happens_is_one_line_of_a_log(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a peer, a name, an address or an exception says."""

    async def broken(operation: str, payload: Any) -> Any:
        raise RuntimeError(text)

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logging.getLogger("protolink").addHandler(handler)
    try:
        async with served(broken) as transport:
            with pytest.raises(TransportError):
                await HTTPTransport().call(str(transport.url), "task", text)
        agent = Agent(name=text, llm=model(), registry="http", registry_url=free_url())
        await agent.invoke("go")
    finally:
        logging.getLogger("protolink").removeHandler(handler)

    assert len(stream.getvalue().splitlines()) == len(caplog.records) == 2
    assert "\x1b" not in stream.getvalue()


CARDS: list[tuple[str, bool]] = [
    ("runtime://security-test-inner", False),
    ("RUNTIME://security-test-inner", False),
    ("http://169.254.169.254/latest", True),
    ("ftp://127.0.0.1/", True),
    ("file:///etc/passwd", True),
    ("http://user:password@127.0.0.1/", True),
]


@pytest.mark.parametrize(("address", "kept"), CARDS)
async def test_c11_a_card_leads_to_no_place_that_a_peer_cannot_have(address: str, kept: bool) -> None:
    """Not into this process, whose agents take whoever asks for their own, and to no address of a machine's secrets."""
    called: list[str] = []

    def inner() -> str:
        """Note that it was called."""
        called.append("inner")
        return "inner"

    where = free_url()
    registry = Registry(url=where)
    await registry.start()
    async with agent_at("runtime://security-test-inner", transport="runtime", tools=[inner], name="inner"):
        attacker = RegistryClient("http", where)
        if kept:
            await attacker.register(AgentCard("helper", url=address))
        else:
            with pytest.raises(PeerRefusedError, match="one process"):
                await attacker.register(AgentCard("helper", url=address))
        caller = Agent(name="caller", registry="http", registry_url=where)
        with pytest.raises((PeerUnavailableError, ConfigurationError)):
            await caller.peer("helper").call_tool("inner")
    await registry.stop()

    assert called == []


async def test_c11_a_registry_elsewhere_names_no_agent_of_this_process() -> None:
    """Also where the registry itself is the attacker."""

    async def lying(operation: str, payload: Any) -> Any:
        return {"cards": [{"name": "helper", "url": "runtime://security-test-inner"}]}

    async with served(lying) as transport:
        caller = Agent(name="caller", registry="http", registry_url=transport.url)
        with pytest.raises(PeerUnavailableError, match="0 agents"):
            await caller.peer("helper").call_tool("inner")


SPELLINGS = [
    "http://169.254.169.254/",
    "http://2852039166:80/",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://169.254.43518/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::]/",
    "http://[fe80::1]/",
    "http://[fe80::1%25lo]/",
    "http://0.0.0.0/",
    "http://0/",
    "http://[::]/",
    "http://224.0.0.1/",
    "http://255.255.255.255/",
    "http://240.0.0.1/",
    "http://[ff02::1]/",
    "gopher://127.0.0.1/",
    "file:///etc/passwd",
    "data:text/plain,x",
    "javascript:alert(1)",
    "http:/127.0.0.1/",
    "http://127.0.0.1:0/",
    "http://127.0.0.1:99999/",
    "http://a@127.0.0.1/",
    "http://a:b@127.0.0.1/",
    "http://127.0.0.1\\@evil.example/",
    "http://127.0.0.1#@evil.example/",
    "http://127.0.0.1?@evil.example/",
    "http://evil.example\r\nHost: 127.0.0.1/",
    "http://①②⑦.0.0.1/",
    "http://exa mple/",
    "http:///tasks",
    "//127.0.0.1/",
    "",
    "http://169.254.169.254:80/latest/meta-data/",
    "http://169.254.169.254./",
    "http://169.254.170.2/v2/credentials",
    "http://169.254.0.1/",
    "http://2852039166/",
    "http://0xa9.0xfe.0xa9.0xfe/",
    "http://169.0xfea9fe/",
    "http://[::ffff:0:169.254.169.254]/",
    "http://[0:0:0:0:0:ffff:a9fe:a9fe]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2001:0:4136:e378:8000:63bf:5601:5601]/",
    "http://[fe80::a9fe:a9fe]/",
    "http://[fec0::1]/",
    "http://[::ffff:0.0.0.0]/",
    "http://[ff01::1]/",
    "http://239.255.255.250/",
    "http://0.1.2.3/",
    "http://192.0.0.8/",
    "http://192.0.0.192/opc/v2/instance/",
    "http://100.100.100.200/latest/meta-data/",
    "http://168.63.129.16/machine?comp=goalstate",
    "http://168.63.129.16/machine",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://[fd20:ce::254]/computeMetadata/v1/",
    "http://[::ffff:100.100.100.200]/",
    "http://\uff11\uff16\uff19.254.169.254/",
    "http://169\u3002254\u3002169\u3002254/",
    "ftp://169.254.169.254/",
    "ws://127.0.0.1/",
    "unix:///var/run/docker.sock",
    "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "http://[127.0.0.1]/",
    "http://127.0.0.1:-1/",
    "http://127.0.0.1:8080:80/",
    "http://%31%36%39.254.169.254/",
]
"""More than sixty."""

_connecting: list[Any] = []


def _note_connection(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect":
        _connecting.append(arguments[1])


sys.addaudithook(_note_connection)


@pytest.mark.parametrize("url", SPELLINGS)
async def test_a16_no_spelling_of_a_forbidden_address_is_connected_to(url: str) -> None:
    """Not even tried: refused by what the address is, and not by how it is written or whether somebody is there."""
    before = len(_connecting)

    with pytest.raises((ConfigurationError, PeerUnavailableError)) as caught:
        await HTTPTransport(allow_plain_http=True).call(url, "card", None)

    assert _connecting[before:] == []
    assert not getattr(caught.value, "delivered", False)


async def test_a16_an_allowed_address_is_connected_to() -> None:
    """Whoever counts connections above would have seen one."""
    before, url = len(_connecting), free_url()
    with pytest.raises(PeerUnavailableError):
        await HTTPTransport().call(url, "card", None)

    assert set(_connecting[before:]) == {("127.0.0.1", port_of(url))}


async def test_a16_a_name_is_resolved_once_and_the_checked_address_is_connected_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name server that answers otherwise the second time is not asked a second time."""
    asked: list[str] = []

    async def echo(operation: str, payload: Any) -> Any:
        return "reached"

    async with served(echo, allowed_hosts=["rebinding.example"]) as transport:
        loop = asyncio.get_running_loop()
        real = loop.getaddrinfo

        async def rebinding(host: Any, port: Any, **options: Any) -> Any:
            asked.append(str(host))
            answer = "127.0.0.1" if len(asked) == 1 else "169.254.169.254"
            return await real(answer, port, **options)

        monkeypatch.setattr(loop, "getaddrinfo", rebinding)
        url = f"http://rebinding.example:{port_of(str(transport.url))}"
        assert await HTTPTransport().call(url, "card", None) == "reached"
        assert asked == ["rebinding.example"]
        with pytest.raises(ConfigurationError, match="no peer can have"):
            await HTTPTransport().call(url, "card", None)


def test_a17_nothing_in_the_package_starts_a_program() -> None:
    """No tool runs code or a shell, because none is built in."""
    starts = re.compile(r"\b(subprocess|os\.exec|os\.spawn|pty\b|multiprocessing|create_subprocess)")
    found = [
        str(path)
        for path in (ROOT / "src").rglob("*.py")
        for line in path.read_text().splitlines()
        if starts.search(line) and not line.strip().startswith("#")
    ]

    assert found == []


HOSTILE = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "ALL_PROXY": "socks5://127.0.0.1:9",
    "NO_PROXY": "",
    "SSL_CERT_FILE": "/nonexistent",
    "SSL_CERT_DIR": "/nonexistent",
    "REQUESTS_CA_BUNDLE": "/nonexistent",
    "PYTHONHTTPSVERIFY": "0",
    "WEB_CONCURRENCY": "64",
    "FORWARDED_ALLOW_IPS": "*",
    "UVICORN_HOST": "0.0.0.0",
    "PYTHONOPTIMIZE": "2",
}


def test_c21_the_environment_weakens_nothing() -> None:
    """A program with hostile variables, and without assertions, refuses and answers the same."""
    program = textwrap.dedent(
        """
        import asyncio
        from protolink.transport import HTTPTransport, TransportStartError
        from tests.http.servers import free_url, get, served

        async def echo(operation, payload):
            return "answered"

        async def main():
            open_to_all = HTTPTransport("http://0.0.0.0:20999")
            open_to_all.serve(echo)
            try:
                await open_to_all.start()
            except TransportStartError:
                print("refused")
            async with served(echo) as transport:
                print(await HTTPTransport().call(transport.url, "card", None))
                print((await get(transport.url, "/card", Host="evil.example", X_Forwarded_Host="127.0.0.1")).status)

        asyncio.run(main())
        """
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env=os.environ | extra,
        ).stdout.split()
        for extra in ({}, HOSTILE)
    ]

    assert done == [["refused", "answered", "403"]] * 2


def test_c21_no_variable_is_read_by_the_package() -> None:
    """What decides is written in the program. Keys of providers are read where those are called."""
    reading = re.compile(r"os\.environ|getenv|load_dotenv")
    found = [path.name for path in (ROOT / "src").rglob("*.py") if reading.search(path.read_text())]

    assert found == ["remote.py"]


@pytest.mark.parametrize("url", ["http://192.0.2.1:1", "http://[2001:db8::1]:1", "http://10.0.0.1:1"])
async def test_c18_no_plain_text_leaves_this_machine(url: str) -> None:
    """Unless the application says so by name; nothing is sent."""
    with pytest.raises(ConfigurationError, match="https"):
        await HTTPTransport().call(url, "card", None)


def test_c18_verification_cannot_be_switched_off() -> None:
    """A context that believes everybody is refused where it is given."""
    import ssl

    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lax.check_hostname = False
    with pytest.raises(ConfigurationError, match="verify"):
        HTTPTransport(trust=lax)
    lax.verify_mode = ssl.VerifyMode(0)
    with pytest.raises(ConfigurationError, match="verify"):
        HTTPTransport(trust=lax)


async def test_c08_what_a_server_answers_is_no_page() -> None:
    """JSON that no browser takes for anything else, and that is kept by no cache, also in its errors."""
    url = free_url()
    async with agent_at(url, name="<script>alert(1)</script>"):
        replies = [await get(url, path) for path in ("/card", "/health", "/<script>", "/tasks")]

    assert {reply.headers["content-type"] for reply in replies} <= {"application/json", "application/problem+json"}
    assert {reply.headers["x-content-type-options"] for reply in replies} == {"nosniff"}
    assert {reply.headers["cache-control"] for reply in replies} == {"no-store"}
    assert b"script" not in b"".join(reply.body for reply in replies[1:])
