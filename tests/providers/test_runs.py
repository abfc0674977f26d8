"""Whole runs over the wire: faults of a provider, and what has to survive a process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, RunManager, RunReport, TaskState
from protolink.errors import ModelFailedError
from protolink.llms import LLM
from tests.providers.conftest import Make
from tests.providers.dialects import Anthropic, Compatible, Dialect, Gemini, Responses, Said
from tests.providers.wire import Answer, WireServer
from tests.reliability.scale import scaled

CALL = Said(text=["Let me see."], calls=[("call_7", "store", ['{"item": "milk"}'])])
STORED = Said(text=["It is ", "stored."])


def dropped(dialect: Dialect) -> Answer:
    return dialect.answer(STORED, chunks=dialect.events(STORED)[:-1], ending="dropped")


FAULTS: dict[str, Callable[[Dialect], Answer]] = {
    "429": lambda dialect: dialect.error(429, {"retry-after": "0"}),
    "500": lambda dialect: dialect.error(500),
    "time-out": lambda dialect: Answer(ending="silent"),
    "drop": dropped,
    "garbage": lambda dialect: Answer(chunks=[b"<html>"], content_type=dialect.content_type),
}


class Shelf:
    """The effect that must happen once."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def store(self, item: str) -> str:
        """Store an item."""
        self.items.append(item)
        return "stored"


async def to_the_end(agent: Agent, prompt: str) -> RunReport:
    """The report of a run that was taken up again as often as its provider had failed it."""
    handle = agent.start_run(prompt)
    task = (await handle.result()).task
    for _ in range(3):
        if task.state is TaskState.COMPLETED:
            break
        task = await agent.resume_task(handle.run_id)
    assert task.get_output() == "It is stored."
    return await RunManager([agent]).inspect(handle.run_id)


@pytest.mark.fault(name="F14")
@pytest.mark.parametrize("again", range(scaled(commit=1, short=1, full=16)))
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_run_survives_its_provider(
    fault: str, again: int, dialect: Dialect, server: WireServer, make: Make, tmp_path: Path
) -> None:
    """The effect happened before the fault and does not happen again; each call that was made is counted once."""
    server.play(dialect.answer(CALL), FAULTS[fault](dialect), dialect.answer(STORED))
    server.standing["/api/show"] = Answer(chunks=[b'{"capabilities": ["tools"], "model_info": {}}'])
    shelf = Shelf()
    llm = make(read_timeout=1.0)
    agent = Agent(name="keeper", llm=llm, tools=[shelf.store], durability=tmp_path / "runs.db", verbosity=0)

    report = await to_the_end(agent, "Store milk.")

    used = [
        event.payload["metadata"]["metrics"]["usage"] for event in report.events if event.type == "llm.call.completed"
    ]
    chats = [request for request in server.requests if request.path != "/api/show"]
    assert shelf.items == ["milk"]
    assert [(usage["input_tokens"], usage["output_tokens"], usage["source"]) for usage in used] == [
        (19, 10, "provider")
    ] * 2
    assert report.metrics["budget"]["llm_calls"] == len(chats) == 3
    assert chats[1].body == chats[2].body


def stated(dialect: Dialect, body: Any) -> Any:
    """What a request gives back of the model's turn with the call."""
    match dialect.name:
        case "anthropic":
            return body["messages"][1]["content"][0]
        case "google":
            return body["contents"][1]["parts"][-1]["thoughtSignature"]
        case _:
            return next(item for item in body["input"] if item.get("type") == "reasoning")


@pytest.mark.parametrize(
    ("dialect", "state"),
    [
        (Anthropic(), {"type": "thinking", "thinking": "Hm.", "signature": "EqQBCgIYAhIM1gbc"}),
        (Gemini(), "c2lnbmF0dXJl"),
        (
            Responses(),
            {
                "type": "reasoning",
                "id": "rs_67",
                "summary": [{"type": "summary_text", "text": "Hm."}],
                "encrypted_content": "gAAAAB==",
            },
        ),
    ],
    ids=lambda value: value.name if isinstance(value, Dialect) else "",
)
async def test_what_a_provider_wants_back_survives_the_process(
    dialect: Dialect, state: Any, server: WireServer, tmp_path: Path
) -> None:
    """Signed reasoning has to stand before the results of its calls, also where another process goes on."""
    said = Said(reasoning=["Hm."], calls=CALL.calls)
    server.play(dialect.answer(said), dialect.error(400), dialect.answer(STORED))

    def keeper() -> tuple[Agent, LLM]:
        llm = dialect.llm(server.url)
        return Agent(name="keeper", llm=llm, tools=[Shelf().store], durability=tmp_path / "runs.db", verbosity=0), llm

    first, one = keeper()
    handle = first.start_run("Store milk.")
    assert (await handle.result()).status == "failed"
    second, other = keeper()
    assert (await second.resume_task(handle.run_id)).get_output() == "It is stored."
    for llm in (one, other):
        await llm.aclose()

    assert stated(dialect, server.requests[1].body) == stated(dialect, server.requests[2].body) == state
    assert "Hm." not in str(handle.report.to_dict())


async def test_one_run_can_go_from_one_provider_to_another(server: WireServer, tmp_path: Path) -> None:
    """What one provider signed means nothing to the next one, and is not sent to it."""
    here, there = Anthropic(), Compatible()
    server.play(here.answer(Said(reasoning=["Hm."], calls=CALL.calls)), here.error(400), there.answer(STORED))
    before, after = here.llm(server.url), there.llm(server.url)
    shelf = Shelf()
    agent = Agent(name="keeper", llm=before, tools=[shelf.store], durability=tmp_path / "runs.db", verbosity=0)
    handle = agent.start_run("Store milk.")
    await handle.result()

    agent.llm = after
    task = await agent.resume_task(handle.run_id, accept_changes=True)
    for llm in (before, after):
        await llm.aclose()

    assert (task.get_output(), shelf.items) == ("It is stored.", ["milk"])
    body = server.requests[2].body
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert "EqQBCgIYAhIM1gbc" not in str(body)


async def test_a_failure_says_what_happened_and_nothing_that_was_said(
    dialect: Dialect, server: WireServer, llm: LLM
) -> None:
    """Errors of runs are recorded, shown and sent; prompts and keys are not."""
    server.play(dialect.error(401), dialect.error(401))
    agent = Agent(name="keeper", llm=llm, verbosity=0)

    with pytest.raises(ModelFailedError, match="refused or lost the call: 401") as raised:
        await agent.invoke("My secret plan.")

    assert "secret" not in str(raised.value)
