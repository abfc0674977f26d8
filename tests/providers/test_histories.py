"""Any conversation, however it was interrupted, as each provider accepts it."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protolink import create_llm
from protolink.llms import LLM, LLMRequest
from protolink.llms.anthropic import AnthropicLLM
from protolink.llms.google import GoogleLLM
from protolink.llms.ollama import OllamaLLM
from protolink.llms.openai import OpenAILLM
from protolink.llms.openai_chat import OpenAIChatLLM
from tests.providers.asking import STORE

ids = st.sampled_from(["call_1", "call_2", "toolu_01A09q90qw90lq917835lq9", "run-1.7", "", "with space", "x" * 80])
names = st.sampled_from(["store", "count", "functions.store", "", "ns:tool"])
texts = st.sampled_from(["", " ", "\n", "Hello.", "Milk 🥛", '{"type": "tool_call"}', "tail  "])
values = st.one_of(
    st.none(), st.integers(), st.text(max_size=5), st.dictionaries(st.text(max_size=3), st.none(), max_size=2)
)
states = st.sampled_from(
    [
        None,
        {"provider": "anthropic", "blocks": [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]},
        {"provider": "google", "signatures": ["c2lnbmF0dXJl", None]},
        {
            "provider": "openai",
            "reasoning": [{"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "g"}],
        },
        {"provider": "somebody", "else": 1},
    ]
)
calls = st.lists(st.fixed_dictionaries({"id": ids, "name": names, "arguments": values}), max_size=3)
users = st.fixed_dictionaries({"role": st.just("user"), "content": texts})
assistants = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": texts},
    optional={"tool_calls": calls, "provider_state": states},
)
results = st.fixed_dictionaries({"role": st.just("tool"), "content": texts, "name": names, "tool_call_id": ids})
histories = st.lists(st.one_of(users, assistants, results), max_size=10)


class _Nobody:
    stopped = False

    def fragment(self, text: str) -> None:
        raise AssertionError("nothing is said here")

    def in_thread(self, function: Any, /, *args: Any) -> Any:
        raise AssertionError("nothing is run here")


def asked(llm: LLM, history: Sequence[Any], *, tools: bool = True) -> LLMRequest:
    return LLMRequest(
        messages=history,
        system_prompt="You keep things.",
        tools=[STORE] if tools else [],
        native=llm.native_tools,
        step=1,
        turn=_Nobody(),
    )


def require_turns(roles: Sequence[str], assistant: str = "assistant") -> None:
    """User and assistant by turns, the user first and last."""
    assert roles
    assert all(role == ("user" if place % 2 == 0 else assistant) for place, role in enumerate(roles))
    assert roles[-1] == "user"


def require_chat(llm: LLM, request: LLMRequest) -> None:
    assert isinstance(llm, OpenAIChatLLM)
    system, *messages = llm.messages(request)
    assert system["role"] == "system"
    seen: set[str] = set()
    waiting: list[str] = []
    roles = ["user"] if messages[0]["role"] == "assistant" else []
    assert not roles, "an assistant cannot begin"
    previous = ""
    for message in messages:
        role = message["role"]
        assert role != previous or role == "tool", f"two turns of {role} in a row"
        if role == "tool":
            assert message["tool_call_id"] == waiting.pop(0)
            assert message["content"].strip()
        else:
            assert not waiting, "a call without its result"
            assert (message["content"] or "").strip() or message.get("tool_calls")
        if role == "user" and llm.provider == "mistral":
            assert previous != "tool"
        for call in message.get("tool_calls", []):
            pattern = "[A-Za-z0-9]{9}" if llm.provider == "mistral" else "[A-Za-z0-9_-]{1,64}"
            assert re.fullmatch(pattern, call["id"])
            assert re.fullmatch("[A-Za-z0-9_-]{1,64}", call["function"]["name"])
            assert isinstance(json.loads(call["function"]["arguments"]), dict)
            assert call["id"] not in seen
            seen.add(call["id"])
            waiting.append(call["id"])
        previous = role
    assert not waiting
    assert previous in ("user", "tool")


def require_responses(llm: LLM, request: LLMRequest) -> None:
    assert isinstance(llm, OpenAILLM)
    waiting: list[str] = []
    seen: set[str] = set()
    items = llm.input(request)
    for item in items:
        kind = item.get("type", "message")
        if kind == "function_call":
            assert re.fullmatch("[A-Za-z0-9_-]{1,64}", item["call_id"])
            assert item["call_id"] not in seen
            assert isinstance(json.loads(item["arguments"]), dict)
            seen.add(item["call_id"])
            waiting.append(item["call_id"])
        elif kind == "function_call_output":
            assert item["call_id"] == waiting.pop(0)
        elif kind == "message":
            assert not waiting
            assert item["content"].strip()
    assert not waiting
    assert items[-1].get("role") == "user" or items[-1].get("type") == "function_call_output"


def require_anthropic(llm: LLM, request: LLMRequest) -> None:
    assert isinstance(llm, AnthropicLLM)
    messages = llm.messages(request)
    require_turns([message["role"] for message in messages])
    waiting: list[str] = []
    seen: set[str] = set()
    for message in messages:
        blocks = message["content"]
        assert blocks
        assert [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"] == waiting
        assert all(block["type"] == "tool_result" for block in blocks[: len(waiting)]), "results come first"
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        assert all(re.fullmatch("[A-Za-z0-9_-]+", id) for id in waiting)
        assert all(isinstance(block["input"], dict) for block in blocks if block["type"] == "tool_use")
        assert seen.isdisjoint(waiting)
        assert len(set(waiting)) == len(waiting)
        seen.update(waiting)
        thinking = [place for place, block in enumerate(blocks) if block["type"] == "thinking"]
        assert thinking == list(range(len(thinking))), "thinking comes first"
    assert not waiting


def require_google(llm: LLM, request: LLMRequest) -> None:
    assert isinstance(llm, GoogleLLM)
    contents = llm.contents(request)
    require_turns([content["role"] for content in contents], assistant="model")
    waiting: list[tuple[str, str]] = []
    for content in contents:
        parts = content["parts"]
        assert parts
        answers = [part["function_response"] for part in parts if "function_response" in part]
        assert [(answer["id"], answer["name"]) for answer in answers] == waiting
        assert all(isinstance(answer["response"], dict) for answer in answers)
        assert all(part["text"].strip() for part in parts if "text" in part)
        called = [part for part in parts if "function_call" in part]
        assert not called or called[0]["thought_signature"]
        waiting = [(part["function_call"]["id"], part["function_call"]["name"]) for part in called]
    assert not waiting


def require_ollama(llm: LLM, request: LLMRequest) -> None:
    assert isinstance(llm, OllamaLLM)
    waiting: list[str] = []
    for message in llm.messages(request):
        if message["role"] == "tool":
            assert message["tool_name"] == waiting.pop(0)
        else:
            assert not waiting
            assert message["content"].strip() or message.get("tool_calls")
        for call in message.get("tool_calls", []):
            assert isinstance(call["function"]["arguments"], dict)
            waiting.append(call["function"]["name"])
    assert not waiting


PROVIDERS: dict[str, Callable[[LLM, LLMRequest], None]] = {
    "openai-chat:model": require_chat,
    "mistral:model": require_chat,
    "openai:model": require_responses,
    "anthropic:model": require_anthropic,
    "google:gemini-3.8-flash": require_google,
    "ollama:model": require_ollama,
}


@pytest.mark.parametrize("tools", [True, False], ids=["tools", "no tools"])
@pytest.mark.parametrize("mode", ["native", "json"])
@pytest.mark.parametrize("provider", PROVIDERS)
@given(history=histories)
def test_any_history_is_valid_for_its_provider(provider: str, mode: str, tools: bool, history: list[Any]) -> None:
    """A run that was interrupted anywhere, or began with another provider, must be able to go on with this one."""
    llm = create_llm(provider, tool_calling=mode)
    before = copy.deepcopy(history)

    PROVIDERS[provider](llm, asked(llm, history, tools=tools))

    assert history == before


@given(history=histories)
def test_nothing_that_was_said_is_lost(history: list[Any]) -> None:
    """What is repaired is the form; each text of the user and of the model is still there, in its order."""
    llm = create_llm("anthropic:model")
    assert isinstance(llm, AnthropicLLM)

    messages = llm.messages(asked(llm, history))

    said = [message["content"].strip() for message in history if message["role"] != "tool"]
    sent = "\n".join(block["text"] for message in messages for block in message["content"] if block["type"] == "text")
    place = 0
    for text in filter(None, said):
        place = sent.index(text, place) + len(text)


def test_a_call_without_a_result_is_answered_as_unknown() -> None:
    """The model must not take an interrupted call for one that did nothing."""
    history = [
        {"role": "user", "content": "Store milk."},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "name": "store", "arguments": {}}]},
        {"role": "user", "content": "And?"},
    ]
    llm = create_llm("anthropic:model")
    assert isinstance(llm, AnthropicLLM)

    answered, said = llm.messages(asked(llm, history))[-1]["content"]

    assert json.loads(answered["content"])["status"] == "unknown"
    assert said["text"] == "And?"


def test_native_calls_are_told_as_actions_where_actions_are_json() -> None:
    """A conversation can go on with a model that has no native calls."""
    history = [
        {"role": "user", "content": "Store milk."},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "a", "name": "store", "arguments": {"item": 1}}]},
        {"role": "tool", "content": '{"type":"tool_result"}', "name": "store", "tool_call_id": "a"},
    ]
    llm = create_llm("openai-chat:model", tool_calling="json")
    assert isinstance(llm, OpenAIChatLLM)

    _, _, acted, observed = llm.messages(asked(llm, history))

    assert acted["content"] == '{"type":"tool_call","tool":"store","args":{"item":1}}'
    assert observed == {"role": "user", "content": '{"type":"tool_result"}'}
