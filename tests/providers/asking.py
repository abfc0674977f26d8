"""One turn of a model, made the way the runtime makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from protolink.llms import LLM, LLMReply, LLMRequest, ToolDeclaration

STORE = ToolDeclaration(
    name="store",
    description="Store an item.",
    input_schema={"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
)
COUNT = ToolDeclaration(name="count", description="Count.", input_schema={"type": "object", "properties": {}})


class Reader:
    """The run's side of a turn: keeps the fragments, and leaves after `patience` of them."""

    def __init__(self, patience: int | None = None) -> None:
        self.fragments: list[str] = []
        self.first = asyncio.Event()
        self._patience = patience

    @property
    def stopped(self) -> bool:
        return self._patience is not None and len(self.fragments) >= self._patience

    def fragment(self, text: str) -> None:
        self.fragments.append(text)
        self.first.set()

    def in_thread(self, function: Callable[..., Any], /, *args: Any) -> Awaitable[Any]:
        return asyncio.to_thread(function, *args)


def request(
    llm: LLM,
    reader: Reader,
    messages: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "Hello."},),
    **more: Any,
) -> LLMRequest:
    given: dict[str, Any] = {"tools": [STORE, COUNT], "system_prompt": "You keep things.", "step": 1, **more}
    return LLMRequest(messages=messages, native=llm.native_tools, turn=reader, **given)


async def ask(llm: LLM, reader: Reader | None = None, **more: Any) -> LLMReply:
    reply = llm.respond(request(llm, reader or Reader(), **more))
    assert not isinstance(reply, LLMReply)
    return await reply
