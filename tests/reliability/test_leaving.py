"""F20: clients that leave in the middle of a stream, with a reset."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import sys
from collections import Counter

import pytest

from protolink import Task
from protolink.testing import call
from tests.http.servers import agent_at, connected, free_url, get, request_bytes
from tests.reliability.scale import scaled
from tests.reliability.tally import Tally
from tests.support import turns

CLIENTS = scaled(commit=500, short=1_000, full=10_000)
AT_ONCE = 20
RESET = struct.pack("ii", 1, 0)
"""A socket that lingers for no time is closed with a reset."""

SEED = 20_265


class Endless:
    """A tool that goes on until its run is told to stop."""

    def __init__(self) -> None:
        self.entered = self.left = 0

    async def wait(self) -> None:
        """Wait for ever."""
        self.entered += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.left += 1


async def leave(url: str, events: int, reached: Counter[str]) -> None:
    """Ask for a stream, read some of its events, and be gone."""
    body = json.dumps(Task.create_infer("go").to_dict()).encode()
    async with connected(url) as (reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        writer.write(request_bytes(url, "/tasks", body, Accept="text/event-stream"))
        for _ in range(events):
            line = await reader.readuntil(b"\n\n")
            reached["events"] += line.count(b"data: ")
        reached["at once" if events == 0 else "in mid stream"] += 1
        writer.transport.abort()


@pytest.mark.fault(name="F20")
@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
async def test_clients_that_leave_in_mid_stream_leave_nothing_behind(tally: Tally) -> None:
    """No task, no connection and no run: what nobody listens to any more is canceled, and its tools are told."""
    chance, endless, url, reached = random.Random(SEED), Endless(), free_url(), Counter[str]()
    script = [call("wait")] * (2 * CLIENTS)
    async with agent_at(url, *script, tools=[endless.wait], verbosity=0):
        tasks = len(asyncio.all_tasks())
        await asyncio.gather(*(leave(url, 1, Counter()) for _ in range(AT_ONCE)))
        await _quiet(endless, tasks)
        files = _open_files()

        for _ in range(CLIENTS // AT_ONCE):
            await asyncio.gather(*(leave(url, chance.randint(0, 4), reached) for _ in range(AT_ONCE)))
        await _quiet(endless, tasks)

        tally.add("clients", CLIENTS)
        tally.add("in mid stream", reached["in mid stream"])
        tally.see("descriptors more than before", _open_files() - files)
        tally.see("tasks more than before", len(asyncio.all_tasks()) - tasks)
        assert _open_files() <= files
        assert len(asyncio.all_tasks()) <= tasks
        assert reached["in mid stream"] > CLIENTS // 2
        assert endless.entered > CLIENTS // 4
        assert (await get(url, "/health")).status == 200


async def _quiet(endless: Endless, tasks: int) -> None:
    """Wait until everything that was entered has been left, and nobody is at work any more."""
    while endless.entered != endless.left or len(asyncio.all_tasks()) > tasks:
        await turns(10)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))
