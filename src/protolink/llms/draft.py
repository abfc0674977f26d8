"""A reply while it arrives: pieces of text, of reasoning and of calls, until the provider says that it is whole."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Hashable, Mapping
from typing import Any, Final

from protolink.llms.port import LLMReply, LLMRequest, ModelCallError, ModelUsage, ToolCall

__all__ = ["Draft", "count"]

_HALVES: Final = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class _CallDraft:
    __slots__ = ("id", "name", "pieces", "whole")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.pieces: list[str] = []
        self.whole: Any = None
        """The arguments as one value, from a provider that gives them so."""


class Draft:
    """One reply of one provider, as far as it has come."""

    def __init__(self, provider: str, request: LLMRequest) -> None:
        self.usage: ModelUsage = ModelUsage()
        self.finish_reason: str | None = None
        self.request_id: str | None = None
        self.state: dict[str, Any] | None = None
        """What has to be sent back with the reply."""

        self._provider = provider
        self._request = request
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._half = ""
        self._shown = False
        self._calls: dict[Hashable, _CallDraft] = {}

    def say(self, text: str | None) -> None:
        """Take a piece of the answer and show it. Half of a character waits for its other half."""
        if not text:
            return
        if self._half or not text.isascii():
            text = self._whole_characters(self._half + text)
        self._text.append(text)
        self._shown = True
        self._request.fragment(text)

    async def breathe(self) -> None:
        """Let the readers see what was said; a burst of events would otherwise pass without a pause for anybody."""
        if self._shown:
            self._shown = False
            await asyncio.sleep(0)

    def think(self, text: str | None) -> None:
        """Take a piece of the reasoning, which nobody is shown."""
        if text:
            self._reasoning.append(text)

    def call(self, key: Hashable, *, name: str | None = None, id: str | None = None, piece: str | None = None) -> None:
        """Take a piece of the call `key`: its name, its id, the next characters of its arguments."""
        call = self._calls.setdefault(key, _CallDraft())
        call.name = name or call.name
        call.id = id or call.id
        if piece:
            call.pieces.append(piece)

    def call_arguments(self, key: Hashable, arguments: Any) -> None:
        """Take the arguments of a call at once, as text or as an object; they replace what came in pieces."""
        self._calls[key].whole = arguments

    def id_of(self, key: Hashable) -> str | None:
        """The id of the call `key`, where it has come."""
        call = self._calls.get(key)
        return None if call is None else call.id

    @property
    def calls(self) -> int:
        """How many calls have begun."""
        return len(self._calls)

    def used(
        self,
        *,
        input: object = None,
        output: object = None,
        cached: object = None,
        reasoning: object = None,
    ) -> None:
        """Take the provider's own numbers; what it does not report stays as it was, or unknown."""
        known = self.usage
        self.usage = ModelUsage(
            input_tokens=count(input, known.input_tokens),
            output_tokens=count(output, known.output_tokens),
            cached_tokens=count(cached, known.cached_tokens),
            reasoning_tokens=count(reasoning, known.reasoning_tokens),
            source="provider",
        )

    def lost(self, what: str, *, retryable: bool = True) -> ModelCallError:
        """The error of a call whose reply is not whole, with what it has cost as far as that is known."""
        return ModelCallError(
            f"{self._provider} {what}", retryable=retryable, request_id=self.request_id, usage=self.usage
        )

    def reply(self) -> LLMReply:
        """The whole reply.

        Raises `ModelCallError` where the provider never said that it is whole, or refused without a word.
        """
        if self.finish_reason is None:
            raise self.lost("ended its reply in the middle")
        if self._half:
            self._text.append(self._half)
        text = "".join(self._text)
        if not text and not self._calls and self.finish_reason in ("refusal", "content_filter"):
            raise self.lost(f"refused to answer ({self.finish_reason})", retryable=False)
        return LLMReply(
            text=text,
            calls=tuple(map(_made, self._calls.values())),
            usage=self.usage,
            finish_reason=self.finish_reason,
            request_id=self.request_id,
            reasoning="".join(self._reasoning) or None,
            provider_state=self._state(),
        )

    def _state(self) -> Mapping[str, Any] | None:
        return None if self.state is None else {"provider": self._provider, **self.state}

    def _whole_characters(self, text: str) -> str:
        """Escapes may be cut between the two halves of a character; put them together again."""
        self._half = ""
        if "\ud800" <= text[-1] <= "\udbff":
            self._half, text = text[-1], text[:-1]
        return _HALVES.sub(lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text)


def count(value: object, otherwise: int | None = None) -> int | None:
    """A number of tokens, where a provider gave one that can be one."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return value if whole and isinstance(value, int) else otherwise


def _made(call: _CallDraft) -> ToolCall:
    return ToolCall(name=call.name, arguments="".join(call.pieces) if call.whole is None else call.whole, id=call.id)
