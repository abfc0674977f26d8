"""What an adapter costs beside its provider's own SDK, over a real socket."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.measure import alternate, cpu_seconds
from benchmarks.scale import Scale
from benchmarks.table import AtMostTimes, Row
from protolink import Agent
from protolink.llms import LLM, LLMRequest, create_llm

__all__ = ["providers"]

PIECES: Final = 20
LONG: Final = 2_000
_CALL: Final = AtMostTimes(1.15)
PROGRAM: Final = Path(__file__).parent.parent / "chat_server.py"


class _Reader:
    """The run's side of a turn."""

    stopped = False

    def fragment(self, text: str) -> None:
        """Take it."""

    def in_thread(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        """Run it."""
        return asyncio.to_thread(function, *args)


def providers(scale: Scale) -> list[Row]:
    """CPU of a call of Chat Completions, and fragments of a long reply per second. Floor: the `openai` SDK alone."""
    with _server() as url:
        return asyncio.run(_measured(scale, url))


@contextmanager
def _server() -> Generator[str]:
    command = [sys.executable, str(PROGRAM)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        process.stdin.close()


async def _measured(scale: Scale, url: str) -> list[Row]:
    import openai

    client = openai.AsyncOpenAI(api_key="none", base_url=url, max_retries=0)
    short = create_llm(f"openai-compatible:pieces-{PIECES}", base_url=url)
    long = create_llm(f"openai-compatible:pieces-{LONG}", base_url=url)
    agent = Agent(name="writer", llm=long, verbosity=0)
    times = 30 if scale.quick else 100

    await asyncio.gather(_by_sdk(client, PIECES), _by_adapter(short), agent.invoke("go"))
    floors, ours = await alternate(
        scale.rounds(9),
        partial(cpu_seconds, times, partial(_by_sdk, client, PIECES)),
        partial(cpu_seconds, times, partial(_by_adapter, short)),
    )
    sdk, stack = await alternate(scale.rounds(9), partial(_rate_of_sdk, client), partial(_rate_of_run, agent))
    for closed in (client.close, short.aclose, long.aclose):
        await closed()
    return [
        Row(
            workload=f"a provider's call of {PIECES} fragments, CPU",
            unit="us",
            floor=min(floors) * 1e6,
            protolink=min(ours) * 1e6,
            target=_CALL,
        ),
        Row(
            workload="fragments of a provider to a run's reader",
            unit="/s",
            floor=max(sdk),
            protolink=max(stack),
            more_is_better=True,
        ),
    ]


async def _by_sdk(client: Any, pieces: int) -> str:
    stream = await client.chat.completions.create(
        model=f"pieces-{pieces}",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello."}],
        stream=True,
        stream_options={"include_usage": True},
    )
    text = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(text)


async def _by_adapter(llm: LLM) -> str:
    request = LLMRequest(
        messages=[{"role": "user", "content": "Hello."}],
        system_prompt="Be brief.",
        tools=[],
        native=True,
        step=1,
        turn=_Reader(),
    )
    reply = llm.respond(request)
    assert isinstance(reply, Awaitable)
    return (await reply).text


async def _rate_of_sdk(client: Any) -> float:
    began = time.perf_counter()
    await _by_sdk(client, LONG)
    return LONG / (time.perf_counter() - began)


async def _rate_of_run(agent: Agent) -> float:
    began = time.perf_counter()
    handle = agent.start_run("go")
    seen = 0
    async for event in handle.events():
        seen += event.type == "llm.stream" and event.payload["llm_event_type"] == "llm_chunk"
    assert seen == LONG
    return seen / (time.perf_counter() - began)
