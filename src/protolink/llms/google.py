"""Google's Gemini API."""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any, ClassVar, Final

from protolink._json import JSONError, is_list, is_mapping, parse, thaw
from protolink.llms.draft import Draft
from protolink.llms.port import LLMRequest
from protolink.llms.remote import RemoteLLM, tls
from protolink.llms.turns import AssistantTurn, Result, UserTurn, conversation

__all__ = ["GoogleLLM"]

_FINISH: Final = {"STOP": "stop", "MAX_TOKENS": "length"}
_FILTERED: Final = frozenset(
    {
        "SAFETY",
        "RECITATION",
        "LANGUAGE",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "IMAGE_SAFETY",
        "MODEL_ARMOR",
    }
)
_UNREADABLE: Final = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE"})
_MODES: Final = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
_SIGNS: Final = re.compile(r"(?:models/)?gemini-(?:[3-9]|\d\d)")
"""Models that refuse a call of their own without the signature that they gave it."""

# The documented stand-in for calls of another model, or of a conversation that kept no signatures.
_NO_SIGNATURE: Final = base64.urlsafe_b64decode("skip_thought_signature_validator")
_responses: ContextVar[list[Any]] = ContextVar("protolink_google_responses")
"""The HTTP responses of the call that is being made."""

_KEYWORDS: Final = frozenset(
    {
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maximum",
        "minItems",
        "minimum",
        "oneOf",
        "prefixItems",
        "properties",
        "required",
        "title",
        "type",
    }
)
_DELAY: Final = re.compile(r"(\d+(?:\.\d+)?)s")


class GoogleLLM(RemoteLLM):
    """A model of Google through the Gemini API (not Vertex AI).

    The signatures that newer models give their calls go back with them, also from a stored run. `parameters` are
    fields of the SDK's `GenerateContentConfig`.
    """

    provider = "google"
    extra = "google"
    module = "google.genai"
    key_variables: ClassVar[tuple[str, ...]] = ("GEMINI_API_KEY", "GOOGLE_API_KEY")

    def open(self, sdk: Any, key: str | None) -> tuple[Any, Callable[[], Awaitable[object]]]:
        """A client of the `google-genai` SDK that retries nothing and follows nobody."""
        http: Any = importlib.import_module("httpx2")

        async def bound(request: Any) -> None:
            # The SDK overrides the client's time-outs with one number for everything.
            bounds = {"connect": self.connect_timeout, "pool": self.connect_timeout}
            bounds |= {"read": self.read_timeout, "write": self.read_timeout}
            request.extensions = {**request.extensions, "timeout": bounds}

        async def keep(response: Any) -> None:
            _responses.get().append(response)

        # A redirect would take the key, in its own header, to another host.
        hooks = {"request": [bound], "response": [keep]}
        asynchronous = http.AsyncClient(follow_redirects=False, event_hooks=hooks, verify=tls("httpx2"))
        blocking = http.Client(follow_redirects=False, verify=tls("httpx2"))
        client = sdk.Client(
            api_key=key,
            vertexai=False,
            http_options={
                "base_url": self.address,
                "httpx_async_client": asynchronous,
                "httpx_client": blocking,
                "async_client_args": {"ssl": tls("httpx2")},
            },
        )

        async def close() -> None:
            blocking.close()
            await asynchronous.aclose()

        return client, close

    async def fill(self, draft: Draft, client: Any, request: LLMRequest) -> None:
        """Make the call and read its chunks."""
        signatures: list[str | None] = []
        responses: list[Any] = []
        _responses.set(responses)
        chunks = await client.aio.models.generate_content_stream(
            model=self.model, contents=self.contents(request), config=self.config(request)
        )
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    _take(draft, chunk, signatures)
                    await draft.breathe()
        finally:
            # The SDK's generators leave this to the garbage collector where they are left in the middle.
            for response in responses:
                await response.aclose()
        if any(signatures):
            draft.state = {"signatures": signatures}

    def config(self, request: LLMRequest) -> dict[str, Any]:
        """The SDK's `GenerateContentConfig`."""
        config: dict[str, Any] = {
            "automatic_function_calling": {"disable": True},
            "automatic_continuation": False,
        }
        if request.system_prompt:
            config["system_instruction"] = request.system_prompt
        if request.native and request.tools:
            declarations = [
                {
                    "name": tool.name,
                    "description": tool.description,
                    "parameters_json_schema": thaw(dict(tool.input_schema)),
                }
                for tool in request.tools
            ]
            config["tools"] = [{"function_declarations": declarations}]
            config["tool_config"] = {"function_calling_config": _choice(request.tool_choice)}
        schema = self.schema_for(request, beside_tools=False)
        if schema is not None:
            config["response_mime_type"] = "application/json"
            config["response_json_schema"] = _understood(schema)
        if self.temperature is not None:
            config["temperature"] = self.temperature
        bound = self.output_bound(request)
        if bound is not None:
            config["max_output_tokens"] = bound
        return {**config, **self.parameters}

    def contents(self, request: LLMRequest) -> list[dict[str, Any]]:
        """The conversation as contents of parts."""
        signed = _SIGNS.match(self.model) is not None
        turns = conversation(request.messages, native=request.native)
        return [_user(turn) if isinstance(turn, UserTurn) else _model(turn, signed=signed) for turn in turns]

    def retry_after(self, headers: Mapping[str, str], details: object = None) -> float | None:
        """The wish of the header, or of the error itself."""
        return super().retry_after(headers) or _delay(details)


def _understood(schema: Any) -> Any:
    """A schema in the keywords that Gemini knows; the runtime checks what is left out."""
    if not is_mapping(schema):
        return schema
    known = {key: value for key, value in schema.items() if key in _KEYWORDS}
    if "const" in schema:
        known["enum"] = [schema["const"]]
    for key in ("properties", "$defs"):
        if is_mapping(known.get(key)):
            known[key] = {name: _understood(value) for name, value in known[key].items()}
    for key in ("anyOf", "oneOf", "prefixItems"):
        if is_list(known.get(key)):
            known[key] = [_understood(value) for value in known[key]]
    for key in ("items", "additionalProperties"):
        known.update({key: _understood(known[key])} if key in known else {})
    return known


def _choice(choice: str) -> dict[str, Any]:
    return {"mode": _MODES[choice]} if choice in _MODES else {"mode": "ANY", "allowed_function_names": [choice]}


def _user(turn: UserTurn) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"function_response": {"id": result.id, "name": result.name, "response": _response(result)}}
        for result in turn.results
    ]
    if turn.text:
        parts.append({"text": turn.text})
    return {"role": "user", "parts": parts}


def _response(result: Result) -> dict[str, Any]:
    """A result as the object that the API wants; the runtime's results are JSON objects already."""
    try:
        value = parse(result.text)
    except JSONError:
        value = result.text
    return dict(value) if is_mapping(value) else {"result": value}


def _model(turn: AssistantTurn, *, signed: bool) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"text": turn.text}] if turn.text else []
    signatures = _signatures(turn)
    for number, call in enumerate(turn.calls):
        part: dict[str, Any] = {"function_call": {"id": call.id, "name": call.name, "args": call.arguments}}
        signature = signatures[number] if number < len(signatures) else None
        if signature is not None:
            part["thought_signature"] = base64.b64decode(signature)
        elif signed and number == 0:
            part["thought_signature"] = _NO_SIGNATURE
        parts.append(part)
    return {"role": "model", "parts": parts}


def _signatures(turn: AssistantTurn) -> list[Any]:
    if turn.state is None or turn.state.get("provider") != GoogleLLM.provider:
        return []
    signatures = turn.state.get("signatures")
    return list(signatures) if is_list(signatures) else []


def _take(draft: Draft, chunk: Any, signatures: list[str | None]) -> None:
    draft.request_id = chunk.response_id or draft.request_id
    usage = chunk.usage_metadata
    if usage is not None:
        _usage(draft, usage)
    feedback = chunk.prompt_feedback
    if feedback is not None and feedback.block_reason:
        draft.finish_reason = "content_filter"
    if not chunk.candidates:
        return
    candidate = chunk.candidates[0]
    for part in (candidate.content.parts if candidate.content else None) or ():
        if part.function_call is not None:
            called = part.function_call
            key = draft.calls
            draft.call(key, name=called.name, id=called.id)
            draft.call_arguments(key, called.args or {})
            signature = part.thought_signature
            signatures.append(base64.b64encode(signature).decode() if signature else None)
        elif part.thought:
            draft.think(part.text)
        else:
            draft.say(part.text)
    if candidate.finish_reason is not None:
        _finish(draft, str(candidate.finish_reason.value))


def _finish(draft: Draft, reason: str) -> None:
    if reason in _UNREADABLE and not draft.calls:
        raise draft.lost(f"could not read its own model's call ({reason})")
    if reason in _FILTERED:
        draft.finish_reason = "content_filter"
    elif reason == "STOP" and draft.calls:
        draft.finish_reason = "tool_calls"
    else:
        draft.finish_reason = _FINISH.get(reason, reason.lower())


def _usage(draft: Draft, usage: Any) -> None:
    """Gemini counts thoughts beside the answer; both are output."""
    answer, thoughts = usage.candidates_token_count, usage.thoughts_token_count
    draft.used(
        input=usage.prompt_token_count,
        output=None if answer is None and thoughts is None else (answer or 0) + (thoughts or 0),
        cached=usage.cached_content_token_count,
        reasoning=thoughts,
    )


def _delay(details: object) -> float | None:
    """The `retryDelay` of an error such as RESOURCE_EXHAUSTED."""
    error = details.get("error") if is_mapping(details) else None
    listed = error.get("details") if is_mapping(error) else None
    for detail in listed if is_list(listed) else []:
        match = _DELAY.fullmatch(str(detail.get("retryDelay"))) if is_mapping(detail) else None
        if match:
            return float(match[1])
    return None
