"""The model port: what a provider has to implement, and what it is given.

A provider is one class with one method, `respond`. It is given an `LLMRequest`, hands over each piece of
text as it arrives with `request.fragment(text)`, and returns the complete `LLMReply`. A provider that does
not stream hands over nothing; the runtime then shows its text as a single fragment.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol, TypeVar

from protolink._core.records import ModelUsage
from protolink.errors import ConfigurationError, ProtolinkError

__all__ = ["LLM", "LLMReply", "LLMRequest", "ModelCallError", "ModelUsage", "Pricing", "ToolCall", "ToolDeclaration"]

T = TypeVar("T")

MAX_TOOL_CORRECTIONS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDeclaration:
    """One tool as the model is offered it."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    examples: Sequence[Any] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call in a provider's own format. `arguments` is what the provider gave, parsed or as text."""

    name: str
    arguments: Any
    id: str | None = None


UNKNOWN_USAGE: Final = ModelUsage()
"""The usage of a provider that reports nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LLMReply:
    """A complete reply. With `calls` the text is what was said beside them."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    actions: Any = None
    """Actions that are data already (a dictionary or a list), for a provider that parses JSON itself."""

    usage: ModelUsage = field(default_factory=lambda: UNKNOWN_USAGE)
    finish_reason: str | None = None
    request_id: str | None = None
    reasoning: str | None = None
    provider_state: Mapping[str, Any] | None = None
    """What the provider wants back with this reply, as JSON: signed or encrypted reasoning, say. It is stored with
    the reply, returns as `provider_state` of its message, and is never public."""

    attempts: int = 1
    """Calls that were made for this reply, retries included; each is charged."""


@dataclass(frozen=True, slots=True)
class Pricing:
    """Money for a million tokens, in any one unit."""

    input: float
    output: float
    cached_input: float | None = None
    """For input tokens that the provider had cached; None is the price of `input`."""


class ModelCallError(ProtolinkError):
    """A provider refused or lost a call; raised by an adapter so that the runtime can tell what may be tried again.

    `retryable` says that the same call may succeed later (429, 5xx, a lost connection); `retry_after` is the
    provider's own wish in seconds, `status` its HTTP status. The message names the provider and what was wrong,
    never a key or a prompt. What was charged for a call that was lost stands in `usage`.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        request_id: str | None = None,
        usage: ModelUsage | None = None,
    ) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.request_id = request_id
        self.usage = usage


class InThread(Protocol):
    """Runs a blocking function in one of the agent's worker threads, within its bound."""

    def __call__(self, function: Callable[..., T], /, *args: Any) -> Awaitable[T]:
        """Await what `function` gives."""
        ...


class Turn(Protocol):
    """The run's side of one model turn."""

    @property
    def stopped(self) -> bool:
        """Whether the run no longer wants the reply."""
        ...

    def fragment(self, text: str) -> None:
        """Show a piece of the reply."""
        ...

    def in_thread(self, function: Callable[..., T], /, *args: Any) -> Awaitable[T]:
        """Run a blocking function in one of the agent's worker threads."""
        ...


class LLMRequest:
    """One model turn. `messages` is read-only for a provider; it starts after the system prompt.

    `tool_choice` is `"auto"`, `"required"`, `"none"` or the name of the one tool to call. `action_schema` is the JSON
    schema of exactly the actions that this turn allows; it is given to a model that says it can constrain its
    decoding (`LLM.constrained`) and takes its tools as JSON actions.
    """

    __slots__ = (
        "_turn",
        "action_schema",
        "max_output_tokens",
        "messages",
        "native",
        "output_schema",
        "step",
        "system_prompt",
        "tool_choice",
        "tools",
    )

    def __init__(
        self,
        *,
        messages: Sequence[Mapping[str, Any]],
        system_prompt: str,
        tools: Sequence[ToolDeclaration],
        native: bool,
        step: int,
        turn: Turn,
        output_schema: Mapping[str, Any] | None = None,
        max_output_tokens: int | None = None,
        tool_choice: str = "auto",
        action_schema: Mapping[str, Any] | None = None,
    ) -> None:
        self.messages: Sequence[Mapping[str, Any]] = messages
        self.system_prompt: str = system_prompt
        self.tools: Sequence[ToolDeclaration] = tools
        self.native: bool = native
        self.step: int = step
        self.output_schema: Mapping[str, Any] | None = output_schema
        self.max_output_tokens: int | None = max_output_tokens
        self.tool_choice: str = tool_choice
        self.action_schema: Mapping[str, Any] | None = action_schema
        self._turn = turn

    def in_thread(self, function: Callable[..., T], /, *args: Any) -> Awaitable[T]:
        """Await a blocking function in one of the agent's worker threads, within its bound."""
        return self._turn.in_thread(function, *args)

    def fragment(self, text: str | None) -> None:
        """Show a piece of the reply to whoever reads the stream; also from the provider's worker thread.

        Nothing (an empty text, or None as some providers' deltas have it) is skipped.

        Raises `ConnectionAbortedError` once the run no longer wants the reply, so that a provider that
        reads a stream in a thread leaves it there and then.
        """
        if text is not None and not isinstance(text, str):
            raise TypeError(f"a fragment is a text, not {type(text).__name__}")
        if self._turn.stopped:
            raise ConnectionAbortedError("the run no longer waits for this reply")
        if text:
            self._turn.fragment(text)


class LLM(ABC):
    """A model. One instance may serve many runs at once, unless its documentation says otherwise."""

    provider: str = "custom"
    model: str = ""
    native_tools: bool = False
    """Whether tools are offered in the provider's own format; otherwise as JSON actions."""

    constrained: bool = False
    """Whether `respond` can constrain what is decoded to `LLMRequest.action_schema`."""

    context_window: int | None = None
    """Tokens that a request and its reply may have together, where known."""

    repeats_question: bool = False
    """Whether a tool's result is followed by the question once more, which small models need."""

    streaming: bool = False
    pricing: Pricing | None = None
    """Known prices; without them costs stay unknown."""

    blocking: ClassVar[bool] = True
    """Whether `respond` may block and so runs in a worker thread; set by whether it is a coroutine function."""

    _max_tool_corrections: int = 2

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "blocking" not in cls.__dict__ and "respond" in cls.__dict__:
            cls.blocking = not inspect.iscoroutinefunction(cls.respond)

    @property
    def max_tool_corrections(self) -> int:
        """How many mistakes of one inference loop the model may correct: 0 to 10, two by default."""
        return self._max_tool_corrections

    @max_tool_corrections.setter
    def max_tool_corrections(self, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_TOOL_CORRECTIONS:
            raise ConfigurationError(f"max_tool_corrections is a whole number from 0 to {MAX_TOOL_CORRECTIONS}")
        self._max_tool_corrections = value

    @property
    def routes(self) -> tuple[LLM, ...]:
        """The models that a turn may be asked of, in the order of preference: the model itself, but for a router."""
        return (self,)

    @abstractmethod
    def respond(self, request: LLMRequest) -> LLMReply | Awaitable[LLMReply]:
        """Make one turn. A plain method runs in a worker thread, a coroutine on the event loop."""

    async def prepare(self, in_thread: InThread) -> None:  # noqa: B027
        """Find out what the model can do (`native_tools`, `constrained`, `context_window`), once.

        Awaited before the first turn of each run or resumed run. What it raises fails the turn.
        """

    async def aclose(self) -> None:  # noqa: B027
        """Give back what the model holds open (connections, loaded weights). It may be used again afterwards."""

    def to_dict(self) -> dict[str, Any]:
        """What identifies the model in a configuration; no secrets."""
        return {"provider": self.provider, "model": self.model, "max_tool_corrections": self.max_tool_corrections}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.provider}:{self.model}>"
