"""What owned workers cost: a delegation, its depth, and how soon a child's fragment is at the root's reader."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from benchmarks.floors import ANSWER, bare_loop, lookup, script
from benchmarks.measure import alternate, cpu_seconds, percentile
from benchmarks.models import Scripted
from benchmarks.scale import Scale
from benchmarks.table import AtMost, AtMostTimes, Row
from protolink import Agent, SubagentLimits
from protolink.llms import LLM
from protolink.llms.port import LLMReply, LLMRequest

__all__ = ["workers"]

_DELEGATION: Final = AtMostTimes(15.6)
_DEPTH: Final = AtMostTimes(6.0)
_LATENCY: Final = AtMostTimes(4.0)


def workers(scale: Scale) -> list[Row]:
    """Nested calls by hand and by delegation; then five generations; then the way of a fragment."""
    return asyncio.run(_workers(scale))


def _asking_for(worker: str) -> Callable[[int], str]:
    """A model's text for each of its steps: hand the work to that worker, then answer."""
    ask = json.dumps({"type": "agent_call", "agent": worker, "action": "infer", "prompt": "go"})
    return lambda step: ask if step == 1 else ANSWER


def _chain(depth: int) -> Agent:
    """An agent at the top of so many generations; the last one makes one tool call."""
    agent = Agent(name="worker0", llm=Scripted(script(1)), tools=[lookup], verbosity=0)
    for level in range(1, depth + 1):
        agent = Agent(
            name=f"worker{level}",
            llm=Scripted(_asking_for(agent.name)),
            subagents=[agent],
            subagent_limits=SubagentLimits(max_depth=depth),
            verbosity=0,
        )
    return agent


async def _say(step: int) -> str:
    return script(1)(step)


async def _bare_delegation() -> None:
    """The same calls by hand: a parent's two turns around a child's tool call."""
    ask = json.loads(json.dumps({"type": "agent_call", "agent": "worker0", "action": "infer", "prompt": "go"}))
    assert ask["agent"] == "worker0"
    await bare_loop(_say, 1)


async def _workers(scale: Scale) -> list[Row]:
    times = 100 if scale.quick else 400
    one, five = _chain(1), _chain(5)
    call_one, call_five = partial(one.invoke, "go"), partial(five.invoke, "go")
    await cpu_seconds(20, call_one)
    await cpu_seconds(20, call_five)
    by_hand = partial(cpu_seconds, 5 * times, _bare_delegation)
    floors, delegations = await alternate(scale.rounds(9), by_hand, partial(cpu_seconds, times, call_one))
    flat, deep = await alternate(
        scale.rounds(9), partial(cpu_seconds, times, call_one), partial(cpu_seconds, times, call_five)
    )
    rows = [
        Row(
            workload="one delegation to a worker with one tool call",
            unit="us",
            floor=min(floors) * 1e6,
            protolink=min(delegations) * 1e6,
            target=_DELEGATION,
        ),
        Row(
            workload="five generations, against one",
            unit="us",
            floor=min(flat) * 1e6,
            protolink=min(deep) * 1e6,
            target=_DEPTH,
        ),
    ]
    return rows + await _latency(2_000 if scale.quick else 10_000)


class _Stamping(LLM):
    """Streams the moment at which each fragment left, each in a turn of the event loop of its own."""

    provider = "benchmark"
    model = "stamping"
    streaming = True

    def __init__(self, count: int) -> None:
        self.count = count

    async def respond(self, request: LLMRequest) -> LLMReply:
        """So many fragments."""
        for _ in range(self.count):
            request.fragment(repr(time.perf_counter()))
            await asyncio.sleep(0)
        return LLMReply(text="done")


async def _latency(count: int) -> list[Row]:
    child = Agent(name="child", llm=_Stamping(count), verbosity=0)
    root = Agent(name="root", llm=Scripted(_asking_for("child")), subagents=[child], verbosity=0)
    ours = [
        time.perf_counter() - float(event.payload["content"])
        async for event in root.start_run("go").events()
        if event.agent_name == "child" and event.payload.get("llm_event_type") == "llm_chunk"
    ]
    floors = await _bare_latency(count)
    return [
        Row(
            workload="a worker's fragment at the root's reader, median",
            unit="us",
            floor=percentile(floors, 0.5) * 1e6,
            protolink=percentile(ours, 0.5) * 1e6,
            target=_LATENCY,
        ),
        Row(
            workload="a worker's fragment at the root's reader, p99",
            unit="us",
            floor=percentile(floors, 0.99) * 1e6,
            protolink=percentile(ours, 0.99) * 1e6,
            target=AtMost(60, scaled=True),
        ),
    ]


async def _bare_latency(count: int) -> list[float]:
    """A queue between two coroutines."""
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    found: list[float] = []

    async def produce() -> None:
        for _ in range(count):
            queue.put_nowait(repr(time.perf_counter()))
            await asyncio.sleep(0)
        queue.put_nowait(None)

    producing = asyncio.create_task(produce())
    while (stamp := await queue.get()) is not None:
        found.append(time.perf_counter() - float(stamp))
    await producing
    return found
