"""Errors: each says what the caller can do, carries data in attributes, and comes at the call that was wrong."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from protolink import (
    ActionDeniedError,
    Agent,
    AgentHooks,
    ApprovalRequiredError,
    BudgetExceededError,
    CapabilityPolicy,
    ConfigurationError,
    InferParseError,
    Message,
    ModelFailedError,
    Part,
    ProtolinkError,
    RunBudget,
    RunContext,
    Task,
    TaskExecutionError,
    Tool,
    ToolCorrectionLimitError,
    ToolDefinitionError,
    ToolFailedError,
    ToolRejectedError,
    UncertainExecutionError,
)
from protolink.testing import call
from protolink.tools import PreparedTool
from tests.support import model, observe, of_type


def work(number: int = 0) -> int:
    """Return a number."""
    return number


def _broken() -> None:
    raise OSError("the disk is gone")


def _rejecting() -> None:
    raise ToolRejectedError("no such page", code="no_page", details={"page": 3}, suggestion="use page 2")


def _uncertain() -> None:
    raise UncertainExecutionError("the reply was lost")


def _agent(*script: Any, **options: Any) -> Agent:
    tools: list[Any] = [
        work,
        Tool(_broken, name="broken"),
        Tool(_rejecting, name="rejecting"),
        Tool(_uncertain, name="uncertain"),
    ]
    return Agent(name="a", tools=tools, llm=model(*script), **options)


async def _failure(agent: Agent, **options: Any) -> Exception:
    with pytest.raises(ProtolinkError) as raised:
        await agent.invoke("go", **options)
    return raised.value


async def test_a_tool_failure_carries_the_tools_own_exception() -> None:
    """As the cause, with the action that it concerns and the final task."""
    error = await _failure(_agent(call("broken")))

    assert isinstance(error, ToolFailedError)
    assert isinstance(error.__cause__, OSError)
    assert error.code == "tool_failed"
    assert error.action_id
    assert "broken" in str(error)
    assert error.task is not None
    assert error.task.state.value == "failed"


async def test_a_denial_carries_its_action() -> None:
    """Nothing is its cause: nothing broke."""
    error = await _failure(_agent(call("work"), policy=CapabilityPolicy(default_effect="deny")))

    assert isinstance(error, ActionDeniedError)
    assert error.action_id
    assert error.__cause__ is None


async def test_an_approval_that_nobody_can_give_is_told_apart_from_a_denial() -> None:
    """The caller has to wire something up, not to accept a no."""
    error = await _failure(_agent(call("work"), policy=CapabilityPolicy(default_effect="require_approval")))

    assert isinstance(error, ApprovalRequiredError)
    assert not isinstance(error, ActionDeniedError)


async def test_a_budget_error_names_its_limit() -> None:
    """And the value that was allowed."""
    error = await _failure(_agent(call("work")), budget=RunBudget(max_tool_calls=0))

    assert isinstance(error, BudgetExceededError)
    assert (error.limit, error.allowed) == ("max_tool_calls", 0)


async def test_a_model_failure_carries_the_providers_exception() -> None:
    """The run is unharmed: no action was entered."""
    error = await _failure(_agent(TimeoutError("provider is slow")))

    assert isinstance(error, ModelFailedError)
    assert isinstance(error.__cause__, TimeoutError)


async def test_too_many_corrections_carry_the_last_one() -> None:
    """With the tool, the counts, and what the model would have been told."""
    error = await _failure(_agent(*[call("work", number=str(number)) for number in range(5)]))

    assert isinstance(error, ToolCorrectionLimitError)
    assert (error.tool_name, error.attempts, error.limit) == ("work", 3, 2)
    assert "number" in error.last_error


async def test_an_uncertain_action_carries_everything_to_look_at_it() -> None:
    """Roots, run, action, tool and arguments."""
    handle = _agent(call("uncertain")).start_run("go")

    with pytest.raises(UncertainExecutionError, match="reply was lost") as raised:
        await handle.outcome()

    error = raised.value
    assert (error.root_run_id, error.run_id) == (handle.run_id, handle.run_id)
    assert (error.tool_name, error.arguments) == ("uncertain", {})
    assert error.action_id == of_type(list(handle.report.events), "action.uncertain")[0].action_id
    assert error.task is not None
    assert error.action_id in error.task.metadata["uncertain_actions"]


async def test_an_uncertain_action_is_not_evidence_of_a_failure() -> None:
    """Nobody knows, so no record claims to."""
    _, result = await observe(_agent(call("uncertain")))

    assert result.tool_evidence == ()
    assert result.status == "failed"


async def test_a_direct_rejection_is_the_tools_own_error() -> None:
    """With its code, details and suggestion."""
    with pytest.raises(ToolRejectedError) as raised:
        await _agent().call_tool("rejecting")

    assert (raised.value.code, raised.value.details, raised.value.suggestion) == (
        "no_page",
        {"page": 3},
        "use page 2",
    )


async def test_a_direct_call_with_wrong_arguments_is_a_rejection() -> None:
    """Nothing was executed; the problems are listed by their place."""
    with pytest.raises(ToolRejectedError) as raised:
        await _agent().call_tool("work", number="x")

    assert raised.value.code == "invalid_arguments"
    assert raised.value.details is not None
    assert raised.value.details["problems"][0]["path"]


async def test_a_direct_call_of_an_unknown_tool_is_a_rejection() -> None:
    """It names what there is."""
    with pytest.raises(ToolRejectedError) as raised:
        await _agent().call_tool("wrok")

    assert raised.value.code == "unknown_tool"
    assert raised.value.suggestion == "Did you mean work?"


async def test_messages_carry_no_argument_values() -> None:
    """An error may end in a log; what was asked for need not."""
    with pytest.raises(ToolRejectedError) as raised:
        await _agent().call_tool("work", number="s3cret-value")

    assert "s3cret-value" not in str(raised.value)
    assert "s3cret-value" not in str(raised.value.to_dict())


async def test_run_task_gives_the_failed_task_instead() -> None:
    """It is for reading the outcome."""
    task = await _agent(call("broken")).run_task(Task.create_infer("go"))

    assert task.state.value == "failed"
    assert task.metadata["error"]["code"] == "tool_failed"
    with pytest.raises(TaskExecutionError, match="disk is gone"):
        task.raise_for_status()


async def test_a_result_never_raises_for_the_runs_own_failure() -> None:
    """`result()` reports."""
    _, result = await observe(_agent(call("broken")))

    assert result.status == "failed"
    assert result.output is None
    assert "disk is gone" in (result.error or "")


def test_the_tree_of_errors_is_grouped_by_what_the_caller_does_next() -> None:
    """One `except` for each decision."""
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(ToolDefinitionError, ConfigurationError)
    endings = [ActionDeniedError, ApprovalRequiredError, BudgetExceededError, InferParseError, ModelFailedError]
    assert all(issubclass(error, TaskExecutionError) for error in [*endings, ToolFailedError, ToolCorrectionLimitError])
    assert not issubclass(UncertainExecutionError, TaskExecutionError)
    assert not issubclass(ToolRejectedError, TaskExecutionError)


@pytest.mark.parametrize(
    "arguments",
    [
        {"message": ""},
        {"message": "  "},
        {"message": None},
        {"message": "m", "code": ""},
        {"message": "m", "code": 3},
        {"message": "m", "details": {"x": object()}},
        {"message": "m", "details": {"x": float("nan")}},
        {"message": "m", "details": {1: "x"}},
        {"message": "m", "suggestion": 3},
    ],
)
def test_a_rejection_that_cannot_be_told_is_refused(arguments: dict[str, Any]) -> None:
    """It becomes the model's next prompt, so it has to have words and valid JSON."""
    with pytest.raises((ValueError, TypeError)):
        ToolRejectedError(**arguments)


WRONG_AGENTS: dict[str, dict[str, Any]] = {
    "no name": {"name": None},
    "blank name": {"name": " "},
    "model and factory": {"llm": model(), "llm_factory": model},
    "model of another type": {"llm": 3},
    "unknown provider": {"llm": "unknown:model"},
    "factory that is a model": {"llm_factory": model()},
    "prompt that is no text": {"system_prompt": ["You"]},
    "zero workers": {"max_sync_workers": 0},
    "a half worker": {"max_sync_workers": 1.5},
    "true workers": {"max_sync_workers": True},
    "unknown mode": {"sync_execution": "process"},
    "a policy by name": {"policy": "deny"},
    "a hook that is a function": {"hooks": print},
    "hooks of wrong things": {"hooks": [AgentHooks(), None]},
    "state as a text": {"state": "conversation"},
    "unknown state": {"state": ["memory"]},
    "a tool that is a text": {"tools": ["work"]},
    "a tool that is None": {"tools": [None]},
    "two tools of one name": {"tools": [work, work]},
    "a reserved name": {"tools": [Tool(work, name="agent_call")]},
}


@pytest.mark.parametrize("case", WRONG_AGENTS)
def test_a_wrong_configuration_is_refused_at_construction(case: str) -> None:
    """As one kind of error, before anything has run."""
    settings: dict[str, Any] = {"name": "a", **WRONG_AGENTS[case]}

    with pytest.raises(ConfigurationError) as raised:
        Agent(**settings)

    assert str(raised.value).strip()


def _positional(value: int, /) -> None:
    """Cannot be called by name."""


def _variadic(*values: int) -> None:
    """Has no names at all."""


class _Opaque:
    pass


def _opaque(value: _Opaque) -> None:
    """Takes what no model can write."""


def _prepared_with(**parts: Any) -> PreparedTool:
    settings: dict[str, Any] = {"prepare": work, "execute": work, "capabilities": {"a.b"}, **parts}
    return PreparedTool(work, **settings)


WRONG_TOOLS: dict[str, Callable[[], Any]] = {
    "positional-only": lambda: Tool(_positional),
    "variadic": lambda: Tool(_variadic),
    "an opaque parameter": lambda: Tool(_opaque),
    "a lambda without a name": lambda: Tool(lambda: None),
    "a name with a space": lambda: Tool(work, name="do work"),
    "a name with a dot": lambda: Tool(work, name="do.work"),
    "an empty name": lambda: Tool(work, name=""),
    "an endless name": lambda: Tool(work, name="x" * 1000),
    "a partial without a name": lambda: Tool(functools.partial(work, number=1), name="1st"),
    "a schema that is a list": lambda: Tool(work, input_schema=[]),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "a schema of no object": lambda: Tool(work, input_schema={"type": "integer"}),
    "a schema of an unknown type": lambda: Tool(
        work, input_schema={"type": "object", "properties": {"x": {"type": "y"}}}
    ),
    "a schema with a foreign reference": lambda: Tool(
        work, input_schema={"type": "object", "properties": {"x": {"$ref": "https://example.com/s.json"}}}
    ),
    "a schema without end": lambda: Tool(work, input_schema=_nested(500)),
    "an output schema of no JSON": lambda: Tool(work, output_schema={"x": object()}),
    "a time limit of zero": lambda: Tool(work, timeout_seconds=0),
    "a time limit of no number": lambda: Tool(work, timeout_seconds=float("nan")),
    "an unknown on_error": lambda: Tool(work, on_error="ignore"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "a flag that is a text": lambda: Tool(work, read_only="yes"),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "capabilities as a text": lambda: Tool(work, capabilities="files.write"),
    "a blank capability": lambda: Tool(work, capabilities=[" "]),
    "examples of no JSON": lambda: Tool(work, examples=[object()]),
    "an action builder that is none": lambda: Tool(work, action_builder=3),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "no function": lambda: Tool(3),  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    "an endless description": lambda: Tool(work, description="x" * 100_000),
    "a prepared tool without an executor": lambda: _prepared_with(execute=None),
    "a prepared tool without a preparation": lambda: _prepared_with(prepare="later"),
}


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


@pytest.mark.parametrize("case", WRONG_TOOLS)
def test_a_tool_that_cannot_be_offered_is_refused_at_registration(case: str) -> None:
    """With the tool's name or the part that is wrong, and never at the first call."""
    with pytest.raises(ToolDefinitionError) as raised:
        WRONG_TOOLS[case]()

    assert str(raised.value).strip()


def test_a_refused_tool_leaves_the_agent_as_it_was() -> None:
    """Those before it are declared, the refused one is not."""
    agent = Agent(name="a", tools=[work])

    with pytest.raises(ConfigurationError, match="already has"):
        agent.add_tool(work)
    with pytest.raises(ToolDefinitionError):
        agent.add_tool(_positional)

    assert list(agent.tools) == ["work"]


WRONG_CALLS: dict[str, Callable[[Agent], Any]] = {
    "unknown part type": lambda agent: agent.invoke("x", "image"),
    "tool call without a name": lambda agent: agent.invoke("x", "tool_call"),
    "blank run id": lambda agent: agent.invoke("x", context=RunContext(run_id=" ")),
    "two sessions": lambda agent: agent.invoke("x", session_id="a", context=RunContext(session_id="b")),
    "an ended task": lambda agent: agent.run_task(Task.create("x").start().complete("y")),
    "a task without work": lambda agent: agent.run_task(Task()),
    "a part of another kind": lambda agent: agent.run_task(Task(messages=[Message(parts=[Part("image", "x")])])),
    "a prompt that is no text": lambda agent: agent.run_task(Task(messages=[Message(parts=[Part("text", 3)])])),
    "an infer part without a prompt": lambda agent: agent.run_task(Task(messages=[Message(parts=[Part("infer", {})])])),
    "a tool part without a tool": lambda agent: agent.run_task(Task(messages=[Message(parts=[Part("tool_call", {})])])),
    "two contexts": lambda agent: _started(agent, Task.create_infer("x", context=RunContext()), RunContext()),
}


async def _started(agent: Agent, task: Task, context: RunContext) -> None:
    agent.start_run(task, context=context)


@pytest.mark.parametrize("case", WRONG_CALLS)
async def test_a_request_that_contradicts_itself_is_refused_before_it_runs(case: str) -> None:
    """At the call, as a `ValueError`; there is no run and no event."""
    agent = _agent("answer")

    with pytest.raises(ValueError, match=r"\w"):
        await WRONG_CALLS[case](agent)

    assert await agent.invoke("and it still works") == "answer"


@pytest.mark.parametrize("wrong", [3, None, b"bytes", ["x"], {"prompt": "x"}])
async def test_work_of_another_type_is_refused(wrong: Any) -> None:
    """A run starts from a prompt, a message or a task."""
    with pytest.raises(TypeError, match="prompt"):
        _agent().start_run(wrong)


async def test_one_run_id_is_driven_once_at_a_time() -> None:
    """A second start under the same id is refused, and the first goes on."""
    agent = _agent("answer")
    context = RunContext()
    handle = agent.start_run("go", context=context)

    with pytest.raises(ValueError, match="already running"):
        agent.start_run("go", context=context)

    assert (await handle.result()).status == "completed"


def test_a_run_needs_an_event_loop() -> None:
    """The message says what scripts use instead."""
    with pytest.raises(RuntimeError, match=r"agent\.sync"):
        _agent().start_run("go")


async def test_a_text_tool_args_are_no_arguments() -> None:
    """Arguments that are not an object are refused by validation, whatever they are."""
    task = Task(messages=[Message(parts=[Part("tool_call", {"tool_name": "work", "args": "3", "call_id": "c"})])])

    events, result = await observe(_agent(), task)

    assert result.status == "failed"
    assert of_type(events, "action.started") == []
