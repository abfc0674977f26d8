"""OpenAI's Responses API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from protolink._json import dumps, thaw
from protolink.llms.draft import Draft
from protolink.llms.openai_chat import open_client
from protolink.llms.port import LLMRequest, ModelCallError
from protolink.llms.remote import RemoteLLM, fits_strictly
from protolink.llms.turns import AssistantTurn, UserTurn, conversation

__all__ = ["OpenAILLM"]

_INCOMPLETE: Final = {"max_output_tokens": "length"}
_TRANSIENT: Final = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout"})


class OpenAILLM(RemoteLLM):
    """A model of OpenAI through the Responses API.

    The whole conversation is sent with every turn and OpenAI is asked not to store it (`store=False`). With
    `parameters={"reasoning": {...}}` the encrypted reasoning of a turn with calls goes back with their results.
    """

    provider = "openai"
    extra = "openai"
    module = "openai"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)

    def open(self, sdk: Any, key: str | None) -> tuple[Any, Callable[[], Awaitable[object]]]:
        """A client of the `openai` SDK."""
        client = open_client(self, sdk, key, foreign=False)
        return client, client.close

    async def fill(self, draft: Draft, client: Any, request: LLMRequest) -> None:
        """Make the call and read its events."""
        stream = await client.responses.create(**self.payload(request))
        draft.request_id = stream.response.headers.get("x-request-id")
        async with stream:
            async for event in stream:
                _take(draft, event)
                await draft.breathe()

    def payload(self, request: LLMRequest) -> dict[str, Any]:
        """The call as the SDK takes it."""
        payload: dict[str, Any] = {"model": self.model, "input": self.input(request), "stream": True, "store": False}
        if request.system_prompt:
            payload["instructions"] = request.system_prompt
        if request.native and request.tools:
            payload["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": thaw(dict(tool.input_schema)),
                    "strict": False,
                }
                for tool in request.tools
            ]
            payload["tool_choice"] = _choice(request.tool_choice)
            if self.parallel_tool_calls is not None:
                payload["parallel_tool_calls"] = self.parallel_tool_calls
        schema = self.schema_for(request, beside_tools=True)
        if schema is not None and fits_strictly(schema):
            payload["text"] = {"format": {"type": "json_schema", "name": "reply", "schema": schema, "strict": True}}
        if self.temperature is not None:
            payload["temperature"] = self.temperature
        bound = self.output_bound(request)
        if bound is not None:
            payload["max_output_tokens"] = bound
        if "reasoning" in self.parameters:
            payload["include"] = ["reasoning.encrypted_content"]
        if self.parameters:
            payload["extra_body"] = self.parameters
        return payload

    def input(self, request: LLMRequest) -> list[dict[str, Any]]:
        """The conversation as input items."""
        items: list[dict[str, Any]] = []
        for turn in conversation(request.messages, native=request.native):
            items += _user(turn) if isinstance(turn, UserTurn) else _assistant(turn)
        return items


def _choice(choice: str) -> Any:
    return choice if choice in ("auto", "required", "none") else {"type": "function", "name": choice}


def _user(turn: UserTurn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = [
        {"type": "function_call_output", "call_id": result.id, "output": result.text} for result in turn.results
    ]
    return [*items, {"role": "user", "content": turn.text}] if turn.text else items


def _assistant(turn: AssistantTurn) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.calls and turn.state is not None and turn.state.get("provider") == OpenAILLM.provider:
        items += thaw(turn.state.get("reasoning") or [])
    if turn.text:
        items.append({"role": "assistant", "content": turn.text})
    # Without the ids of the items, which would tie the calls to what OpenAI does not store.
    items += [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": dumps(call.arguments)}
        for call in turn.calls
    ]
    return items


def _take(draft: Draft, event: Any) -> None:
    match event.type:
        case "response.output_text.delta":
            draft.say(event.delta)
        case "response.refusal.delta":
            draft.say(event.delta)
            draft.finish_reason = "refusal"
        case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
            draft.think(event.delta)
        case "response.output_item.added" if event.item.type == "function_call":
            draft.call(event.output_index, name=event.item.name, id=event.item.call_id)
        case "response.function_call_arguments.delta":
            draft.call(event.output_index, piece=event.delta)
        case "response.output_item.done":
            _item(draft, event.output_index, event.item)
        case "response.completed" | "response.incomplete":
            _ended(draft, event.response)
        case "response.failed":
            _usage(draft, event.response.usage)
            raise _failed(draft, getattr(event.response.error, "code", None))
        case "error":
            raise _failed(draft, event.code)
        case _:  # the parts of items, and what later releases of the service add
            pass


def _item(draft: Draft, key: int, item: Any) -> None:
    """A whole item; for a call its arguments are those that count."""
    if item.type == "function_call":
        draft.call(key, name=item.name, id=item.call_id)
        if item.arguments:
            draft.call_arguments(key, item.arguments)
    elif item.type == "reasoning" and getattr(item, "encrypted_content", None):
        kept = {
            "type": "reasoning",
            "id": item.id,
            "summary": [{"type": "summary_text", "text": part.text} for part in item.summary],
            "encrypted_content": item.encrypted_content,
        }
        draft.state = draft.state or {"reasoning": []}
        draft.state["reasoning"].append(kept)


def _ended(draft: Draft, response: Any) -> None:
    _usage(draft, response.usage)
    if draft.finish_reason is not None:  # a refusal
        return
    details = response.incomplete_details
    if details is not None:
        draft.finish_reason = _INCOMPLETE.get(details.reason, details.reason) or "incomplete"
    else:
        draft.finish_reason = "tool_calls" if draft.calls else "stop"


def _usage(draft: Draft, usage: Any) -> None:
    if usage is not None:
        draft.used(
            input=usage.input_tokens,
            output=usage.output_tokens,
            cached=getattr(usage.input_tokens_details, "cached_tokens", None),
            reasoning=getattr(usage.output_tokens_details, "reasoning_tokens", None),
        )


def _failed(draft: Draft, code: str | None) -> ModelCallError:
    return draft.lost(f"failed to reply ({code or 'no reason given'})", retryable=code is None or code in _TRANSIENT)
