"""What the durable path must not take away from whoever holds a handle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from protolink import Agent, RunAction, RunBudget, RunContext, RunManager, Task
from protolink.durable import Lease, Row
from protolink.durable.memory import MemoryRecordLog
from protolink.llms import MockLLM
from protolink.task import TaskState
from protolink.tools import PreparedTool, ToolExecution, report_progress


async def test_a_run_can_be_looked_at_before_it_is_stored() -> None:
    """Between the call and the first write there is a task already, and no event yet."""
    agent = Agent(name="scribe", llm=MockLLM(default_response="done"), durability=MemoryRecordLog(), verbosity=0)
    handle = agent.start_run("go")

    early = handle.task
    assert (early.state, handle.report.context.run_id) == (TaskState.WORKING, handle.run_id)
    assert list(handle.report.events) == []
    assert handle.context.run_id == handle.run_id
    assert (await handle.result()).task.id == early.id


class SlowOnce(MemoryRecordLog):
    """Takes its time over the first progress that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.began = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def append(self, lease: Lease, expected: int, rows: Sequence[Row], **rest: Any) -> None:
        """Store them, after a while."""
        if not self.began.is_set() and any(row.kind == "ProgressReported" for row in rows):
            self.began.set()
            await self.goes_on.wait()
        await super().append(lease, expected, rows, **rest)


async def test_progress_is_told_while_its_tool_works_however_slow_the_store_is() -> None:
    """What is reported during a commit is stored by the next one, although nothing else asks for one."""
    log, seen = SlowOnce(), asyncio.Event()

    async def dig() -> str:
        """Dig, and say so twice."""
        report_progress("dig.begun")
        await log.began.wait()
        report_progress("dig.halfway")
        log.goes_on.set()
        await seen.wait()
        return "dug"

    llm = MockLLM(sequential_responses=[{"type": "tool_call", "tool": "dig", "args": {}}, "done"])
    agent = Agent(name="digger", llm=llm, tools=[dig], durability=log, verbosity=0)
    handle = agent.start_run("go")
    async for event in handle.events():
        if event.type == "dig.halfway":
            seen.set()

    assert (await handle.result()).output == "done"


async def test_a_reply_is_told_while_its_action_is_prepared() -> None:
    """What is stored with the next commit does not wait for it when that one is far away."""
    seen = asyncio.Event()

    async def prepare(arguments: dict[str, Any], _context: RunContext) -> RunAction:
        await seen.wait()
        return RunAction(kind="tool.call", name="pay", payload=arguments)

    async def execute(execution: ToolExecution) -> str:
        return "paid"

    def pay(amount: int) -> str:
        """Pay an amount."""
        raise AssertionError("a signature is never called")

    llm = MockLLM(sequential_responses=[{"type": "tool_call", "tool": "pay", "args": {"amount": 3}}, "done"])
    tool = PreparedTool(pay, prepare=prepare, execute=execute, capabilities=set())
    handle = Agent(name="payer", llm=llm, tools=[tool], durability=MemoryRecordLog(), verbosity=0).start_run("go")
    async for event in handle.events():
        if event.type == "llm.call.completed":
            seen.set()

    assert (await handle.result()).output == "done"


class CountingLog(MemoryRecordLog):
    """Says what was committed together."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[list[str]] = []

    async def append(self, lease: Lease, expected: int, rows: Sequence[Row], **rest: Any) -> None:
        """Store them."""
        await super().append(lease, expected, rows, **rest)
        self.commits.append([row.kind for row in rows])


async def test_a_step_takes_two_commits() -> None:
    """One before an effect, and one before anybody, the model included, sees what came of it."""

    def count(number: int) -> int:
        """Say the next number."""
        return number + 1

    llm = MockLLM(sequential_responses=[{"type": "tool_call", "tool": "count", "args": {"number": 1}}, "done"])
    log = CountingLog()

    await Agent(name="counter", llm=llm, tools=[count], durability=log, verbosity=0).invoke("go")

    assert log.commits == [
        ["RunStarted", "ModelAsked"],
        ["ModelReplied", "ActionPrepared", "ActionJudged", "ActionStarted"],
        ["ActionCompleted", "ModelAsked"],
        ["ModelReplied", "AnswerGiven", "RunFinished"],
    ]


async def test_a_long_list_is_folded_in_pieces() -> None:
    """What is taken up again is what was left, however many rows it takes."""

    def count(number: int) -> int:
        """Say the next number."""
        return number + 1

    steps = 60
    log = MemoryRecordLog()

    def agent(*replies: Any) -> Agent:
        llm = MockLLM(sequential_responses=list(replies))
        return Agent(name="scribe", llm=llm, tools=[count], durability=log, yield_after_steps=steps, verbosity=0)

    calls = [{"type": "tool_call", "tool": "count", "args": {"number": number}} for number in range(steps)]
    context = RunContext(budget=RunBudget(max_steps=steps + 1))
    rested = await agent(*calls).run_task(Task.create_infer("go", context=context))
    ended = await agent("done").resume_task(context.run_id)

    assert rested.state is TaskState.INPUT_REQUIRED
    assert (ended.state, ended.get_output()) == (TaskState.COMPLETED, "done")
    report = await RunManager(agent()).inspect(context.run_id)
    assert [evidence.arguments for evidence in report.tool_evidence] == [call["args"] for call in calls]
