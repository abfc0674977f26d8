"""Runs over loopback sockets: how soon the first event comes, how many a second, how late, how much memory."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Final

from benchmarks.applications import FRAGMENTS
from benchmarks.measure import alternate, percentile
from benchmarks.scale import Scale
from benchmarks.sockets import Server, connected, request, serving
from benchmarks.table import AtMost, AtMostTimes, Row

__all__ = ["http"]

CLIENTS: Final = 16
STREAMS: Final = 200
EVENTS: Final = FRAGMENTS + 5

_JSON: Final = "application/json"
_SSE: Final = "text/event-stream"
_NDJSON: Final = "application/x-ndjson"
_FIRST: Final = AtMost(3.0, scaled=True)
_RATE: Final = AtMostTimes(1 / 0.6)
_DELAY: Final = AtMost(50.0, scaled=True)
_STAMP: Final = re.compile(rb'"timestamp":"([^"]+)"\}\n\n')


def http(scale: Scale) -> list[Row]:
    """A uvicorn process for the floor and one for the runtime; this process is the client of both."""
    return asyncio.run(_measured(scale))


async def _measured(scale: Scale) -> list[Row]:
    async with serving("team") as idle:
        rows = [await _first_event(idle, 100 if scale.quick else 500)]
    async with serving("bare") as bare, serving("team") as team:
        rows.append(await _rate("runs, id at once", bare, team, scale, _JSON))
        async with connected(team.port) as connection, connected(bare.port) as other:
            lines = await connection.ask(_run("quick", _NDJSON))
            await other.ask(request("PUT", "/runs", lines))
        rows.append(await _rate("runs, as NDJSON", bare, team, scale, _NDJSON))
        rows += await _streams(team)
    async with serving("team") as fresh:
        rows.append(await _idle(fresh, 200 if scale.quick else 1000))
    return rows


def _run(agent: str, accept: str) -> bytes:
    return request("POST", "/runs", json.dumps({"agent": agent, "prompt": "go"}).encode(), Accept=accept)


async def _first_event(team: Server, times: int) -> Row:
    """From sending a request to the first event, on a server that does nothing else."""
    seconds: list[float] = []
    for _ in range(times):
        async with connected(team.port) as connection:
            began = time.perf_counter()
            connection.send(_run("silent", _SSE))
            await connection.until(b"\nid: 1\n")
            seconds.append(time.perf_counter() - began)
    median = statistics.median(seconds) * 1e3
    return Row(workload="HTTP: first event, idle server", unit="ms", protolink=median, target=_FIRST)


async def _rate(name: str, bare: Server, team: Server, scale: Scale, accept: str) -> Row:
    """Requests a second of clients that send the next one when the last one is answered."""
    times = 60 if scale.quick else 200
    floors, ours = await alternate(
        scale.rounds(7),
        lambda: _requests_a_second(bare, accept, times),
        lambda: _requests_a_second(team, accept, times),
    )
    return Row(
        workload=f"HTTP: {name}",
        unit="/s",
        floor=max(floors),
        protolink=max(ours),
        target=_RATE,
        more_is_better=True,
    )


async def _requests_a_second(server: Server, accept: str, times: int) -> float:
    sent = _run("quick", accept)

    async def client() -> None:
        async with connected(server.port) as connection:
            for _ in range(times):
                await connection.ask(sent)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return CLIENTS * times / (time.perf_counter() - began)


async def _streams(team: Server) -> list[Row]:
    """From an event's own time to its arrival, over all events of streams that are open together."""
    delays: list[float] = []

    async def client() -> None:
        seen = 0
        async with connected(team.port) as connection:
            connection.send(_run("paced", _SSE))
            await connection.until(b"\r\n\r\n")
            async for part in connection.parts():
                now = time.time()
                stamps = _STAMP.findall(part)
                delays.extend(now - datetime.fromisoformat(stamp.decode()).timestamp() for stamp in stamps)
                seen += len(stamps)
        if seen != EVENTS:
            raise RuntimeError(f"{seen} of {EVENTS} events have come")

    await asyncio.gather(*(client() for _ in range(STREAMS)))
    name = f"HTTP: {STREAMS} streams of {EVENTS} events, delay"
    return [
        Row(workload=f"{name} p50", unit="ms", protolink=percentile(delays, 0.5) * 1e3),
        Row(workload=f"{name} p99", unit="ms", protolink=percentile(delays, 0.99) * 1e3, target=_DELAY),
    ]


async def _idle(team: Server, streams: int) -> Row:
    """What a server grows by for a stream that is open and silent, its run and its connection included."""
    async with AsyncExitStack() as stack:
        await _opened(team, 20, stack)
        before = team.resident_bytes
        await _opened(team, streams, stack)
        grown = team.resident_bytes - before
    return Row(workload="HTTP: memory of an idle stream and its run", unit="KiB", protolink=grown / streams / 1024)


async def _opened(team: Server, streams: int, stack: AsyncExitStack) -> None:
    for _ in range(streams):
        connection = await stack.enter_async_context(connected(team.port))
        connection.send(_run("silent", _SSE))
        await connection.until(b"\nid: 1\n")
