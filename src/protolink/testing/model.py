"""A model that plays a script and remembers what it was asked."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from protolink._json import JSONError, parse, thaw
from protolink.llms.mock import MockLLM
from protolink.llms.port import LLMReply, LLMRequest

__all__ = ["RecordedRequest", "ScriptExhaustedError", "ScriptedLLM"]


class ScriptExhaustedError(AssertionError):
    """The model was asked for a turn that its script does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """What a model was given for one turn, as plain values that nobody changes afterwards."""

    messages: tuple[dict[str, Any], ...]
    """The conversation, without the system prompt; each has `role` and `content`."""

    system_prompt: str
    tools: tuple[dict[str, Any], ...]
    """Each has `name`, `description`, `input_schema` and `examples`."""

    step: int
    """The model turn of the run, from 1."""

    native: bool
    """Whether the tools are offered in the provider's own format."""

    output_schema: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    tool_choice: str = "auto"
    action_schema: dict[str, Any] | None = None

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the offered tools."""
        return tuple(tool["name"] for tool in self.tools)

    @property
    def prompt(self) -> str:
        """The last message from the user's side; empty where there is none."""
        return next((message["content"] for message in reversed(self.messages) if message["role"] == "user"), "")

    @property
    def observations(self) -> tuple[Any, ...]:
        """What the model has been told of its calls so far, in order, read as JSON."""
        return tuple(_read(message["content"]) for message in self.messages if message["role"] == "tool")


def _read(content: str) -> Any:
    try:
        return parse(content)
    except JSONError:
        return content


class ScriptedLLM(MockLLM):
    """A `MockLLM` for tests: it plays `turns` once, records every request, and complains about one turn more.

    A turn is whatever `MockLLM` takes: a text, `call(...)`, `calls(...)`, a `MockTurn`, an exception to be
    raised as the provider's, or a callable. One instance can serve several runs; they share the script.

    A turn too many is `ScriptExhaustedError`. Like any failure of a provider it ends the run as failed:
    `invoke` raises `ModelFailedError` with it as the cause.
    """

    blocking: ClassVar[bool] = False

    def __init__(
        self,
        turns: Iterable[Any] = (),
        *,
        tool_calling: Literal["json", "native"] | None = None,
        fragment_size: int | None = None,
        model: str = "scripted",
    ) -> None:
        script = list(turns)
        super().__init__(model, sequential_responses=script, tool_calling=tool_calling, fragment_size=fragment_size)
        self._length = len(script)
        self._requests: list[RecordedRequest] = []
        self._lock = threading.Lock()

    @property
    def requests(self) -> tuple[RecordedRequest, ...]:
        """Every request so far, the first one first."""
        return tuple(self._requests)

    @property
    def remaining(self) -> int:
        """How many turns of the script were not asked for yet."""
        return max(0, self._length - len(self._requests))

    def respond(self, request: LLMRequest) -> LLMReply | Awaitable[LLMReply]:
        """Record the request and play the next turn."""
        with self._lock:
            self._requests.append(_recorded(request))
            turn = len(self._requests)
        if turn > self._length:
            raise ScriptExhaustedError(
                f"the script has {self._length} turns and turn {turn} was asked for (step {request.step} of its run)"
            )
        return super().respond(request)


def _recorded(request: LLMRequest) -> RecordedRequest:
    schema = request.output_schema
    return RecordedRequest(
        messages=tuple(_plain(message) for message in request.messages),
        system_prompt=request.system_prompt,
        tools=tuple(
            {
                "name": tool.name,
                "description": tool.description,
                "input_schema": _plain(tool.input_schema),
                "examples": _plain(list(tool.examples)),
            }
            for tool in request.tools
        ),
        step=request.step,
        native=request.native,
        output_schema=None if schema is None else _plain(schema),
        max_output_tokens=request.max_output_tokens,
        tool_choice=request.tool_choice,
        action_schema=None if request.action_schema is None else _plain(request.action_schema),
    )


def _plain(value: Any) -> Any:
    """A copy in plain dictionaries and lists."""
    return thaw(dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value)
