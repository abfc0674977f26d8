"""Conversations that outgrow the model's context window."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from protolink import Agent, AgentHooks, Compaction, ModelFailedError
from protolink.testing import call, calls
from tests.support import ListeningLLM, observe, of_type

LONG = "x" * 400


def read(page: int) -> str:
    """Read a page, which is long."""
    return f"{page} {LONG}"


def _llm(*turns: Any, window: int = 1_000, mode: Literal["json", "native"] = "native") -> ListeningLLM:
    llm = ListeningLLM(*turns, tool_calling=mode)
    llm.context_window = window
    return llm


READS = [call("read", page=page) for page in range(8)]


def _is_whole(messages: Sequence[dict[str, Any]]) -> bool:
    """Whether every call is followed by its result, and every result follows its call."""
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return False
            waiting.remove(message["tool_call_id"])
        elif waiting:
            return False
        waiting += [called["id"] for called in message.get("tool_calls", ())]
    return not waiting


async def test_the_oldest_exchanges_go_and_the_question_stays() -> None:
    """A provider refuses a call without its result, and a model without the question does not know what to do."""
    llm = _llm(*READS)

    events, result = await observe(Agent(name="a", tools=[read], llm=llm), "Read it all.")

    assert result.output == "done"
    assert of_type(events, "llm.context.compacted")
    assert all(heard[0] == {"role": "user", "content": "Read it all."} for heard in llm.heard)
    assert all(_is_whole(heard) for heard in llm.heard)
    assert max(sum(len(message["content"]) for message in heard) for heard in llm.heard) < 1_000 * 3
    assert "7 x" in llm.heard[-1][-1]["content"]


async def test_several_calls_of_a_turn_go_together() -> None:
    """An exchange is a reply with everything that answers it."""
    llm = _llm(*[calls(call("read", page=2 * turn), call("read", page=2 * turn + 1)) for turn in range(5)])

    events, _ = await observe(Agent(name="a", tools=[read], llm=llm))

    assert of_type(events, "llm.context.compacted")
    assert all(_is_whole(heard) for heard in llm.heard)


async def test_a_hook_summarizes_what_goes() -> None:
    """What the messages said need not be lost; a summary of the summary comes first the next time."""
    seen: list[Compaction] = []

    def summarize(compaction: Compaction) -> None:
        seen.append(compaction)
        compaction.summary = f"{len(seen)} times shortened"

    llm = _llm(*READS)
    hooks = AgentHooks(on_compaction=summarize)

    await observe(Agent(name="a", tools=[read], llm=llm, hooks=hooks), "Read it all.")

    assert len(seen) > 1
    assert "1 times shortened" in seen[1].messages[0]["content"]
    assert f"{len(seen)} times shortened" in llm.heard[-1][0]["content"]
    assert llm.heard[-1][1]["content"] == "Read it all."
    assert all(message["content"] != "Read it all." for one in seen for message in one.messages)


async def test_a_session_keeps_what_is_not_sent() -> None:
    """What fits is a matter of the model; what was said is not."""
    llm = _llm(*READS[:6], "Read.", "Still here.")
    agent = Agent(name="a", tools=[read], llm=llm, state=["conversation"])

    await agent.invoke("Read it all.", session_id="s")
    await agent.invoke("And now?", session_id="s")

    assert "And now?" in llm.heard[-1][-1]["content"]
    assert _is_whole(llm.heard[-1])
    llm.context_window = None
    await agent.invoke("All of it?", session_id="s")
    assert llm.heard[-1][0]["content"] == "Read it all."
    assert len(llm.heard[-1]) == 1 + 2 * 6 + 1 + 2 + 1


async def test_a_resumed_run_sends_the_same(tmp_path: Path) -> None:
    """What was left out is a fact of the run; the hook is not asked about it again."""
    asked: list[int] = []

    def summarize(compaction: Compaction) -> None:
        asked.append(compaction.step)
        compaction.summary = "short"

    def agent(llm: ListeningLLM) -> Agent:
        hooks = AgentHooks(on_compaction=summarize)
        options: dict[str, Any] = {"durability": tmp_path / "runs.db", "yield_after_steps": 7}
        return Agent(name="a", tools=[read], llm=llm, hooks=hooks, **options)

    first, second = _llm(*READS[:7]), _llm()
    result = await agent(first).start_run("Read it all.").result()
    before = list(asked)
    await agent(second).resume_task(result.report.context.run_id)

    assert before
    assert second.heard[0][0]["content"].endswith("short")
    assert second.heard[0][1]["content"] == "Read it all."
    assert asked == before


async def test_a_question_that_is_too_long_by_itself_is_sent() -> None:
    """There is nothing to leave out, and the provider says best what is wrong."""
    llm = _llm(RuntimeError("too long"), window=10)

    with pytest.raises(ModelFailedError, match="too long"):
        await Agent(name="a", llm=llm).invoke(LONG)
    assert llm.heard[0][-1]["content"] == LONG
