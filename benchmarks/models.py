"""The models of the workloads: coroutines that answer in JSON text, as a provider's client would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from protolink.llms import LLM
from protolink.llms.port import LLMReply, LLMRequest

__all__ = ["Scripted", "Streaming", "Waiting"]


class Scripted(LLM):
    """Says a text that depends on nothing but the step, so that one instance serves any number of runs."""

    provider = "benchmark"
    model = "scripted"

    def __init__(self, say: Callable[[int], str]) -> None:
        self.say = say

    async def respond(self, request: LLMRequest) -> LLMReply:
        """The text of this step, at once."""
        return LLMReply(text=self.say(request.step))


class Waiting(Scripted):
    """The same, after a while."""

    model = "waiting"

    def __init__(self, say: Callable[[int], str], seconds: float) -> None:
        super().__init__(say)
        self.seconds = seconds

    async def respond(self, request: LLMRequest) -> LLMReply:
        """The text of this step, after so many seconds in which the event loop is free."""
        await asyncio.sleep(self.seconds)
        return LLMReply(text=self.say(request.step))


class Streaming(LLM):
    """Streams fragments that arrive one at a time."""

    provider = "benchmark"
    model = "streaming"
    streaming = True

    def __init__(self, fragments: Sequence[str]) -> None:
        self.fragments = fragments

    async def respond(self, request: LLMRequest) -> LLMReply:
        """Every fragment, each in a turn of the event loop of its own."""
        for fragment in self.fragments:
            request.fragment(fragment)
            await asyncio.sleep(0)
        return LLMReply(text="".join(self.fragments))
