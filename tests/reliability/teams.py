"""Agents of a dozen kinds, the world that they act on, and an operator who takes their runs to the end.

Each kind is built anew for every process. Its model decides by what the conversation holds and by nothing else,
so that a restarted process gets the answers that the first one would have got.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protolink import (
    Agent,
    CapabilityPolicy,
    RunAction,
    RunBudget,
    RunContext,
    RunInterruption,
    SubagentLimits,
    Task,
    TaskState,
    ToolRejectedError,
    UncertainExecutionError,
    current_action,
)
from protolink.durable import RecordLog
from protolink.errors import RunInterrupted, UnknownRunError
from protolink.llms import LLM, LLMReply, LLMRequest
from protolink.testing import call, calls, delegate
from protolink.tools import Tool, ask_user
from protolink.tools.prepared import PreparedTool

ROOT = "root"

AMPLE = RunBudget(max_steps=60)
"""More turns than any kind needs, so that what a crash has charged ends no run."""

Wait = Callable[[], Awaitable[None]]


class World:
    """What the agents act on, in memory. It outlives their processes."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        """The action of each effect, in order."""

        self.calls = 0
        """How many model calls were made."""

    def act(self, value: int = 0) -> int:
        """Have the one effect that there is, on behalf of the action that runs."""
        self.effects.append(current_action().action_id)
        return value

    def asked(self) -> Wait | None:
        """A model was called; it answers when what this gives is over."""
        self.calls += 1
        return None

    async def pause(self) -> None:
        """Called around an effect, and takes no time here."""

    def has_seen(self, action_id: str) -> bool:
        """Whether an action had its effect."""
        return action_id in self.effects


class FileWorld(World):
    """The same in files, for processes that are killed: each effect and each call is one short write."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._effects = folder / "effects"
        self._calls = folder / "calls"

    def act(self, value: int = 0) -> int:
        """Have the effect."""
        _write_line(self._effects, current_action().action_id)
        return value

    def asked(self) -> Wait | None:
        """A model was called."""
        _write_line(self._calls, "1")
        return None

    def read(self) -> FileWorld:
        """Learn what happened so far."""
        self.effects = _lines(self._effects)
        self.calls = len(_lines(self._calls))
        return self

    def has_seen(self, action_id: str) -> bool:
        """Whether an action had its effect, by now."""
        return action_id in _lines(self._effects)


class OpenWorld(FileWorld):
    """The same for a process that may open no more files: it has opened them before."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._effect_file = os.open(folder / "effects", flags, 0o600)
        self._call_file = os.open(folder / "calls", flags, 0o600)

    def act(self, value: int = 0) -> int:
        """Have the effect."""
        os.write(self._effect_file, f"{current_action().action_id}\n".encode())
        return value

    def asked(self) -> Wait | None:
        """A model was called."""
        os.write(self._call_file, b"1\n")
        return None

    def has_seen(self, action_id: str) -> bool:
        """Whether an action had its effect, by now."""
        return action_id in os.pread(self._effect_file, 65_536, 0).decode().splitlines()


def _write_line(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{text}\n".encode())
    finally:
        os.close(descriptor)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


class Player(LLM):
    """A model that plays a script by its place in the conversation; at the end it says what the tools gave."""

    blocking = False
    provider = "test"
    model = "player"

    def __init__(self, asked: Callable[[], Wait | None], *script: Any) -> None:
        self._asked = asked
        self._script = script

    def respond(self, request: LLMRequest) -> Any:
        """Say what the conversation has come to, once what the world asks to be waited for is over."""
        wait = self._asked()
        return self._reply(request) if wait is None else self._reply_after(wait, request)

    async def _reply_after(self, wait: Wait, request: LLMRequest) -> LLMReply:
        await wait()
        return self._reply(request)

    def _reply(self, request: LLMRequest) -> LLMReply:
        messages = request.messages
        turn = sum(message["role"] == "assistant" for message in messages) - _undone(messages)
        reply = self._script[turn] if turn < len(self._script) else summary(messages)
        if isinstance(reply, str):
            return LLMReply(text=reply)
        return LLMReply(text=json.dumps(reply), actions=reply)


def _undone(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many operations were verified as not executed; each is asked for again."""
    return sum('"tool_not_executed"' in message["content"] for message in messages if message["role"] == "tool")


def summary(messages: Sequence[Mapping[str, Any]]) -> str:
    """Everything that was observed, as one text; what was asked for twice counts once."""
    observed = [message["content"] for message in messages if message["role"] == "tool"]
    seen = {json.dumps(json.loads(content)["result"]) for content in observed if '"tool_not_executed"' not in content}
    return f"seen {sorted(seen)}"


@dataclass
class Kind:
    """One kind of run: how its agent is built, and what is asked of it."""

    build: Callable[[RecordLog, World], Agent]
    start: Callable[[Agent], Awaitable[Task]] = field(default=lambda agent: agent.run_task(task()))


def task(prompt: str = "go", *, run_id: str = ROOT, budget: RunBudget = AMPLE, **options: Any) -> Task:
    """A prompt under the one root id."""
    return Task.create_infer(prompt, context=RunContext(run_id=run_id, budget=budget), **options)


def acting(world: World, **options: Any) -> Tool:
    """The tool `act`, which has an effect and gives its argument back."""

    async def act(value: int) -> int:
        """Change the world."""
        await world.pause()
        result = world.act(value)
        await world.pause()
        return result

    return Tool.from_callable(act, **options)


def prepared(world: World) -> PreparedTool:
    """The same in three stages; it refuses zero."""

    def act(value: int) -> int:
        """Change the world."""
        raise NotImplementedError

    def prepare(arguments: Mapping[str, Any], context: RunContext) -> RunAction:
        if arguments["value"] == 0:
            raise ToolRejectedError("zero changes nothing", suggestion="use one")
        return RunAction(kind="tool.call", name="act", payload=dict(arguments))

    async def execute(execution: Any) -> int:
        await world.pause()
        result = world.act(execution.authorization.action.payload["value"])
        await world.pause()
        return result

    return PreparedTool(act, prepare=prepare, execute=execute, capabilities={"world.write"})


def _tool(log: RecordLog, world: World) -> Agent:
    model = Player(world.asked, call("act", value=1), call("act", value=2))
    return Agent(name="tool", llm=model, tools=[acting(world)], durability=log)


def _prepared(log: RecordLog, world: World) -> Agent:
    model = Player(world.asked, call("act", value=0), call("act", value=1), call("act", value=2))
    return Agent(name="prepared", llm=model, tools=[prepared(world)], durability=log)


ASKING = CapabilityPolicy({"world.write": "require_approval"})


def _approval(log: RecordLog, world: World) -> Agent:
    model = Player(world.asked, calls(call("act", value=1), call("act", value=2)), call("act", value=3))
    tools = [acting(world, capabilities=["world.write"])]
    return Agent(name="approval", llm=model, tools=tools, policy=ASKING, durability=log)


def worker(world: World, *script: Any, name: str = "worker", **options: Any) -> Agent:
    """A child that acts."""
    model = Player(world.asked, *(script or (call("act", value=1), call("act", value=2))))
    return Agent(name=name, llm=model, tools=[acting(world)], **options)


def _worker(log: RecordLog, world: World) -> Agent:
    model = Player(world.asked, delegate("worker", "act"), call("act", value=3))
    return Agent(name="parent", llm=model, tools=[acting(world)], subagents=[worker(world)], durability=log)


def _grandchild(log: RecordLog, world: World) -> Agent:
    middle = Player(world.asked, delegate("worker", "act"), call("act", value=3))
    limits = SubagentLimits(max_depth=2)
    child = Agent(name="middle", llm=middle, tools=[acting(world)], subagents=[worker(world)], subagent_limits=limits)
    model = Player(world.asked, delegate("middle", "have it done"))
    return Agent(name="top", llm=model, subagents=[child], subagent_limits=limits, durability=log)


def _three_levels(log: RecordLog, world: World) -> Agent:
    limits = SubagentLimits(max_depth=3)
    below = Agent(
        name="lower",
        llm=Player(world.asked, delegate("worker", "act"), call("act", value=4)),
        tools=[acting(world)],
        subagents=[worker(world)],
        subagent_limits=limits,
    )
    middle = Agent(
        name="middle", llm=Player(world.asked, delegate("lower", "go")), subagents=[below], subagent_limits=limits
    )
    model = Player(world.asked, delegate("middle", "have it done"))
    return Agent(name="top", llm=model, subagents=[middle], subagent_limits=limits, durability=log)


def _two_workers(log: RecordLog, world: World) -> Agent:
    both = calls(delegate("left", "act"), delegate("right", "act"))
    children = [worker(world, name="left"), worker(world, call("act", value=5), call("act", value=6), name="right")]
    return Agent(name="parent", llm=Player(world.asked, both), subagents=children, durability=log)


def _question(log: RecordLog, world: World) -> Agent:
    model = Player(world.asked, call("ask_user", question="How many?"), call("act", value=2))
    return Agent(name="question", llm=model, tools=[ask_user, acting(world)], durability=log)


def _asking_child(log: RecordLog, world: World) -> Agent:
    child = Agent(
        name="worker",
        llm=Player(world.asked, call("act", value=1)),
        tools=[acting(world, capabilities=["world.write"])],
        policy=ASKING,
    )
    return Agent(name="parent", llm=Player(world.asked, delegate("worker", "act")), subagents=[child], durability=log)


def _slices(log: RecordLog, world: World) -> Agent:
    model = Player(world.asked, call("act", value=1), call("act", value=2), call("act", value=3))
    return Agent(name="slices", llm=model, tools=[acting(world)], durability=log, yield_after_steps=1)


def _typed(log: RecordLog, world: World) -> Agent:
    model = Player(world.asked, call("act", value=7), '"seven"', "7")
    return Agent(name="typed", llm=model, tools=[acting(world)], durability=log)


async def _start_typed(agent: Agent) -> Task:
    await agent.invoke_typed("go", int, max_attempts=2, context=RunContext(run_id=ROOT, budget=AMPLE))
    return await agent.resume_task(ROOT)


def _parallel(log: RecordLog, world: World) -> Agent:
    reads = calls(*(call("act", value=value) for value in (1, 2, 3)))
    return Agent(name="parallel", llm=Player(world.asked, reads), tools=[acting(world, read_only=True)], durability=log)


def _direct(log: RecordLog, world: World) -> Agent:
    return Agent(name="direct", tools=[acting(world)], durability=log)


async def _start_direct(agent: Agent) -> Task:
    return await agent.run_task(Task.create_tool_call("act", {"value": 5}, context=RunContext(run_id=ROOT)))


def _lost_reply(log: RecordLog, world: World) -> Agent:
    async def act(value: int) -> int:
        """Change the world and lose the reply."""
        await world.pause()
        world.act(value)
        if value == 1:
            raise UncertainExecutionError("the reply was lost")
        return value

    model = Player(world.asked, call("act", value=1), call("act", value=2))
    return Agent(name="lost reply", llm=model, tools=[act], durability=log)


KINDS: Mapping[str, Kind] = {
    "tool": Kind(_tool),
    "prepared tool": Kind(_prepared),
    "approval": Kind(_approval),
    "question": Kind(_question),
    "worker": Kind(_worker),
    "worker's worker": Kind(_grandchild),
    "three levels": Kind(_three_levels),
    "two workers": Kind(_two_workers),
    "approval in a worker": Kind(_asking_child),
    "yield": Kind(_slices),
    "typed answer": Kind(_typed, _start_typed),
    "parallel read-only tools": Kind(_parallel),
    "explicit tool task": Kind(_direct, _start_direct),
    "reconcile": Kind(_lost_reply),
}


@dataclass
class Outcome:
    """How an operator found a run's end."""

    task: Task
    uncertain: list[str]
    """The actions that had to be settled, in order."""

    @property
    def answer(self) -> Any:
        """The run's output."""
        return self.task.get_output()


class Operator:
    """Somebody who takes a run to its end: approves, settles what is uncertain, grants slices.

    `settled` outlives the processes; it is what the operator has been told.
    """

    def __init__(self, kind: Kind, world: World) -> None:
        self._kind = kind
        self._world = world
        self.settled: list[str] = []

    async def attend(self, agent: Agent) -> Outcome:
        """Take the run to its end, from wherever it stands."""
        response: dict[str, Any] = {}
        for _ in range(60):
            try:
                current = await self._go_on(agent, response)
            except UncertainExecutionError as error:
                await self._settle(agent, error)
                continue
            except RunInterrupted as error:
                current = error.task
            response = {}
            if current.state is not TaskState.INPUT_REQUIRED:
                return Outcome(current, list(self.settled))
            interruption = RunInterruption.from_task(current)
            if interruption is not None and interruption.kind == "approval":
                response = {
                    "request_id": interruption.request_id,
                    "approved": True,
                    "fingerprint": interruption.fingerprint,
                }
            elif interruption is not None and interruption.kind == "input":
                response = {"request_id": interruption.request_id, "answer": 2}
        raise AssertionError("the run does not end")

    async def _go_on(self, agent: Agent, response: Mapping[str, Any]) -> Task:
        try:
            current = await agent.resume_task(ROOT, **response)
        except UnknownRunError:
            current = await self._kind.start(agent)
        if current.metadata.get("uncertain_actions"):
            # Submitting a task gives its state; taking it up names the action.
            return await agent.resume_task(ROOT)
        return current

    async def _settle(self, agent: Agent, error: UncertainExecutionError) -> None:
        assert error.root_run_id == ROOT
        assert error.action_id is not None
        if error.action_id not in self.settled:
            self.settled.append(error.action_id)
        if self._world.has_seen(error.action_id):
            arguments = error.arguments or {}
            await agent.reconcile(ROOT, error.action_id, result=arguments["value"])
        else:
            await agent.reconcile(ROOT, error.action_id, happened=False)
