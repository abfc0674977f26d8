"""Running an agent to its end and keeping everything that it showed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Unpack

from protolink.agent import Agent
from protolink.events import RunEvent
from protolink.handle import RunHandle, RunResult
from protolink.message import Message
from protolink.task import Task

if TYPE_CHECKING:
    from protolink._options import RunOptions

__all__ = ["CollectedRun", "collect", "run_events"]


class CollectedRun(NamedTuple):
    """All that a reader saw of a run, and how it ended."""

    events: tuple[RunEvent, ...]
    result: RunResult


async def collect(handle: RunHandle) -> CollectedRun:
    """Read a run from its beginning to its end. Never raises for the run's own failure."""
    events = [event async for event in handle.events()]
    return CollectedRun(tuple(events), await handle.result())


async def run_events(agent: Agent, prompt: str | Task | Message, **options: Unpack[RunOptions]) -> CollectedRun:
    """Start a run and read it to its end; the options are those of `Agent.start_run`.

    Canceling the awaiting task cancels the run.
    """
    handle = agent.start_run(prompt, **options)
    try:
        return await collect(handle)
    except asyncio.CancelledError:
        await handle.cancel("the caller was canceled")
        raise
