"""A model that says what it is told to: for tests, examples and offline demonstrations."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from protolink._environment import current_environment, pause
from protolink._json import dumps, is_mapping, require_json
from protolink.errors import ConfigurationError
from protolink.llms.port import LLM, LLMReply, LLMRequest, ModelUsage, ToolCall

__all__ = ["History", "MockLLM", "MockTurn"]


@dataclass(frozen=True, slots=True)
class MockTurn:
    """One scripted turn with more than its words."""

    response: Any
    usage: ModelUsage | None = None
    """What the provider claims to have consumed; None leaves the estimate to the runtime."""

    delay_seconds: float = 0.0
    """How long the turn takes; the event loop goes on meanwhile."""

    finish_reason: str | None = None


class History:
    """What a callback may read: every message that the model is sent, the system prompt first."""

    __slots__ = ("_request",)

    def __init__(self, request: LLMRequest) -> None:
        self._request = request

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Copies of the messages, each with `role` and `content`."""
        system: list[dict[str, Any]] = [{"role": "system", "content": self._request.system_prompt}]
        return system + [copy.deepcopy(dict(message)) for message in self._request.messages]


Callback = Callable[[History, str], Any]


class MockLLM(LLM):
    """A scripted model. It never leaves the process.

    A response is a text, an action (`{"type": "tool_call", "tool": ..., "args": ...}`), a list of actions
    as one reply with several calls, a `MockTurn`, an exception to be raised as a provider's failure, or a
    callable that gives one of these, taking nothing or `(history, system_prompt)`, sync or async.

    Parameters
    ----------
    mock_responses
        Responses by a text that the last user message contains.
    sequential_responses
        Responses in order, over all runs that share the instance; then `default_response`.
    response_callback
        Called for every turn; a plain function runs in a worker thread, like any blocking provider.
    tool_calling
        `"json"` (also None) says actions as JSON text, `"native"` as calls in a provider's own format.
    fragment_size
        Stream each reply in pieces of so many characters.
    """

    provider = "mock"
    streaming = True
    blocking: ClassVar[bool] = False

    def __init__(
        self,
        model: str = "mock-gpt",
        model_params: Mapping[str, Any] | None = None,
        *,
        mock_responses: Mapping[str, Any] | None = None,
        sequential_responses: Iterable[Any] | None = None,
        response_callback: Callback | None = None,
        default_response: Any = "This is a mock response.",
        tool_calling: Literal["json", "native"] | None = None,
        fragment_size: int | None = None,
    ) -> None:
        if tool_calling not in (None, "json", "native"):
            raise ConfigurationError(f"tool_calling is 'json', 'native' or None, not {tool_calling!r}")
        if fragment_size is not None and (isinstance(fragment_size, bool) or fragment_size < 1):
            raise ConfigurationError("fragment_size is a positive number of characters, or None")
        if response_callback is not None and not callable(response_callback):
            raise ConfigurationError("response_callback must be callable")
        self.model = model
        self.model_params: dict[str, Any] = dict(model_params or {})
        self.native_tools: bool = tool_calling == "native"
        self.fragment_size = fragment_size
        self.default_response = default_response
        self.mock_responses: dict[str, Any] = dict(mock_responses or {})
        self.response_callback = response_callback
        self._script = list(sequential_responses or ())
        self._turn = itertools.count()

    def respond(self, request: LLMRequest) -> LLMReply | Awaitable[LLMReply]:
        """Say the next response; awaitable where it has to be computed or waited for."""
        if self.response_callback is not None:
            return self._computed(self.response_callback, request)
        response = self._scripted(request)
        if isinstance(response, MockTurn) or callable(response):
            return self._elaborate(response, request)
        return self._say(response, request)

    def _scripted(self, request: LLMRequest) -> Any:
        turn = next(self._turn)
        if turn < len(self._script):
            return self._script[turn]
        if self.mock_responses:
            asked = next((str(m["content"]) for m in reversed(request.messages) if m["role"] == "user"), "")
            for text, response in self.mock_responses.items():
                if text in asked:
                    return response
        return self.default_response

    async def _computed(self, function: Callable[..., Any], request: LLMRequest) -> LLMReply:
        arguments = (History(request), request.system_prompt) if _takes_arguments(function) else ()
        if inspect.iscoroutinefunction(function):
            response = await function(*arguments)
        else:
            response = await request.in_thread(function, *arguments)
            if inspect.isawaitable(response):
                response = await response
        return await self._elaborate(response, request)

    async def _elaborate(self, response: Any, request: LLMRequest) -> LLMReply:
        if isinstance(response, MockTurn):
            if response.delay_seconds:
                await pause(current_environment(), response.delay_seconds)
            inner = await self._elaborate(response.response, request)
            usage = response.usage or inner.usage
            return LLMReply(
                text=inner.text,
                calls=inner.calls,
                actions=inner.actions,
                usage=usage,
                finish_reason=response.finish_reason,
            )
        if callable(response) and not isinstance(response, BaseException):
            return await self._computed(response, request)
        return self._say(response, request)

    def _say(self, response: Any, request: LLMRequest) -> LLMReply:
        if isinstance(response, BaseException):
            raise response
        if isinstance(response, str):
            text, data = response, None
        else:
            data = require_json(response, "a scripted response")
            text = dumps(data)
        if self.fragment_size is not None:
            for start in range(0, len(text), self.fragment_size):
                request.fragment(text[start : start + self.fragment_size])
        if request.native and data is not None:
            calls = _native_calls(data)
            if calls is not None:
                return LLMReply(calls=calls)
        return LLMReply(text=text, actions=data)


def _takes_arguments(function: Callable[..., Any]) -> bool:
    try:
        return bool(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return True


def _native_calls(data: Any) -> tuple[ToolCall, ...] | None:
    """The calls of a scripted reply, or None where it holds anything but tool calls."""
    actions = cast("Sequence[Any]", data if isinstance(data, list) else [data])
    calls: list[ToolCall] = []
    for number, action in enumerate(actions, 1):
        if not is_mapping(action) or action.get("type") != "tool_call" or not isinstance(action.get("tool"), str):
            return None
        calls.append(ToolCall(name=action["tool"], arguments=action.get("args", {}), id=f"call_{number}"))
    return tuple(calls) or None
