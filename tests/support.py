"""What tests of running agents share beside `protolink.testing`: scripted models, readers, functions that wait."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from protolink import Agent, RunEvent, RunHandle, RunResult
from protolink.llms import LLMReply, LLMRequest, MockLLM

ENDINGS = frozenset(
    {
        "action.completed",
        "action.rejected",
        "action.denied",
        "action.failed",
        "action.canceled",
        "action.uncertain",
        "action.repeated",
    }
)

PATIENCE_SECONDS = 20.0
"""How long a worker thread waits before it gives a failed test up; never a part of a claim."""


def model(*responses: Any, **options: Any) -> MockLLM:
    """A model that says `responses` in order, and then `done`."""
    settings: dict[str, Any] = {"default_response": "done", **options}
    return MockLLM(sequential_responses=responses, **settings)


class ListeningLLM(MockLLM):
    """A scripted model that keeps what it was sent."""

    blocking = False

    def __init__(self, *responses: Any, **options: Any) -> None:
        settings: dict[str, Any] = {"default_response": "done", **options}
        super().__init__(sequential_responses=responses, **settings)
        self.heard: list[list[dict[str, Any]]] = []
        self.requests: list[LLMRequest] = []

    def respond(self, request: LLMRequest) -> Any:
        """Keep the request, then say the next response."""
        self.heard.append([dict(message) for message in request.messages])
        self.requests.append(request)
        return super().respond(request)

    @property
    def everything(self) -> str:
        """All that any turn was sent, as one text."""
        prompts = [request.system_prompt for request in self.requests]
        return "\n".join([*prompts, *(json.dumps(messages) for messages in self.heard)])


def results(messages: Iterable[Mapping[str, Any]]) -> list[Any]:
    """What the tools of a conversation gave, as the model reads it."""
    return [json.loads(message["content"])["result"] for message in messages if message["role"] == "tool"]


def reply_of(text: str, **fields: Any) -> LLMReply:
    """A provider's reply."""
    return LLMReply(text=text, **fields)


async def observe(agent: Agent, work: Any = "go", **options: Any) -> tuple[list[RunEvent], RunResult]:
    """Run `work` to its end; give its events and its result."""
    handle = agent.start_run(work, **options)
    events = [event async for event in handle.events()]
    return events, await handle.result()


async def seen(handle: RunHandle, kind: str) -> RunEvent:
    """Wait until the run has an event of a type."""
    async for event in handle.events():
        if event.type == kind:
            return event
    raise AssertionError(f"the run ended without {kind}")


def of_type(events: Iterable[RunEvent], kind: str) -> list[RunEvent]:
    """The events of one type."""
    return [event for event in events if event.type == kind]


def types(events: Iterable[RunEvent]) -> list[str]:
    """The types of events, in order."""
    return [event.type for event in events]


async def turns(number: int) -> None:
    """Let the event loop serve everybody else so many times."""
    for _ in range(number):
        await asyncio.sleep(0)


def assert_settled(events: list[RunEvent]) -> None:
    """A run has ended properly: its last event says so, and each action that began has exactly one ending."""
    assert events[-1].type == "task.status"
    assert events[-1].final
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    touched = {event.action_id for event in events if event.action_id is not None}
    ended = [event.action_id for event in events if event.action_id is not None and event.type in ENDINGS]
    assert sorted(ended) == sorted(touched)


class Blocker:
    """A blocking function that says when its thread entered it, and returns once it is let go.

    Made on the event loop that waits for it.
    """

    def __init__(self, result: Any = "released") -> None:
        self._loop = asyncio.get_running_loop()
        self._go = threading.Event()
        self._result = result
        self.entered = asyncio.Event()
        self.left = asyncio.Event()
        self.calls = 0

    def wait(self, *_: Any) -> Any:
        """Block this thread."""
        self.calls += 1
        self._loop.call_soon_threadsafe(self.entered.set)
        if not self._go.wait(PATIENCE_SECONDS):
            raise TimeoutError("nobody let this thread go")
        self._loop.call_soon_threadsafe(self.left.set)
        return self._result

    def release(self) -> None:
        """Let every waiting thread go, now and later."""
        self._go.set()


@asynccontextmanager
async def blocker(result: Any = "released") -> AsyncGenerator[Blocker]:
    """A `Blocker` that lets its threads go at the end, whatever happened to the test."""
    waiting = Blocker(result)
    try:
        yield waiting
    finally:
        waiting.release()
