"""An application that stores its runs, for tests that start it as a process of its own and end that."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from protolink import Agent, AgentGroup, CapabilityPolicy
from protolink.http import Application, create_app
from protolink.llms import LLM, LLMReply, LLMRequest
from protolink.testing import call
from tests.http.servers import free_url, port_of

ROOT = Path(__file__).resolve().parents[2]


class Turns(LLM):
    """Says what the prompt names, one word a turn: the name of a tool without arguments, or `answer`."""

    provider, model, streaming = "test", "turns", True

    async def respond(self, request: LLMRequest) -> LLMReply:
        """The word of this turn."""
        prompt = next(message["content"] for message in request.messages if message["role"] == "user")
        word = prompt.split()[request.step - 1]
        if word == "stream":
            while True:
                request.fragment("word ")
                await asyncio.sleep(0.01)
        return LLMReply(text=word if word == "answer" else json.dumps(call(word)))


async def publish() -> str:
    """Publish something, which somebody has to approve."""
    return "published"


async def look() -> str:
    """Look something up."""
    return "seen"


async def hold() -> str:
    """Wait until the file `go` appears beside the store."""
    go = Path(os.environ["APP_STORE"]).with_name("go")
    while not go.exists():  # noqa: ASYNC110 - another process makes it
        await asyncio.sleep(0.01)
    return "held"


def reader(store: Any, **options: Any) -> Agent:
    """The agent, on a store."""
    policy = CapabilityPolicy({"publish": "require_approval"})
    made = Agent(name="reader", llm=Turns(), durability=store, policy=policy, tools=[look, hold], **options)
    made.tool(capabilities=["publish"])(publish)
    return made


def create() -> Application:
    """The application, on the store that the environment names."""
    return create_app(AgentGroup([reader(os.environ["APP_STORE"])]))


@asynccontextmanager
async def process(store: Path) -> AsyncGenerator[tuple[str, asyncio.subprocess.Process]]:
    """The application as a process of its own, served by uvicorn's command; killed at the end."""
    url = free_url()
    command = ["-m", "uvicorn", "tests.http.stored_app:create", "--factory", "--port", str(port_of(url))]
    server = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        "--timeout-graceful-shutdown",
        "1",
        cwd=ROOT,
        env={**os.environ, "APP_STORE": str(store)},
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
    )
    assert server.stderr is not None
    try:
        while b"running on" not in (line := await server.stderr.readline()):
            assert line, "the server did not start"
        draining = asyncio.create_task(server.stderr.read())
        yield url, server
        with contextlib.suppress(ProcessLookupError):
            server.kill()
        await asyncio.gather(draining, server.wait())
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
