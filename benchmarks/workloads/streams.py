"""One run that streams, and several readers who each see every fragment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from benchmarks.measure import alternate
from benchmarks.models import Streaming
from benchmarks.scale import Scale
from benchmarks.table import Row
from protolink import Agent, RunHandle

__all__ = ["events"]

FRAGMENTS: Final = 10_000
READERS: Final = (1, 10)


def events(scale: Scale) -> list[Row]:
    """Events that reach a reader, per second, over all readers. The floor has a queue of texts for each."""
    return asyncio.run(_measured(scale))


async def _measured(scale: Scale) -> list[Row]:
    fragments = [f"word {number} " for number in range(FRAGMENTS // 5 if scale.quick else FRAGMENTS)]
    agent = Agent(name="writer", llm=Streaming(fragments))
    rows: list[Row] = []
    for readers in READERS:
        floors, ours = await alternate(
            scale.rounds(5),
            partial(_by_hand, fragments, readers),
            partial(_by_runtime, agent, len(fragments), readers),
        )
        rows.append(
            Row(
                workload=f"events to {readers} reader{'s' if readers > 1 else ''}",
                unit="/s",
                floor=max(floors),
                protolink=max(ours),
                more_is_better=True,
            )
        )
    return rows


async def _by_hand(fragments: list[str], readers: int) -> float:
    queues: list[asyncio.Queue[str | None]] = [asyncio.Queue() for _ in range(readers)]

    async def read(queue: asyncio.Queue[str | None]) -> int:
        seen = 0
        while await queue.get() is not None:
            seen += 1
        return seen

    async def write() -> None:
        for fragment in [*fragments, None]:
            for queue in queues:
                queue.put_nowait(fragment)
            await asyncio.sleep(0)

    began = time.perf_counter()
    *seen, _ = await asyncio.gather(*(read(queue) for queue in queues), write())
    return _rate(seen, len(fragments), began)


async def _by_runtime(agent: Agent, fragments: int, readers: int) -> float:
    async def read(handle: RunHandle) -> int:
        seen = 0
        async for event in handle.events():
            seen += event.type == "llm.stream" and event.payload["llm_event_type"] == "llm_chunk"
        return seen

    began = time.perf_counter()
    handle = agent.start_run("go")
    seen = await asyncio.gather(*(read(handle) for _ in range(readers)))
    return _rate(seen, fragments, began)


def _rate(seen: Sequence[int | None], fragments: int, began: float) -> float:
    elapsed = time.perf_counter() - began
    if any(count != fragments for count in seen):
        raise RuntimeError(f"the readers saw {seen} of {fragments} fragments")  # joined ones are another workload
    return len(seen) * fragments / elapsed
