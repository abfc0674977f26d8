"""Ollama's own API."""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, ClassVar, Final

from protolink._json import dumps, is_list, is_mapping, thaw
from protolink.llms.draft import Draft
from protolink.llms.port import InThread, LLMRequest, ModelCallError, ToolDeclaration
from protolink.llms.remote import RemoteLLM, is_transient, tls
from protolink.llms.turns import AssistantTurn, UserTurn, conversation

__all__ = ["OllamaLLM"]

_TOP_LEVEL: Final = frozenset({"think", "keep_alive"})
_SAYABLE: Final = frozenset({"type", "items", "description", "enum"})
_SILENT: Final = frozenset({"title", "default", "examples"})


class OllamaLLM(RemoteLLM):
    """A model of an Ollama server: at `base_url`, else at `OLLAMA_HOST`, else on this machine.

    Before its first turn the server is asked, once, what the model can do: without native tools it is given JSON
    actions, unless `tool_calling` was given, and its context window is that of the model unless `context_window` was.
    Ollama cannot be made to call a tool: a tool's name as the choice leaves only that tool on offer, `"required"`
    is a wish. `parameters` are Ollama's options, and `think` and `keep_alive`.
    """

    provider = "ollama"
    extra = "ollama"
    module = "ollama"
    key_variables: ClassVar[tuple[str, ...]] = ("OLLAMA_API_KEY",)
    needs_key = False
    default_constrained = True
    makes_grammars = True
    default_read_timeout: ClassVar[float] = 300.0
    """A model may have to be loaded first."""

    _is_known = False

    async def prepare(self, in_thread: InThread) -> None:
        """Ask what the model can do. A server that does not answer is asked again before the next run."""
        if self._is_known:
            return
        client = await self.client(in_thread)
        try:
            shown = await client.show(self.model)
        except Exception:  # the SDK's, or a refusal; the turn itself will say what is wrong
            return
        self._is_known = True
        if shown.capabilities is not None and not self.tool_calling_is_chosen:
            self.native_tools: bool = "tools" in shown.capabilities
        if self.context_window is None:
            self.context_window: int | None = _window(shown.modelinfo)

    def open(self, sdk: Any, key: str | None) -> tuple[Any, Callable[[], Awaitable[object]]]:
        """A client of the `ollama` SDK that follows nobody."""
        http: Any = importlib.import_module("httpx")
        client = sdk.AsyncClient(
            host=self.address,
            headers={"authorization": f"Bearer {key}"} if key else None,
            follow_redirects=False,
            timeout=http.Timeout(self.read_timeout, connect=self.connect_timeout),
            event_hooks={"response": [self._refuse]},
            verify=tls("httpx"),
        )
        return client, client.close

    async def fill(self, draft: Draft, client: Any, request: LLMRequest) -> None:
        """Make the call and read its lines."""
        parts = await client.chat(**self.payload(request))
        async with aclosing(parts):
            async for part in parts:
                _take(draft, part)
                await draft.breathe()

    def payload(self, request: LLMRequest) -> dict[str, Any]:
        """The call as the SDK takes it."""
        payload: dict[str, Any] = {
            "model": self.model,
            "messages": self.messages(request),
            "stream": True,
        }
        if request.native and request.tools and request.tool_choice != "none":
            named = [tool for tool in request.tools if tool.name == request.tool_choice]
            payload["tools"] = [_tool(tool) for tool in named or request.tools]
        schema = self.schema_for(request, beside_tools=False)
        if schema is not None:
            payload["format"] = schema
        options = {name: value for name, value in self.parameters.items() if name not in _TOP_LEVEL}
        if self.temperature is not None:
            options.setdefault("temperature", self.temperature)
        bound = self.output_bound(request)
        if bound is not None:
            options.setdefault("num_predict", bound)
        if options:
            payload["options"] = options
        return payload | {name: value for name, value in self.parameters.items() if name in _TOP_LEVEL}

    def messages(self, request: LLMRequest) -> list[dict[str, Any]]:
        """The system prompt and the conversation."""
        messages: list[dict[str, Any]] = []
        if request.system_prompt:
            messages.append({"role": "system", "content": request.system_prompt})
        for turn in conversation(request.messages, native=request.native):
            messages += _user(turn) if isinstance(turn, UserTurn) else [_assistant(turn)]
        return messages

    async def _refuse(self, response: Any) -> None:
        """Raise for a status that is no success. The SDK's own error would have lost the headers."""
        status = response.status_code
        if status >= 300:
            raise ModelCallError(
                f"{self.provider} refused or lost the call: {status}",
                retryable=is_transient(status),
                retry_after=self.retry_after(response.headers),
                status=status,
            )


def _user(turn: UserTurn) -> list[dict[str, Any]]:
    messages = [{"role": "tool", "tool_name": result.name, "content": result.text} for result in turn.results]
    return [*messages, {"role": "user", "content": turn.text}] if turn.text else messages


def _assistant(turn: AssistantTurn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.calls:
        message["tool_calls"] = [{"function": {"name": call.name, "arguments": call.arguments}} for call in turn.calls]
    return message


def _tool(tool: ToolDeclaration) -> dict[str, Any]:
    schema: Any = thaw(dict(tool.input_schema))
    parameters: dict[str, Any] = {"type": "object"}
    if is_list(schema.get("required")):
        parameters["required"] = schema["required"]
    definitions: dict[str, Any] = schema.get("$defs") or {}
    properties: dict[str, Any] = schema.get("properties") or {}
    parameters["properties"] = {name: _property(value, definitions) for name, value in properties.items()}
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": parameters},
    }


def _property(schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter with what the SDK can say of it; it drops the rest, which is therefore described in words."""
    if not is_mapping(schema):
        return {}
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions:
        schema = {**definitions[name], **{key: value for key, value in schema.items() if key != "$ref"}}
    said = {key: value for key, value in schema.items() if key in _SAYABLE}
    rest = {key: value for key, value in schema.items() if key not in _SAYABLE and key not in _SILENT}
    if rest:
        whole = {key: value for key, value in schema.items() if key != "description"}
        said["description"] = f"{schema.get('description', '')}\nJSON schema: {dumps(whole)}".lstrip()
    return said


def _take(draft: Draft, part: Any) -> None:
    message = part.message
    draft.think(message.thinking)
    draft.say(message.content)
    for call in message.tool_calls or ():
        key = draft.calls
        draft.call(key, name=call.function.name)
        draft.call_arguments(key, dict(call.function.arguments))
    if part.done:
        draft.used(input=part.prompt_eval_count, output=part.eval_count)
        draft.finish_reason = "tool_calls" if draft.calls else part.done_reason or "stop"


def _window(known: object) -> int | None:
    """The length of the context that the model was made for, under the name of its architecture."""
    if not is_mapping(known):
        return None
    lengths = (value for name, value in known.items() if str(name).endswith(".context_length"))
    return next((value for value in lengths if isinstance(value, int)), None)
