"""Conversations: per session, only when asked for, and valid after every way in which a run can end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from protolink import Agent, CapabilityPolicy, RunBudget, Tool
from protolink.llms import MockLLM
from protolink.testing import call
from tests.support import ListeningLLM, observe, turns


def note(number: int) -> int:
    """Return a number."""
    return number


def _said(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages if message["role"] in ("user", "assistant")]


async def test_a_session_continues() -> None:
    """Its next run sees what was said before, in order."""
    llm = ListeningLLM("one", "two", "three")
    agent = Agent(name="a", llm=llm, state=["conversation"])

    for prompt in ("first", "second", "third"):
        await agent.invoke(prompt, session_id="s")

    assert _said(llm.heard[2]) == [
        ("user", "first"),
        ("assistant", "one"),
        ("user", "second"),
        ("assistant", "two"),
        ("user", "third"),
    ]


async def test_sessions_are_apart_and_runs_without_one_are_alone() -> None:
    """Nothing crosses."""
    llm = ListeningLLM()
    agent = Agent(name="a", llm=llm, state=["conversation"])

    for session in ("x", "y", None, None):
        await agent.invoke(f"in {session}", session_id=session)

    assert [len(messages) for messages in llm.heard] == [1, 1, 1, 1]


async def test_state_is_opt_in() -> None:
    """A session id alone keeps nothing."""
    llm = ListeningLLM()
    agent = Agent(name="a", llm=llm)

    for _ in range(2):
        await agent.invoke("go", session_id="s")

    assert [len(messages) for messages in llm.heard] == [1, 1]


async def test_two_agents_have_two_conversations() -> None:
    """Also in one session."""
    llm = ListeningLLM()
    for name in ("a", "b"):
        await Agent(name=name, llm=llm, state=["conversation"]).invoke("go", session_id="s")

    assert [len(messages) for messages in llm.heard] == [1, 1]


def _valid(messages: list[dict[str, Any]]) -> None:
    """As providers demand it: each call is followed by exactly one answer before anybody else speaks."""
    waiting: list[str | None] = []
    for message in messages:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"] if waiting and waiting[0] else None)
            continue
        assert waiting == []
        if message["role"] == "assistant":
            waiting = [made["id"] for made in message.get("tool_calls", [])] or [None] * _actions(message["content"])
    assert waiting == []


def _actions(text: str) -> int:
    """How many calls a reply in JSON makes."""
    if not text.startswith(("[", "{")):
        return 0
    said = json.loads(text)
    return len(said) if isinstance(said, list) else 1


ENDINGS: dict[str, tuple[list[Any], dict[str, Any], dict[str, Any]]] = {
    "completed": ([[call("note", number=1), call("note", number=2)]], {}, {}),
    "tool failed": ([[call("note", number=1), call("broken"), call("note", number=2)]], {}, {}),
    "denied": ([[call("note", number=1), call("guarded")]], {"policy": CapabilityPolicy({"g.g": "deny"})}, {}),
    "rejected too often": (
        [[call("missing"), call("missing", x=1), call("missing", x=2), call("note", number=1)]],
        {},
        {},
    ),
    "no approval": (
        [[call("guarded"), call("note", number=1)]],
        {"policy": CapabilityPolicy({"g.g": "require_approval"})},
        {},
    ),
    "out of tool calls": (
        [[call("note", number=1), call("note", number=2)]],
        {},
        {"budget": RunBudget(max_tool_calls=1)},
    ),
    "out of steps": ([call("note", number=1)], {}, {"budget": RunBudget(max_steps=1)}),
    "model failed": ([call("note", number=1), ConnectionError("down")], {}, {}),
    "repeated": ([[call("note", number=1), call("note", number=1)]], {}, {}),
}


@pytest.mark.parametrize("tool_calling", ["json", "native"])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_conversation_is_valid_after_every_ending(ending: str, tool_calling: Any) -> None:
    """The next run of the session sends something that a provider accepts."""
    script, options, request = ENDINGS[ending]

    def broken() -> None:
        raise ValueError("broken")

    def guarded() -> None:
        """Guarded."""

    llm = ListeningLLM(*script, tool_calling=tool_calling)
    tools: list[Any] = [note, broken, Tool(guarded, capabilities=["g.g"])]
    agent = Agent(name="a", tools=tools, llm=llm, state=["conversation"], **options)
    await observe(agent, session_id="s", **request)
    agent.llm = later = ListeningLLM("fine", tool_calling=tool_calling)

    _, result = await observe(agent, "and now?", session_id="s")

    assert result.output == "fine"
    assert later.heard[0][-1] == {"role": "user", "content": "and now?"}
    assert len(later.heard[0]) > 2
    _valid(later.heard[0])


@pytest.mark.parametrize("tool_calling", ["json", "native"])
async def test_a_conversation_is_valid_after_a_cancellation_at_any_turn(tool_calling: Any) -> None:
    """Calls that were proposed and never begun have an answer as well."""

    async def work(number: int) -> int:
        await turns(2)
        return number

    for turn in range(200):
        script = [[call("work", number=number) for number in range(3)], "done"]
        agent = Agent(
            name="a", tools=[work], llm=ListeningLLM(*script, tool_calling=tool_calling), state=["conversation"]
        )
        handle = agent.start_run("go", session_id="s")
        await turns(turn)
        await handle.cancel()
        ended = (await handle.result()).status
        agent.llm = later = ListeningLLM("fine", tool_calling=tool_calling)
        await agent.invoke("and now?", session_id="s")

        _valid(later.heard[0])
        if ended == "completed":
            assert turn > 5
            return
    raise AssertionError("the run never ended by itself")


async def test_concurrent_runs_of_one_session_do_not_interleave() -> None:
    """Each keeps its own messages together; the later one to end is appended as a whole."""

    async def slow(number: int) -> int:
        await turns(3)
        return number

    def answer(history: Any, _prompt: str) -> Any:
        return "done" if history.messages[-1]["role"] == "tool" else call("slow", number=1)

    agent = Agent(name="a", tools=[slow], llm=MockLLM(response_callback=answer), state=["conversation"])

    await asyncio.gather(agent.invoke("left", session_id="s"), agent.invoke("right", session_id="s"))
    agent.llm = later = ListeningLLM()
    await agent.invoke("after", session_id="s")

    prompts = [content for role, content in _said(later.heard[0]) if role == "user"]
    assert sorted(prompts[:2]) == ["left", "right"]
    roles = [message["role"] for message in later.heard[0]]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2 + ["user"]


async def test_what_a_hook_hid_stays_hidden_in_the_session() -> None:
    """A secret that was taken out of one turn does not come back in the next run."""
    from protolink import AgentHooks, ToolObservation

    def secret() -> str:
        return "s3cret"

    def hide(observation: ToolObservation) -> None:
        observation.result = "hidden"

    llm = ListeningLLM(call("secret"), "one", "two")
    agent = Agent(name="a", tools=[secret], llm=llm, state=["conversation"], hooks=AgentHooks(after_tool=hide))
    await agent.invoke("go", session_id="s")
    await agent.invoke("again", session_id="s")

    assert "s3cret" not in llm.everything


async def test_direct_calls_leave_no_trace_in_the_conversation() -> None:
    """There was nobody to talk to."""
    llm = ListeningLLM()
    agent = Agent(name="a", tools=[note], llm=llm, state=["conversation"])
    await agent.invoke("", "tool_call", "note", {"number": 3}, "s")
    await agent.invoke("go", session_id="s")

    assert llm.heard[0] == [{"role": "user", "content": "go"}]
