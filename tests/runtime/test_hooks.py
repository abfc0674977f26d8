"""Hooks: they change what the model sees and what the application gets, never what was recorded or executed."""

from __future__ import annotations

from typing import Any

import pytest

from protolink import Agent, AgentHooks, FinalResponse, ModelRequest, TaskExecutionError, ToolObservation
from protolink.testing import call
from tests.support import ListeningLLM, model, observe, of_type, results


def secret() -> dict[str, str]:
    """Return something with a secret in it."""
    return {"open": "yes", "hidden": "s3cret"}


def other() -> str:
    """Do something else."""
    return "other"


async def test_after_tool_changes_what_the_model_reads_and_not_the_record() -> None:
    """The receipt is of what happened; the conversation is the application's to shape."""

    def hide(observation: ToolObservation) -> None:
        assert observation.name == "secret"
        observation.result["hidden"] = "***"

    llm = ListeningLLM(call("secret"))
    agent = Agent(name="a", tools=[secret], llm=llm, hooks=AgentHooks(after_tool=hide), expose_tool_results=True)
    _, result = await observe(agent)

    assert results(llm.heard[1]) == [{"open": "yes", "hidden": "***"}]
    assert result.tool_evidence[0].result == {"open": "yes", "hidden": "s3cret"}


async def test_hooks_run_in_their_order_and_may_be_async() -> None:
    """Each sees what the one before it left."""

    def first(observation: ToolObservation) -> None:
        observation.result = [observation.result["open"]]

    async def second(observation: ToolObservation) -> None:
        observation.result = {"seen": observation.result}

    llm = ListeningLLM(call("secret"))
    hooks = [AgentHooks(after_tool=first), AgentHooks(after_tool=second)]
    await observe(Agent(name="a", tools=[secret], llm=llm, hooks=hooks))

    assert results(llm.heard[1]) == [{"seen": ["yes"]}]


async def test_a_repeated_call_gives_what_the_hook_left() -> None:
    """A secret that was taken out once must not come back with the repeat."""

    def hide(observation: ToolObservation) -> None:
        observation.result = "hidden"

    llm = ListeningLLM(call("secret"), call("secret"))
    await observe(Agent(name="a", tools=[secret], llm=llm, hooks=AgentHooks(after_tool=hide)))

    assert results(llm.heard[2]) == ["hidden", "hidden"]
    assert "s3cret" not in llm.everything


async def test_before_model_changes_one_request_only() -> None:
    """It works on a copy of the conversation: the next turn has the real one."""
    steps: list[int] = []

    def shorten(request: ModelRequest) -> None:
        steps.append(request.step)
        request.history.clear()
        request.history.append({"role": "user", "content": f"turn {request.step}"})

    llm = ListeningLLM(call("other"))
    await observe(Agent(name="a", tools=[other], llm=llm, hooks=AgentHooks(before_model=shorten)), "the question")

    assert [messages[0]["content"] for messages in llm.heard] == ["turn 1", "turn 2"]
    assert steps == [1, 2]


async def test_editing_a_message_of_the_history_changes_no_record() -> None:
    """Not even its nested parts are shared with the run."""
    first: list[str] = []

    def spoil(request: ModelRequest) -> None:
        first.append(request.history[0]["content"])
        for message in request.history:
            message["content"] = "spoiled"

    await observe(
        Agent(name="a", tools=[other], llm=model(call("other")), hooks=AgentHooks(before_model=spoil)), "the question"
    )

    assert first == ["the question", "the question"]


async def test_a_tool_that_a_hook_removed_cannot_be_called() -> None:
    """Not offered means not callable, also for a model that remembers the name."""

    def remove(request: ModelRequest) -> None:
        request.tools[:] = [tool for tool in request.tools if tool["name"] != "secret"]

    llm = ListeningLLM(call("secret"))
    events, _ = await observe(Agent(name="a", tools=[secret, other], llm=llm, hooks=AgentHooks(before_model=remove)))

    rejected = of_type(events, "action.rejected")[0].payload["metadata"]
    assert rejected["error"]["code"] == "unknown_tool"
    assert rejected["error"]["details"] == {"available": ["other"]}
    assert [tool.name for tool in llm.requests[0].tools] == ["other"]


async def test_the_prompt_of_a_json_model_offers_only_what_the_hook_left() -> None:
    """A removed tool is not described in words either."""

    def remove(request: ModelRequest) -> None:
        request.tools[:] = [tool for tool in request.tools if tool["name"] != "secret"]

    llm = ListeningLLM()
    await observe(Agent(name="a", tools=[secret, other], llm=llm, hooks=AgentHooks(before_model=remove)))

    assert "other" in llm.requests[0].system_prompt
    assert "secret" not in llm.requests[0].system_prompt


async def test_a_hook_cannot_add_a_tool_that_is_not_declared() -> None:
    """A declaration without code behind it would be a promise that nobody keeps."""

    def add(request: ModelRequest) -> None:
        request.tools.append({"name": "ghost", "description": "", "input_schema": {"type": "object"}})

    with pytest.raises(TaskExecutionError, match="ghost"):
        await Agent(name="a", tools=[other], llm=model(), hooks=AgentHooks(before_model=add)).invoke("go")


async def test_changing_an_offered_schema_does_not_change_validation() -> None:
    """What is validated is the declaration, whatever a hook told the model."""
    entered: list[int] = []

    def step(number: int) -> None:
        entered.append(number)

    def loosen(request: ModelRequest) -> None:
        request.tools[0]["input_schema"] = {"type": "object"}

    script = model(call("step", number="text"))
    events, _ = await observe(Agent(name="a", tools=[step], llm=script, hooks=AgentHooks(before_model=loosen)))

    assert entered == []
    assert of_type(events, "action.rejected")[0].payload["metadata"]["error"]["code"] == "invalid_arguments"


async def test_before_complete_changes_the_answer_and_not_the_reply() -> None:
    """The application gets the changed answer; the fragments were the model's own words."""

    async def sign(response: FinalResponse) -> None:
        response.content = f"{response.content} -- signed"

    handle = Agent(name="a", llm=model("answer"), hooks=AgentHooks(before_complete=sign)).start_run("go")

    assert (await handle.result()).output == "answer -- signed"
    assert [chunk async for chunk in handle.chunks()] == ["answer"]


async def test_a_hook_sees_a_copy_of_the_context() -> None:
    """What it writes there changes neither permissions nor budget."""

    def widen(request: ModelRequest) -> None:
        request.context.permissions["*"] = "allow"
        request.context.session_id = "stolen"

    agent = Agent(name="a", llm=model("answer"), hooks=AgentHooks(before_model=widen))
    _, result = await observe(agent, session_id="mine")

    assert result.report.context.session_id == "mine"
    assert result.report.context.permissions == {}


def _wrong(_subject: object) -> str:
    return "a value"


def _raise(_subject: object) -> None:
    raise LookupError("hook broke")


PLACES = ["before_model", "after_tool", "before_complete"]


@pytest.mark.parametrize("place", PLACES)
async def test_a_hook_that_returns_a_value_is_noticed(place: str) -> None:
    """It was written for another convention, and its value would silently do nothing."""
    hooks = AgentHooks(**{place: _wrong})  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]

    with pytest.raises(TaskExecutionError, match="returns None") as raised:
        await Agent(name="a", tools=[other], llm=model(call("other")), hooks=hooks).invoke("go")

    assert raised.value.code == "hook_failed"


@pytest.mark.parametrize("place", PLACES)
async def test_a_hook_that_raises_fails_the_run_with_its_own_error_as_the_cause(place: str) -> None:
    """A safeguard that breaks must not be skipped."""
    hooks = AgentHooks(**{place: _raise})

    with pytest.raises(TaskExecutionError, match="hook broke") as raised:
        await Agent(name="a", tools=[other], llm=model(call("other")), hooks=hooks).invoke("go")

    assert isinstance(raised.value.__cause__, LookupError)


@pytest.mark.parametrize("place", PLACES)
def test_a_hook_that_is_not_callable_is_refused(place: str) -> None:
    """At construction, where the mistake is."""
    wrong: dict[str, Any] = {place: "hook"}

    with pytest.raises(TypeError, match=place):
        AgentHooks(**wrong)


async def test_a_result_that_json_cannot_carry_is_rendered_for_the_model() -> None:
    """What a hook puts there is treated like what a tool returns."""

    def replace(observation: ToolObservation) -> None:
        observation.result = {"set": {1}, "nan": float("nan")}

    llm = ListeningLLM(call("other"))
    await observe(Agent(name="a", tools=[other], llm=llm, hooks=AgentHooks(after_tool=replace)))

    assert results(llm.heard[1]) == [{"set": [1], "nan": "NaN"}]


async def test_hooks_are_not_asked_about_direct_calls() -> None:
    """There is no model whose view they could shape."""
    assert await Agent(name="a", tools=[other], hooks=AgentHooks(after_tool=_raise)).call_tool("other") == "other"
