"""OpenAI's Chat Completions, and every server that speaks them: vLLM, LM Studio, llama.cpp, xAI, DeepSeek, Mistral."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Final

from protolink._json import dumps, is_list, is_mapping, thaw
from protolink.llms.draft import Draft
from protolink.llms.port import LLMRequest
from protolink.llms.remote import RemoteLLM, fits_strictly, tls
from protolink.llms.turns import AssistantTurn, UserTurn, conversation, is_plain_id

__all__ = [
    "VLLM",
    "XAILLM",
    "DeepSeekLLM",
    "LMStudioLLM",
    "LlamaCppLLM",
    "MistralLLM",
    "OpenAIChatLLM",
    "OpenAICompatibleLLM",
    "finish_reason",
    "open_client",
]

_FINISH: Final = {"function_call": "tool_calls", "model_length": "length", "insufficient_system_resource": "length"}
_MISTRAL_ID: Final = re.compile(r"[A-Za-z0-9]{9}")
_NO_KEY: Final = "none"


class OpenAIChatLLM(RemoteLLM):
    """A model of OpenAI through Chat Completions. `protolink.llms.openai` is the newer Responses API."""

    provider = "openai-chat"
    extra = "openai"
    module = "openai"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_API_KEY",)

    bound_parameter: ClassVar[str] = "max_completion_tokens"
    id_length: ClassVar[int] = 28
    """How long a new id is, where the service would refuse the one that a call has."""

    schema_beside_tools: ClassVar[bool] = True
    only_strict_schemas: ClassVar[bool] = True
    """Whether a schema outside the strict subset would be refused, or is taken as it is."""

    def open(self, sdk: Any, key: str | None) -> tuple[Any, Callable[[], Awaitable[object]]]:
        """A client of the `openai` SDK."""
        client = open_client(self, sdk, key, foreign=False)
        return client, client.close

    async def fill(self, draft: Draft, client: Any, request: LLMRequest) -> None:
        """Make the call and read its chunks."""
        stream = await client.chat.completions.create(**self.payload(request))
        draft.request_id = stream.response.headers.get("x-request-id")
        async with stream:
            async for chunk in stream:
                self._take(draft, chunk)
                await draft.breathe()

    def payload(self, request: LLMRequest) -> dict[str, Any]:
        """The call as the SDK takes it."""
        payload: dict[str, Any] = {
            "model": self.model,
            "messages": self.messages(request),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.native and request.tools:
            payload["tools"] = [_tool(tool) for tool in request.tools]
            payload["tool_choice"] = _choice(request.tool_choice)
            if self.parallel_tool_calls is not None:
                payload["parallel_tool_calls"] = self.parallel_tool_calls
        schema = self.schema_for(request, beside_tools=self.schema_beside_tools)
        if schema is not None and (fits_strictly(schema) or not self.only_strict_schemas):
            # A server may take "strict" for a wish to be told of what it cannot enforce; OpenAI needs it.
            payload["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "reply", "schema": schema, "strict": True},
            }
        # Not as arguments of the SDK, which has only those that OpenAI itself takes at the time.
        extra = {"temperature": self.temperature, self.bound_parameter: self.output_bound(request)}
        extra = {name: value for name, value in extra.items() if value is not None}
        if extra or self.parameters:
            payload["extra_body"] = {**extra, **self.parameters}
        return payload

    def messages(self, request: LLMRequest) -> list[dict[str, Any]]:
        """The system prompt and the conversation."""
        messages: list[dict[str, Any]] = []
        if request.system_prompt:
            messages.append({"role": "system", "content": request.system_prompt})
        turns = conversation(request.messages, native=request.native, is_id=self.is_id, id_length=self.id_length)
        for turn in turns:
            messages += _user(turn) if isinstance(turn, UserTurn) else [_assistant(turn)]
        return messages

    def is_id(self, text: str) -> bool:
        """Whether the service takes this id of a call."""
        return is_plain_id(text)

    def _take(self, draft: Draft, chunk: Any) -> None:
        if chunk.usage is not None:
            _usage(draft, chunk.usage)
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        delta = choice.delta
        if delta is not None:
            _content(draft, delta.content)
            # The servers that show the reasoning of open models do it under one of these names.
            more = delta.model_extra
            if more:
                draft.think(more.get("reasoning_content") or more.get("reasoning"))
            for call in delta.tool_calls or ():
                _call(draft, call)
            if delta.refusal:
                draft.say(delta.refusal)
                draft.finish_reason = "refusal"
        if choice.finish_reason and draft.finish_reason != "refusal":
            draft.finish_reason = finish_reason(choice.finish_reason)


class OpenAICompatibleLLM(OpenAIChatLLM):
    """A model of any server that speaks Chat Completions at `base_url`.

    The key is optional and comes from `api_key` or the server's own variable; OpenAI's key, organization and
    project are never sent to somebody else.
    """

    provider = "openai-compatible"
    key_variables: ClassVar[tuple[str, ...]] = ("OPENAI_COMPATIBLE_API_KEY",)
    needs_key = False
    needs_base_url = True
    bound_parameter = "max_tokens"
    default_constrained = True
    schema_beside_tools = False
    only_strict_schemas = False

    def open(self, sdk: Any, key: str | None) -> tuple[Any, Callable[[], Awaitable[object]]]:
        """A client of the `openai` SDK without anything that belongs to OpenAI."""
        client = open_client(self, sdk, key or _NO_KEY, foreign=True)
        return client, client.close


class VLLM(OpenAICompatibleLLM):
    """A model of a vLLM server, `http://localhost:8000/v1` unless `base_url` says otherwise."""

    provider = "vllm"
    key_variables: ClassVar[tuple[str, ...]] = ("VLLM_API_KEY",)
    default_base_url: ClassVar[str | None] = "http://localhost:8000/v1"


class LMStudioLLM(OpenAICompatibleLLM):
    """A model of LM Studio, `http://localhost:1234/v1` unless `base_url` says otherwise."""

    provider = "lmstudio"
    key_variables: ClassVar[tuple[str, ...]] = ("LMSTUDIO_API_KEY",)
    default_base_url: ClassVar[str | None] = "http://localhost:1234/v1"
    makes_grammars = True


class LlamaCppLLM(OpenAICompatibleLLM):
    """A model of a llama.cpp server, `http://localhost:8080/v1` unless `base_url` says otherwise."""

    provider = "llamacpp"
    key_variables: ClassVar[tuple[str, ...]] = ("LLAMA_API_KEY",)
    default_base_url: ClassVar[str | None] = "http://localhost:8080/v1"
    makes_grammars = True


class XAILLM(OpenAICompatibleLLM):
    """A model of xAI."""

    provider = "xai"
    key_variables: ClassVar[tuple[str, ...]] = ("XAI_API_KEY",)
    needs_key = True
    default_base_url: ClassVar[str | None] = "https://api.x.ai/v1"


class DeepSeekLLM(OpenAICompatibleLLM):
    """A model of DeepSeek. It can promise JSON but no schema, so nothing is constrained."""

    provider = "deepseek"
    key_variables: ClassVar[tuple[str, ...]] = ("DEEPSEEK_API_KEY",)
    needs_key = True
    default_base_url: ClassVar[str | None] = "https://api.deepseek.com/v1"
    default_constrained = False
    default_constrained_answers = False


class MistralLLM(OpenAICompatibleLLM):
    """A model of Mistral, which takes ids of nine letters and digits and no user right behind a tool."""

    provider = "mistral"
    key_variables: ClassVar[tuple[str, ...]] = ("MISTRAL_API_KEY",)
    needs_key = True
    default_base_url: ClassVar[str | None] = "https://api.mistral.ai/v1"
    id_length = 9

    def is_id(self, text: str) -> bool:
        """Mistral refuses any other length."""
        return _MISTRAL_ID.fullmatch(text) is not None

    def messages(self, request: LLMRequest) -> list[dict[str, Any]]:
        """The same, except for the one word that has to stand between a tool and the user."""
        messages: list[dict[str, Any]] = []
        for message in super().messages(request):
            if message["role"] == "user" and messages and messages[-1]["role"] == "tool":
                messages.append({"role": "assistant", "content": "OK."})
            messages.append(message)
        return messages


def open_client(llm: RemoteLLM, sdk: Any, key: str | None, *, foreign: bool) -> Any:
    """A client of the `openai` SDK that retries nothing and follows nobody; `foreign` is a server of others."""
    timeout = sdk.Timeout(llm.read_timeout, connect=llm.connect_timeout)
    omit = {"OpenAI-Organization": sdk.Omit(), "OpenAI-Project": sdk.Omit()} if foreign else None
    return sdk.AsyncOpenAI(
        api_key=key,
        base_url=llm.address,
        max_retries=0,
        timeout=timeout,
        default_headers=omit,
        # A redirect would take the conversation, and some headers, to another host.
        http_client=sdk.DefaultAsyncHttpxClient(follow_redirects=False, timeout=timeout, verify=tls("httpx2")),
    )


def finish_reason(said: str) -> str:
    """The reason in this package's words: stop, length, tool_calls, content_filter; others as they are."""
    return _FINISH.get(said, said)


def _tool(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": thaw(dict(tool.input_schema))}
    return {"type": "function", "function": function}


def _choice(choice: str) -> Any:
    if choice in ("auto", "required", "none"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _user(turn: UserTurn) -> list[dict[str, Any]]:
    messages = [{"role": "tool", "tool_call_id": result.id, "content": result.text} for result in turn.results]
    return [*messages, {"role": "user", "content": turn.text}] if turn.text else messages


def _assistant(turn: AssistantTurn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dumps(call.arguments)}}
            for call in turn.calls
        ]
    return message


def _content(draft: Draft, content: Any) -> None:
    """A piece of text, or the typed pieces that Mistral's reasoning models give."""
    if not is_list(content):
        draft.say(content)
        return
    for piece in content:
        if is_mapping(piece) and piece.get("type") == "text":
            draft.say(piece.get("text"))
        elif is_mapping(piece) and is_list(piece.get("thinking")):
            for thought in piece["thinking"]:
                draft.think(thought.get("text") if is_mapping(thought) else None)


def _call(draft: Draft, call: Any) -> None:
    """A piece of a call. Some servers number none of their calls, or all of them alike, and send each one whole."""
    key = call.index if call.index is not None else draft.calls - (0 if call.id else 1)
    if call.id and draft.id_of(key) not in (None, call.id):
        key = (key, call.id)
    function = call.function
    if function is not None:
        draft.call(key, name=function.name, id=call.id, piece=_text(function.arguments))


def _text(arguments: Any) -> str | None:
    return arguments if arguments is None or isinstance(arguments, str) else dumps(arguments)


def _usage(draft: Draft, usage: Any) -> None:
    draft.used(
        input=usage.prompt_tokens,
        output=usage.completion_tokens,
        cached=getattr(usage.prompt_tokens_details, "cached_tokens", None),
        reasoning=getattr(usage.completion_tokens_details, "reasoning_tokens", None),
    )
