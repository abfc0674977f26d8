"""What the tests of the application share: agents behind a real uvicorn, requests, and readers of streams."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from protolink import Agent, AgentGroup
from protolink.http import APIKeyAuthenticator, create_app
from tests.http.servers import Reply, connected, exchange, get, post, request_bytes
from tests.support import model

ALICE, BOB = "alice-key-0123456789", "bob-key-0123456789ab"
KEYS = APIKeyAuthenticator({ALICE: "alice", BOB: "bob"})

SSE, NDJSON = "text/event-stream", "application/x-ndjson"


class _Server(uvicorn.Server):
    """uvicorn, which tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@asynccontextmanager
async def serving(app: Any, *, lifespan: Any = "on", **options: Any) -> AsyncGenerator[str]:
    """An ASGI application behind uvicorn, in this event loop and on a real socket; gives its address."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan=lifespan, timeout_graceful_shutdown=1, **options
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await server.ready.wait()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listening.close()


def agent(*responses: Any, name: str = "reader", **options: Any) -> Agent:
    """An agent with a scripted model."""
    settings: dict[str, Any] = {"llm": model(*responses), **options}
    return Agent(name=name, **settings)


@asynccontextmanager
async def served(*agents: Agent, **options: Any) -> AsyncGenerator[str]:
    """The application of some agents behind uvicorn; gives its address."""
    async with serving(create_app(AgentGroup(agents), **options)) as url:
        yield url


async def start(url: str, prompt: str = "go", *, name: str = "reader", key: str | None = None, **fields: Any) -> str:
    """Start a run, and give its id."""
    headers = {} if key is None else {"X_API_Key": key}
    reply = await post(url, "/runs", {"agent": name, "prompt": prompt, **fields}, **headers)
    assert reply.status == 202, reply.body
    return str(reply.json["run_id"])


async def delete(url: str, path: str, **headers: Any) -> Reply:
    """Ask for the deletion of a path."""
    return await exchange(url, request_bytes(url, path, method="DELETE", **headers))


async def ended(url: str, run_id: str, **headers: Any) -> Any:
    """Await the end of a run's attempt, and give how it stands."""
    reply = await get(url, f"/runs/{run_id}/events", **headers)
    assert reply.status in (200, 204), reply.body
    return (await get(url, f"/runs/{run_id}", **headers)).json


class Messages:
    """The messages of a stream, as a browser would cut them."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self.head = b""

    async def begin(self) -> Messages:
        """Read the header."""
        self.head = await self._reader.readuntil(b"\r\n\r\n")
        return self

    async def __aiter__(self) -> AsyncIterator[dict[str, str]]:
        """The fields of each message; a comment alone has none."""
        length = self.head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if length:
            for message in messages_of(await self._reader.readexactly(int(length))):
                yield message
            return
        rest = b""
        while True:
            size = int(await self._reader.readline(), 16)
            chunk = (await self._reader.readexactly(size + 2))[:-2]
            if not size:
                assert not rest
                return
            *whole, rest = (rest + chunk).split(b"\n\n")
            for text in whole:
                yield fields_of(text.decode())


def fields_of(text: str) -> dict[str, str]:
    """The fields of one message."""
    return dict(line.split(": ", 1) for line in text.split("\n") if not line.startswith(":"))


def messages_of(body: bytes) -> list[dict[str, str]]:
    """The messages of a stream that has ended."""
    return [fields_of(text) for text in body.decode().split("\n\n") if text]


def events_of(messages: Iterable[dict[str, str]]) -> list[Any]:
    """The events that messages carry."""
    return [json.loads(message["data"]) for message in messages if message.get("event") == "event"]


@asynccontextmanager
async def stream(url: str, path: str, body: Any = None, **headers: Any) -> AsyncGenerator[Messages]:
    """An open stream of server-sent events."""
    data = None if body is None else json.dumps(body).encode()
    async with connected(url) as (reader, writer):
        writer.write(request_bytes(url, path, data, Accept=SSE, **headers))
        yield await Messages(reader).begin()
