"""A durable run's conversation is saved exactly once, wherever the process dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, RunContext, RunManager, Task, TaskState, Tool
from protolink.llms import MockLLM
from protolink.storage import InMemoryStorage, SQLiteStorage, Storage
from protolink.testing import DyingLog, LogDiedError, call
from tests.embed.stores import WaitingStorage
from tests.support import ListeningLLM, blocker

SAID = [
    ("user", "What is on the shelf?"),
    ("assistant", '{"type":"tool_call","tool":"look","args":{}}'),
    ("tool", '{"type":"tool_result","tool":"look","result":"milk"}'),
    ("assistant", "Milk."),
]


def look() -> str:
    """Look at the shelf."""
    return "milk"


def decide(history: Any, system_prompt: str) -> Any:
    """Look once, then answer."""
    return "Milk." if any("milk" in message["content"] for message in history.messages) else call("look")


def keeper(log: Any, storage: Storage) -> Agent:
    tools = [Tool.from_callable(look, read_only=True)]
    llm = MockLLM(response_callback=decide)
    return Agent(name="keeper", llm=llm, tools=tools, state=["conversation"], storage=storage, durability=log)


def question() -> Task:
    context = RunContext(run_id="root", session_id="alice")
    return Task.create_infer("What is on the shelf?", context=context)


def conversation(storage: Storage) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in storage.load_session("alice")]


@pytest.mark.parametrize("applied", [True, False], ids=["stored", "lost"])
async def test_wherever_the_process_dies_the_conversation_is_saved_once(applied: bool) -> None:
    """Saving comes before the end, so whoever finds no end goes on, and saves what may be saved already."""
    clean = DyingLog()
    await keeper(clean, InMemoryStorage()).run_task(question())
    for place in range(1 if applied else 2, clean.writes + 1):
        storage, task = InMemoryStorage(), question()
        log = DyingLog(dies_at=place, applied=applied)
        with pytest.raises(LogDiedError):
            await keeper(log, storage).run_task(task)
        reopened = log.reopened()
        ended = await keeper(reopened, storage).run_task(task)  # a queue delivers it again
        if ended.state is TaskState.WORKING:
            ended = await keeper(reopened, storage).resume_task("root")

        assert (place, ended.state, conversation(storage)) == (place, TaskState.COMPLETED, SAID)


async def test_an_end_that_is_stored_has_its_conversation() -> None:
    """Nobody takes up a run that has ended, so nothing may be left to be done then."""
    clean = DyingLog()
    await keeper(clean, InMemoryStorage()).run_task(question())
    storage = InMemoryStorage()
    with pytest.raises(LogDiedError):
        await keeper(DyingLog(dies_at=clean.writes), storage).run_task(question())

    assert conversation(storage) == SAID


KILLED = """
import asyncio, os, signal, sys
from pathlib import Path
from protolink.storage import SQLiteStorage
from tests.embed.test_conversation_crashes import keeper, question

folder, when = Path(sys.argv[1]), sys.argv[2]


class Deadly(SQLiteStorage):
    def append_session(self, *arguments, **options):
        if when == "after":
            super().append_session(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)


asyncio.run(keeper(folder / "runs.db", Deadly(folder / "app.db")).run_task(question()))
"""


def exit_status_of(program: str, *arguments: object) -> int:
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=environment, timeout=60, check=False).returncode


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_process_that_is_killed_while_it_saves(when: str, tmp_path: Path) -> None:
    """SIGKILL right before, or right after, the conversation is in the file: the next process makes it right."""
    assert exit_status_of(KILLED, tmp_path, when) == -signal.SIGKILL
    storage = SQLiteStorage(tmp_path / "app.db")
    assert conversation(storage) == (SAID if when == "after" else [])

    (left,) = await RunManager(keeper(tmp_path / "runs.db", storage)).list()
    ended = await keeper(tmp_path / "runs.db", storage).resume_task(left.run_id)

    assert (ended.state, conversation(storage)) == (TaskState.COMPLETED, SAID)


def slow_keeper(log: Any, storage: Storage) -> Agent:
    llm = MockLLM(sequential_responses=[call("look")])
    options: dict[str, Any] = {"state": ["conversation"], "storage": storage, "yield_after_steps": 1}
    return Agent(name="keeper", llm=llm, tools=[look], durability=log, **options)


async def test_a_stored_run_that_is_called_off_leaves_its_conversation() -> None:
    """Its end and its conversation are one step for whoever asks, and asking again adds nothing."""
    storage = InMemoryStorage()
    log = DyingLog()
    assert (await slow_keeper(log, storage).run_task(question())).state is TaskState.INPUT_REQUIRED
    assert conversation(storage) == []
    dying = log.reopened(dies_at=1, applied=False)
    with pytest.raises(LogDiedError):
        await slow_keeper(dying, storage).cancel_stored("root")
    ended = await slow_keeper(dying.reopened(), storage).cancel_stored("root")

    assert (ended.state, conversation(storage)) == (TaskState.CANCELED, SAID[:3])


async def test_whoever_cancels_the_loop_while_it_is_saved_changes_no_end() -> None:
    """The answer was given; a host that shuts down meanwhile has not canceled anything that was still to be done."""
    async with blocker() as disk:
        storage = WaitingStorage(before_writing=disk.wait)
        agent = Agent(name="reader", llm=ListeningLLM("answer"), state=["conversation"], storage=storage)
        handle = agent.start_run("go", session_id="alice")
        await disk.entered.wait()
        (driving,) = [task for task in asyncio.all_tasks() if handle.run_id in task.get_name()]
        driving.cancel()
        disk.release()
        result = await handle.result()

    assert (result.status, result.output) == ("completed", "answer")
    assert [text for _, text in conversation(storage)] == ["go", "answer"]
