"""Each provider's protocol as its documentation writes it, and the adapter that has to understand it."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from protolink import create_llm
from protolink.llms import LLM
from tests.providers.wire import Answer

KEY = "key-0123456789-secret"


@dataclass(frozen=True, kw_only=True)
class Said:
    """A reply, in the pieces in which the service sends it."""

    text: Sequence[str] = ()
    reasoning: Sequence[str] = ()
    calls: Sequence[tuple[str, str, Sequence[str]]] = ()
    """An id, a name, and the pieces of the arguments."""

    ending: str = "stop"
    """`stop`, `length` or `refusal`."""


class Dialect(ABC):
    """One protocol."""

    name: ClassVar[str]
    specification: ClassVar[str]
    """What `create_llm` is given."""

    path: ClassVar[str] = ""
    """What the base URL of the adapter ends with."""

    key_variable: ClassVar[str]
    content_type: ClassVar[str] = "text/event-stream"
    request_id: ClassVar[str | None] = "req_011CSHoEeqs5C35K2UUqR7Fy"
    headers: ClassVar[Mapping[str, str]] = {}
    streams_arguments: ClassVar[bool] = True
    numbers_calls: ClassVar[bool] = True
    """Whether calls have ids of the service."""

    speaks_when_refusing: ClassVar[bool] = True
    failure: ClassVar[bytes]
    """An error in the middle of a stream."""

    def llm(self, url: str, **options: Any) -> LLM:
        """The adapter, pointed at a server."""
        return create_llm(self.specification, **{"api_key": KEY, "base_url": url + self.path, **options})

    def answer(self, said: Said, **answer: Any) -> Answer:
        """A reply as an answer of the server, one event after the other."""
        plain = Answer(chunks=self.events(said), content_type=self.content_type, headers=self.headers)
        return replace(plain, **answer)

    def error(self, status: int, headers: Mapping[str, str] | None = None) -> Answer:
        """A refusal with the documented body; it quotes the key, as careless services do."""
        body = json.dumps(self.error_body(status, f"No. Your key is {KEY}.")).encode()
        return Answer(chunks=[body], status=status, headers={**self.headers, **(headers or {})})

    @abstractmethod
    def events(self, said: Said) -> list[bytes]:
        """The stream, an event in each piece."""

    @abstractmethod
    def error_body(self, status: int, message: str) -> Any:
        """The body of an error."""

    @abstractmethod
    def tools_of(self, body: Any) -> list[str]:
        """The names of the tools in a request."""

    def choice_of(self, body: Any) -> Any:
        """What a request says about the use of tools."""
        return body.get("tool_choice")


def written(data: Any) -> str:
    """JSON as services write it: as UTF-8, with an escape for what UTF-8 cannot carry."""
    try:
        text = json.dumps(data, ensure_ascii=False)
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(data)
    return text


def sse(data: Any, event: str | None = None) -> bytes:
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {written(data)}\n\n".encode()


class Chat(Dialect):
    """Chat Completions: developers' reference, "Streaming" and "The chat completion chunk object"."""

    name = "openai-chat"
    specification = "openai-chat:gpt-5.4-mini"
    path = "/v1"
    key_variable = "OPENAI_API_KEY"
    headers: ClassVar[Mapping[str, str]] = {"x-request-id": str(Dialect.request_id)}
    failure = sse({"error": {"message": "The server had an error.", "type": "server_error", "code": None}})
    usage: ClassVar[Mapping[str, Any]] = {
        "prompt_tokens": 19,
        "completion_tokens": 10,
        "total_tokens": 29,
        "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3, "audio_tokens": 0},
    }

    def events(self, said: Said) -> list[bytes]:
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": "" if said.text else None, "refusal": None}]
        deltas += [{"reasoning_content": piece} for piece in said.reasoning]
        word = "refusal" if said.ending == "refusal" else "content"
        deltas += [{word: piece} for piece in said.text]
        for index, (id, name, pieces) in enumerate(said.calls):
            function = {"name": name, "arguments": ""}
            deltas.append({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces]
        reason = {"length": "length"}.get(said.ending, "tool_calls" if said.calls else "stop")
        events = [self._chunk([self._choice(delta, None)]) for delta in deltas]
        return [*events, self._chunk([self._choice({}, reason)]), self._chunk([], self.usage), b"data: [DONE]\n\n"]

    def error_body(self, status: int, message: str) -> Any:
        kind = {400: "invalid_request_error", 401: "invalid_request_error"}.get(status, "server_error")
        code = {401: "invalid_api_key", 429: "rate_limit_exceeded"}.get(status)
        return {"error": {"message": message, "type": kind, "param": None, "code": code}}

    def tools_of(self, body: Any) -> list[str]:
        return [tool["function"]["name"] for tool in body.get("tools", [])]

    def _choice(self, delta: Any, reason: str | None) -> dict[str, Any]:
        return {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}

    def _chunk(self, choices: list[Any], usage: Any = None) -> bytes:
        return sse(
            {
                "id": "chatcmpl-B9MBs8CjcvOU2jLn4n570S5qMJKcT",
                "object": "chat.completion.chunk",
                "created": 1741569952,
                "model": "gpt-5.4-mini-2026-03-17",
                "service_tier": "default",
                "system_fingerprint": None,
                "choices": choices,
                "usage": usage,
            }
        )


class Compatible(Chat):
    """The same from a server of others, with the extras and omissions that they have."""

    name = "openai-compatible"
    specification = "openai-compatible:qwen3"
    key_variable = "OPENAI_COMPATIBLE_API_KEY"
    request_id = None
    headers: ClassVar[Mapping[str, str]] = {}


class Responses(Dialect):
    """The Responses API: developers' reference, "Streaming events"."""

    name = "openai"
    specification = "openai:gpt-5.4"
    path = "/v1"
    key_variable = "OPENAI_API_KEY"
    headers: ClassVar[Mapping[str, str]] = {"x-request-id": str(Dialect.request_id)}
    failure = sse(
        {"type": "error", "code": "server_error", "message": "Broken.", "param": None, "sequence_number": 9}, "error"
    )

    def events(self, said: Said) -> list[bytes]:
        self._number = 0
        events = [self._event("response.created", response=self._response("in_progress"))]
        output = 0
        if said.reasoning:
            events += self._reasoning(output, said.reasoning)
            output += 1
        if said.text:
            events += self._message(output, said.text, refused=said.ending == "refusal")
            output += 1
        for id, name, pieces in said.calls:
            events += self._call(output, id, name, pieces)
            output += 1
        if said.ending == "length":
            reason = {"reason": "max_output_tokens"}
            return [*events, self._event("response.incomplete", response=self._response("incomplete", reason))]
        return [*events, self._event("response.completed", response=self._response("completed"))]

    def error_body(self, status: int, message: str) -> Any:
        return Chat().error_body(status, message)

    def tools_of(self, body: Any) -> list[str]:
        return [tool["name"] for tool in body.get("tools", [])]

    def _event(self, kind: str, **data: Any) -> bytes:
        self._number += 1
        return sse({"type": kind, "sequence_number": self._number, **data}, kind)

    def _response(self, status: str, details: Any = None) -> dict[str, Any]:
        usage = {
            "input_tokens": 19,
            "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
            "output_tokens": 10,
            "output_tokens_details": {"reasoning_tokens": 3},
            "total_tokens": 29,
        }
        return {
            "id": "resp_67c9fdcecf488190bdd9a0409de3a1ec07b8b0ad4e5eb654",
            "object": "response",
            "created_at": 1741290958,
            "status": status,
            "error": None,
            "incomplete_details": details,
            "instructions": None,
            "model": "gpt-5.4-2026-03-05",
            "output": [],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": None if status == "in_progress" else usage,
        }

    def _reasoning(self, output: int, pieces: Sequence[str]) -> list[bytes]:
        item = {"id": "rs_67", "type": "reasoning", "summary": []}
        place = {"item_id": "rs_67", "output_index": output, "summary_index": 0}
        whole = {
            **item,
            "summary": [{"type": "summary_text", "text": "".join(pieces)}],
            "encrypted_content": "gAAAAB==",
        }
        return [
            self._event("response.output_item.added", output_index=output, item=item),
            *(self._event("response.reasoning_summary_text.delta", **place, delta=piece) for piece in pieces),
            self._event("response.output_item.done", output_index=output, item=whole),
        ]

    def _message(self, output: int, pieces: Sequence[str], *, refused: bool) -> list[bytes]:
        item = {"id": "msg_67", "type": "message", "status": "in_progress", "role": "assistant", "content": []}
        place = {"item_id": "msg_67", "output_index": output, "content_index": 0}
        kind = "response.refusal.delta" if refused else "response.output_text.delta"
        part = {"type": "refusal", "refusal": ""} if refused else {"type": "output_text", "text": "", "annotations": []}
        whole = {**part, ("refusal" if refused else "text"): "".join(pieces)}
        return [
            self._event("response.output_item.added", output_index=output, item=item),
            self._event("response.content_part.added", **place, part=part),
            *(self._event(kind, **place, delta=piece, logprobs=[]) for piece in pieces),
            self._event("response.content_part.done", **place, part=whole),
            self._event(
                "response.output_item.done",
                output_index=output,
                item={**item, "status": "completed", "content": [whole]},
            ),
        ]

    def _call(self, output: int, id: str, name: str, pieces: Sequence[str]) -> list[bytes]:
        item_id = f"fc_{output}"
        item = {"type": "function_call", "id": item_id, "call_id": id, "name": name, "arguments": ""}
        place = {"item_id": item_id, "output_index": output}
        whole = {**item, "arguments": "".join(pieces), "status": "completed"}
        return [
            self._event("response.output_item.added", output_index=output, item=item),
            *(self._event("response.function_call_arguments.delta", **place, delta=piece) for piece in pieces),
            self._event("response.function_call_arguments.done", **place, arguments="".join(pieces), name=name),
            self._event("response.output_item.done", output_index=output, item=whole),
        ]


class Anthropic(Dialect):
    """The Messages API: "Streaming messages" of the developers' documentation."""

    name = "anthropic"
    specification = "anthropic:model-of-anthropic"
    key_variable = "ANTHROPIC_API_KEY"
    headers: ClassVar[Mapping[str, str]] = {"request-id": str(Dialect.request_id)}
    speaks_when_refusing = False
    failure = sse({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "error")

    def events(self, said: Said) -> list[bytes]:
        usage: dict[str, Any] = {
            "input_tokens": 10,
            "cache_creation_input_tokens": 5,
            "cache_read_input_tokens": 4,
            "output_tokens": 1,
        }
        message: dict[str, Any] = {
            "id": "msg_1nZdL29xx5MUA1yADyHTEsnR8uuvGzszyY",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "model-of-anthropic",
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        events = [self._event("message_start", message=message), self._event("ping")]
        index = 0
        if said.reasoning:
            block = {"type": "thinking", "thinking": "", "signature": ""}
            deltas: list[Any] = [{"type": "thinking_delta", "thinking": piece} for piece in said.reasoning]
            events += self._block(index, block, [*deltas, {"type": "signature_delta", "signature": "EqQBCgIYAhIM1gbc"}])
            index += 1
        if said.text and said.ending != "refusal":
            deltas = [{"type": "text_delta", "text": piece} for piece in said.text]
            events += self._block(index, {"type": "text", "text": ""}, deltas)
            index += 1
        for id, name, pieces in said.calls:
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ["", *pieces]]
            events += self._block(index, {"type": "tool_use", "id": id, "name": name, "input": {}}, deltas)
            index += 1
        reason = {"length": "max_tokens", "refusal": "refusal"}.get(
            said.ending, "tool_use" if said.calls else "end_turn"
        )
        usage = {"output_tokens": 10, "output_tokens_details": {"thinking_tokens": 3}}
        delta = {"stop_reason": reason, "stop_sequence": None}
        return [*events, self._event("message_delta", delta=delta, usage=usage), self._event("message_stop")]

    def error_body(self, status: int, message: str) -> Any:
        kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
        error = {"type": kinds.get(status, "api_error"), "message": message}
        return {"type": "error", "error": error, "request_id": self.request_id}

    def tools_of(self, body: Any) -> list[str]:
        return [tool["name"] for tool in body.get("tools", [])]

    def _event(self, kind: str, **data: Any) -> bytes:
        return sse({"type": kind, **data}, kind)

    def _block(self, index: int, block: Any, deltas: Sequence[Any]) -> list[bytes]:
        return [
            self._event("content_block_start", index=index, content_block=block),
            *(self._event("content_block_delta", index=index, delta=delta) for delta in deltas),
            self._event("content_block_stop", index=index),
        ]


class Gemini(Dialect):
    """The Gemini API: `streamGenerateContent` with `alt=sse` of the API reference."""

    name = "google"
    specification = "google:gemini-3.8-flash"
    key_variable = "GEMINI_API_KEY"
    request_id = "3qZKaL6tNKOI1MkP9cKE4Ac"
    streams_arguments = False
    numbers_calls = False
    speaks_when_refusing = False
    failure = sse({"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}})

    def events(self, said: Said) -> list[bytes]:
        chunks: list[Any] = [[{"text": piece, "thought": True}] for piece in said.reasoning]
        if said.ending != "refusal":
            chunks += [[{"text": piece}] for piece in said.text]
        for _, name, pieces in said.calls:
            call = {"functionCall": {"name": name, "args": json.loads("".join(pieces) or "{}")}}
            chunks.append([{**call, "thoughtSignature": "c2lnbmF0dXJl"}])
        reason = {"length": "MAX_TOKENS", "refusal": "SAFETY"}.get(said.ending, "STOP")
        return [*(self._chunk(parts, None) for parts in chunks), self._chunk(None, reason)]

    def error_body(self, status: int, message: str) -> Any:
        names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}
        return {"error": {"code": status, "message": message, "status": names.get(status, "UNKNOWN"), "details": []}}

    def tools_of(self, body: Any) -> list[str]:
        return [tool["name"] for group in body.get("tools", []) for tool in group["functionDeclarations"]]

    def choice_of(self, body: Any) -> Any:
        return body.get("toolConfig", {}).get("functionCallingConfig")

    def _chunk(self, parts: Any, reason: str | None) -> bytes:
        candidate: dict[str, Any] = {"index": 0}
        if parts is not None:
            candidate["content"] = {"parts": parts, "role": "model"}
        if reason is not None:
            candidate["finishReason"] = reason
        usage = {
            "promptTokenCount": 19,
            "candidatesTokenCount": 7,
            "thoughtsTokenCount": 3,
            "cachedContentTokenCount": 4,
            "totalTokenCount": 29,
        }
        return sse(
            {
                "candidates": [candidate],
                "usageMetadata": usage,
                "modelVersion": "gemini-3.8-flash",
                "responseId": self.request_id,
            }
        )


class Ollama(Dialect):
    """Ollama's `/api/chat`: "Generate a chat completion" of its API reference."""

    name = "ollama"
    specification = "ollama:qwen3"
    key_variable = "OLLAMA_API_KEY"
    content_type = "application/x-ndjson"
    request_id = None
    streams_arguments = False
    numbers_calls = False
    failure = b'{"error":"an error was encountered while running the model: unexpected EOF"}\n'

    def events(self, said: Said) -> list[bytes]:
        messages: list[dict[str, Any]] = [{"content": "", "thinking": piece} for piece in said.reasoning]
        messages += [{"content": piece} for piece in said.text]
        for _, name, pieces in said.calls:
            call = {"function": {"name": name, "arguments": json.loads("".join(pieces) or "{}")}}
            messages.append({"content": "", "tool_calls": [call]})
        last = {
            "done": True,
            "done_reason": "length" if said.ending == "length" else "stop",
            "total_duration": 4883583458,
            "load_duration": 1334875,
            "prompt_eval_count": 19,
            "prompt_eval_duration": 342546000,
            "eval_count": 10,
            "eval_duration": 4535599000,
        }
        return [*(self._line(message, done=False) for message in messages), self._line({"content": ""}, **last)]

    def error_body(self, status: int, message: str) -> Any:
        return {"error": message}

    def tools_of(self, body: Any) -> list[str]:
        return [tool["function"]["name"] for tool in body.get("tools", [])]

    def _line(self, message: Any, **rest: Any) -> bytes:
        line = {"model": "qwen3", "created_at": "2026-08-04T08:52:19.385406Z"}
        return (written({**line, "message": {"role": "assistant", **message}, **rest}) + "\n").encode()


DIALECTS: Sequence[Dialect] = (Chat(), Compatible(), Responses(), Anthropic(), Gemini(), Ollama())
