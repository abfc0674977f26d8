"""Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

from protolink._json import is_mapping, thaw
from protolink.llms.draft import Draft, count
from protolink.llms.port import LLMRequest
from protolink.llms.remote import RemoteLLM, fits_strictly, tls
from protolink.llms.turns import AssistantTurn, UserTurn, conversation

__all__ = ["AnthropicLLM"]

_FINISH: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_CHOICES: Final = {"auto": "auto", "required": "any", "none": "none"}
DEFAULT_OUTPUT_TOKENS: Final = 4096
"""The API needs a bound; this is one that every model of the provider takes."""


class AnthropicLLM(RemoteLLM):
    """A model of Anthropic.

    A reply is bounded at 4,096 tokens unless `max_output_tokens` says otherwise, for the API needs a bound. Only
    newer models can be constrained to a schema, so `constrained` is off unless asked for. With
    `parameters={"thinking": {...}}` the signed thinking of a turn with calls goes back with their results.
    """

    provider = "anthropic"
    extra = "anthropic"
    module = "anthropic"
    key_variables: ClassVar[tuple[str, ...]] = ("ANTHROPIC_API_KEY",)
    default_constrained_answers = False

    def open(self, sdk: Any, key: str | None) -> tuple[Any, Callable[[], Awaitable[object]]]:
        """A client of the `anthropic` SDK that retries nothing and follows nobody."""
        timeout = sdk.Timeout(self.read_timeout, connect=self.connect_timeout)
        client = sdk.AsyncAnthropic(
            api_key=key,
            base_url=self.base_url,
            max_retries=0,
            timeout=timeout,
            # A redirect would take the key, in its own header, to another host.
            http_client=sdk.DefaultAsyncHttpxClient(follow_redirects=False, timeout=timeout, verify=tls("httpx2")),
        )
        return client, client.close

    async def fill(self, draft: Draft, client: Any, request: LLMRequest) -> None:
        """Make the call and read its events."""
        stream = await client.messages.create(**self.payload(request))
        draft.request_id = stream.response.headers.get("request-id")
        blocks: dict[int, dict[str, Any]] = {}
        async with stream:
            async for event in stream:
                _take(draft, event, blocks)
                await draft.breathe()
        if draft.calls and blocks:
            draft.state = {"blocks": list(blocks.values())}

    def payload(self, request: LLMRequest) -> dict[str, Any]:
        """The call as the SDK takes it."""
        payload: dict[str, Any] = {
            "model": self.model,
            "messages": self.messages(request),
            "max_tokens": self.output_bound(request) or DEFAULT_OUTPUT_TOKENS,
            "stream": True,
        }
        if request.system_prompt.strip():
            payload["system"] = request.system_prompt
        if request.native and request.tools:
            payload["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": thaw(dict(tool.input_schema))}
                for tool in request.tools
            ]
            payload["tool_choice"] = self._choice(request.tool_choice)
        elif named := _named(payload["messages"]):
            # Calls of earlier turns are refused unless their tools are declared; nothing can be called all the same.
            payload["tools"] = [{"name": name, "input_schema": {"type": "object"}} for name in named]
            payload["tool_choice"] = {"type": "none"}
        schema = self.schema_for(request, beside_tools=True)
        if schema is not None and fits_strictly(schema):
            payload["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        # The newest models take no temperature, and so the SDK has no argument for it.
        extra = {} if self.temperature is None else {"temperature": self.temperature}
        if extra or self.parameters:
            payload["extra_body"] = {**extra, **self.parameters}
        return payload

    def messages(self, request: LLMRequest) -> list[dict[str, Any]]:
        """The conversation as messages of content blocks."""
        turns = conversation(request.messages, native=request.native)
        return [_user(turn) if isinstance(turn, UserTurn) else _assistant(turn) for turn in turns]

    def _choice(self, choice: str) -> dict[str, Any]:
        said: dict[str, Any] = {"type": _CHOICES[choice]} if choice in _CHOICES else {"type": "tool", "name": choice}
        if self.parallel_tool_calls is not None and choice != "none":
            said["disable_parallel_tool_use"] = not self.parallel_tool_calls
        return said


def _named(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The tools that the model has called, in their order."""
    blocks = (block for message in messages for block in message["content"])
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


def _user(turn: UserTurn) -> dict[str, Any]:
    content: list[dict[str, Any]] = [
        {"type": "tool_result", "tool_use_id": result.id, "content": result.text} for result in turn.results
    ]
    if turn.text:
        content.append({"type": "text", "text": turn.text})
    return {"role": "user", "content": content}


def _assistant(turn: AssistantTurn) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if turn.calls and turn.state is not None and turn.state.get("provider") == AnthropicLLM.provider:
        content += thaw(turn.state.get("blocks") or [])
    if turn.text:
        content.append({"type": "text", "text": turn.text})
    content += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments} for call in turn.calls]
    return {"role": "assistant", "content": content}


def _take(draft: Draft, event: Any, blocks: dict[int, dict[str, Any]]) -> None:
    match event.type:
        case "message_start":
            _usage(draft, event.message.usage)
        case "content_block_start":
            _block(draft, event.index, event.content_block, blocks)
        case "content_block_delta":
            _delta(draft, event.index, event.delta, blocks)
        case "message_delta":
            _usage(draft, event.usage)
            reason = event.delta.stop_reason
            draft.finish_reason = _FINISH.get(reason, reason)
        case _:  # the ends of blocks, and what later releases of the service add
            pass


def _block(draft: Draft, index: int, block: Any, blocks: dict[int, dict[str, Any]]) -> None:
    match block.type:
        case "text":
            draft.say(block.text)
        case "tool_use":
            draft.call(index, name=block.name, id=block.id)
            if is_mapping(block.input) and block.input:
                draft.call_arguments(index, block.input)
        case "thinking":
            draft.think(block.thinking)
            blocks[index] = {"type": "thinking", "thinking": block.thinking, "signature": block.signature}
        case "redacted_thinking":
            blocks[index] = {"type": "redacted_thinking", "data": block.data}
        case _:
            pass


def _delta(draft: Draft, index: int, delta: Any, blocks: dict[int, dict[str, Any]]) -> None:
    match delta.type:
        case "text_delta":
            draft.say(delta.text)
        case "input_json_delta":
            draft.call(index, piece=delta.partial_json)
        case "thinking_delta":
            draft.think(delta.thinking)
            blocks[index]["thinking"] += delta.thinking
        case "signature_delta":
            blocks[index]["signature"] += delta.signature
        case _:
            pass


def _usage(draft: Draft, usage: Any) -> None:
    """Anthropic counts the tokens that went into its cache, and came out of it, beside the others."""
    if usage is None:
        return
    parts = [
        count(getattr(usage, name, None))
        for name in ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    ]
    known = [part for part in parts if part is not None]
    draft.used(
        input=sum(known) if parts[0] is not None else None,
        output=usage.output_tokens,
        cached=parts[2],
        reasoning=getattr(getattr(usage, "output_tokens_details", None), "thinking_tokens", None),
    )
