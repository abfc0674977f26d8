"""The suite that every model of this package has to pass, for each adapter."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from protolink.llms import LLM
from protolink.testing import LLMConformance
from tests.providers import dialects
from tests.providers.dialects import Dialect, Said
from tests.providers.wire import Answer, Request, WireServer


def said(entry: Any) -> Said:
    """An entry of a script as the service says it."""
    if isinstance(entry, str):
        return Said(text=[entry[start : start + 5] for start in range(0, len(entry), 5)])
    actions = entry if isinstance(entry, list) else [entry]
    return Said(
        calls=[
            (f"call_{number}", action["tool"], [json.dumps(action["args"], ensure_ascii=False)])
            for number, action in enumerate(actions, 1)
        ]
    )


class _Suite(LLMConformance):
    dialect: ClassVar[Dialect]

    @pytest.fixture(autouse=True)
    def _served(self) -> Iterator[None]:
        self._before_answering: threading.Event | None = None
        self._script: list[Any] = []
        with WireServer(self._answer) as server:
            self._server = server
            yield

    def _answer(self, request: Request) -> Answer:
        if self._before_answering is not None:
            self._before_answering.wait()
        return self.dialect.answer(said(self._script.pop(0)))

    def make_llm(self, script: Sequence[Any]) -> LLM:
        self._script = list(script)
        return self.dialect.llm(self._server.url)

    def make_held_llm(self, text: str, release: threading.Event) -> LLM:
        self._before_answering = release
        return self.make_llm([text])


class TestChatCompletions(_Suite):
    dialect = dialects.Chat()


class TestCompatibleServer(_Suite):
    dialect = dialects.Compatible()


class TestResponses(_Suite):
    dialect = dialects.Responses()


class TestAnthropic(_Suite):
    dialect = dialects.Anthropic()


class TestGoogle(_Suite):
    dialect = dialects.Gemini()


class TestOllama(_Suite):
    dialect = dialects.Ollama()

    def _answer(self, request: Request) -> Answer:
        if request.path == "/api/show":
            return Answer(chunks=[b'{"capabilities": ["completion", "tools"], "model_info": {}}'])
        return super()._answer(request)
