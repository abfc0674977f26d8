"""A session's conversation goes on from run to run, whatever happens to one of them."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, ConfigurationError, RunHandle, Task, TaskExecutionError
from protolink.storage import InMemoryRunStore, InMemoryStorage, SQLiteStorage, Storage
from protolink.testing import ManualClock, call, calls, use_environment
from tests.embed.stores import BrokenStorage, WaitingStorage
from tests.support import ListeningLLM, blocker, seen, turns


def chatty(llm: ListeningLLM, storage: Storage | None = None, **options: Any) -> Agent:
    return Agent(name="reader", llm=llm, state=["conversation"], storage=storage, **options)


def said(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages]


@pytest.mark.parametrize("kept", [True, False])
async def test_a_session_goes_on(kept: bool) -> None:
    """With a storage or, as long as the agent lives, without one."""
    llm = ListeningLLM("1st answer", "2nd answer", "3rd answer")
    agent = chatty(llm, InMemoryStorage() if kept else None)
    for question in ("1st", "2nd", "3rd"):
        await agent.invoke(question, session_id="alice")
    await agent.invoke("other", session_id="bob")

    assert said(llm.heard[2]) == ["1st", "1st answer", "2nd", "2nd answer", "3rd"]
    assert said(llm.heard[3]) == ["other"]


async def test_a_session_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Another process with the same file and namespace reads what this one has written."""
    first, second = ListeningLLM("first answer"), ListeningLLM("second answer")
    await chatty(first, SQLiteStorage(tmp_path / "app.db")).invoke("first", session_id="alice")
    await chatty(second, SQLiteStorage(tmp_path / "app.db")).invoke("second", session_id="alice")

    assert said(second.heard[0]) == ["first", "first answer", "second"]


async def test_a_run_without_a_session_neither_reads_nor_writes() -> None:
    """There is no conversation that it could belong to."""
    agent = chatty(ListeningLLM("answer"), BrokenStorage(reads=True, writes=True))

    assert await agent.invoke("go") == "answer"


async def test_a_tool_task_does_not_touch_the_conversation() -> None:
    """It asks no model, so it needs no history and adds none."""
    agent = chatty(ListeningLLM(), BrokenStorage(reads=True, writes=True), tools=[len_of])
    task = await agent.run_task(Task.create_tool_call("len_of", {"text": "abc"}, session_id="alice"))

    assert task.get_output() == 3


def len_of(text: str) -> int:
    """Count characters."""
    return len(text)


@pytest.mark.parametrize("store", [None, InMemoryRunStore()])
async def test_the_next_run_may_start_when_the_events_have_ended(store: InMemoryRunStore | None) -> None:
    """A page that reads the stream and not the result must not lose the turn that it has just shown."""
    async with blocker() as disk:
        llm = ListeningLLM("first answer", "second answer")
        agent = chatty(llm, WaitingStorage(before_writing=disk.wait))
        first = agent.start_run("first", session_id="alice", store=store)
        reading = asyncio.create_task(read_to_the_end(first))
        await disk.entered.wait()
        await turns(10)
        assert not reading.done()
        disk.release()
        await reading
        await agent.start_run("second", session_id="alice").result()

    assert said(llm.heard[1]) == ["first", "first answer", "second"]


async def read_to_the_end(handle: RunHandle) -> None:
    async for _ in handle.events():
        pass


async def test_runs_of_one_session_that_end_together_both_keep_their_messages() -> None:
    """Neither overwrites what the other has said in the meantime."""
    storage = InMemoryStorage()
    agent = chatty(ListeningLLM(), storage)
    handles = [agent.start_run(f"question {number}", session_id="alice") for number in range(4)]
    await asyncio.gather(*(handle.result() for handle in handles))

    questions = [message["content"] for message in storage.load_session("alice") if message["role"] == "user"]
    assert sorted(questions) == [f"question {number}" for number in range(4)]


async def test_a_failed_run_leaves_every_call_with_a_result() -> None:
    """A provider refuses a history in which a call has no answer."""

    def fail(number: int) -> str:
        """Fail."""
        raise OSError("broken")

    storage = InMemoryStorage()
    llm = ListeningLLM(calls(call("fail", number=1), call("fail", number=2)), tool_calling="native")
    handle = chatty(llm, storage, tools=[fail]).start_run("go", session_id="alice")

    assert (await handle.result()).status == "failed"
    assert_answered(storage.load_session("alice"), 2)


async def test_a_canceled_run_leaves_every_call_with_a_result() -> None:
    """The next question finds a conversation that it can follow."""
    started = asyncio.Event()

    async def wait(number: int) -> None:
        """Wait for ever."""
        started.set()
        await asyncio.Event().wait()

    storage = InMemoryStorage()
    llm = ListeningLLM(calls(call("wait", number=1), call("wait", number=2)), tool_calling="native")
    handle = chatty(llm, storage, tools=[wait]).start_run("go", session_id="alice")
    await started.wait()
    await handle.cancel()

    assert (await handle.result()).status == "canceled"
    assert_answered(storage.load_session("alice"), 2)


def assert_answered(messages: tuple[dict[str, Any], ...], number: int) -> None:
    asked = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    answered = [message["tool_call_id"] for message in messages if message["role"] == "tool"]
    assert len(asked) == number
    assert answered == asked


async def test_a_conversation_that_cannot_be_read_fails_the_run(caplog: pytest.LogCaptureFixture) -> None:
    """An answer that ignores what was said before would be worse than none; the model is not asked."""
    llm = ListeningLLM("answer")
    agent = chatty(llm, BrokenStorage(reads=True))
    with pytest.raises(TaskExecutionError, match="the disk is gone") as caught:
        await agent.invoke("go", session_id="alice")

    assert caught.value.code == "storage_failed"
    assert isinstance(caught.value.__cause__, OSError)
    assert llm.heard == []
    assert [record.levelno for record in caplog.records if record.name == "protolink"] == [logging.ERROR]


async def test_a_stored_message_without_text_fails_the_run() -> None:
    """Something else wrote into the session; what a model would make of it is unknown."""
    storage = InMemoryStorage()
    storage.append_session("alice", [{"role": "user"}])
    handle = chatty(ListeningLLM(), storage).start_run("go", session_id="alice")

    result = await handle.result()
    assert result.status == "failed"
    assert result.task.metadata["error"]["code"] == "storage_failed"


async def test_a_conversation_that_cannot_be_saved_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The answer exists and is given; the operator is told."""
    agent = chatty(ListeningLLM("answer"), BrokenStorage(writes=True))

    assert await agent.invoke("go", session_id="alice") == "answer"
    assert [record.levelno for record in caplog.records if record.name == "protolink"] == [logging.ERROR]
    assert "the disk is full" in caplog.text


async def test_a_slow_storage_stops_neither_the_loop_nor_another_run() -> None:
    """A disk that takes its time costs the run that waits for it, and nobody else."""
    async with blocker() as disk:
        agent = chatty(ListeningLLM("answer"), WaitingStorage(before_reading=disk.wait))
        slow = agent.start_run("go", session_id="alice")
        await disk.entered.wait()

        assert await agent.invoke("go") == "answer"
        disk.release()
        assert (await slow.result()).status == "completed"


async def test_a_run_can_be_canceled_while_it_waits_for_its_conversation() -> None:
    """The model is never asked, and a session that the run has not seen gets nothing added."""
    async with blocker() as disk:
        llm = ListeningLLM("answer")
        storage = WaitingStorage(before_reading=disk.wait)
        handle = chatty(llm, storage).start_run("go", session_id="alice")
        await disk.entered.wait()
        await handle.cancel()

        assert (await handle.result()).status == "canceled"
        disk.release()
        assert (llm.heard, storage.load_session("alice")) == ([], ())


async def test_a_storage_that_hangs_hangs_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """Neither at the beginning nor at the end."""
    clock = ManualClock()
    async with blocker() as disk:
        with use_environment(clock):
            reading = chatty(ListeningLLM(), WaitingStorage(before_reading=disk.wait)).start_run("a", session_id="s")
            writing = chatty(ListeningLLM(), WaitingStorage(before_writing=disk.wait)).start_run("b", session_id="s")
        while disk.calls < 2:
            await turns(1)
        clock.advance(60)

        assert (await reading.result()).task.metadata["error"]["code"] == "storage_failed"
        assert (await writing.result()).status == "completed"
        assert caplog.text.count("did not answer within 30 seconds") == 2


async def test_the_result_waits_until_the_conversation_is_saved() -> None:
    """Whoever has the result may exit the process."""
    async with blocker() as disk:
        storage = WaitingStorage(before_writing=disk.wait)
        handle = chatty(ListeningLLM("answer"), storage).start_run("go", session_id="alice")
        result = asyncio.create_task(handle.result())
        await disk.entered.wait()
        await turns(10)
        assert not result.done()
        disk.release()
        await result

        assert [message["content"] for message in storage.load_session("alice")] == ["go", "answer"]


async def test_the_task_of_a_run_is_there_before_its_conversation() -> None:
    """A request handler names the run in its reply's header before anything was read."""
    async with blocker() as disk:
        agent = chatty(ListeningLLM(), WaitingStorage(before_reading=disk.wait))
        handle = agent.start_run("go", session_id="alice")

        assert handle.task.id
        assert handle.context.session_id == "alice"
        disk.release()
        await handle.result()


async def test_a_consultation_is_no_part_of_a_workers_session() -> None:
    """A worker starts each delegated prompt afresh; the session that it is asked in is its parent's."""
    worker_llm = ListeningLLM("first answer", "second answer")
    storage = InMemoryStorage()
    worker = Agent(name="worker", llm=worker_llm, state=["conversation"], storage=storage)
    llm = ListeningLLM(call("worker", task="first"), "done", call("worker", task="second"), "done")
    parent = Agent(name="parent", llm=llm, subagents=[worker])
    parent.add_worker_tool("worker")
    await parent.invoke("go", session_id="alice")
    await parent.invoke("go", session_id="alice")

    assert [said(messages) for messages in worker_llm.heard] == [["first"], ["second"]]
    assert storage.load_session("alice") == ()


async def test_stored_messages_are_in_no_event() -> None:
    """Events go to the application's pages; the conversation is between the user and the model."""
    storage = InMemoryStorage()
    storage.append_session("alice", [{"role": "user", "content": "my secret"}])
    handle = chatty(ListeningLLM("answer"), storage).start_run("go", session_id="alice")
    await seen(handle, "llm.call.completed")
    report = (await handle.result()).report

    assert "my secret" not in str(report.to_dict())


async def test_sessions_of_many_users_at_once_stay_apart(tmp_path: Path) -> None:
    """Each reads what was said in it and nothing else, whatever is saved beside it."""
    storage = SQLiteStorage(tmp_path / "app.db")
    agent = chatty(ListeningLLM(), storage)

    async def talk(user: str) -> None:
        for number in range(3):
            await agent.invoke(f"{user} {number}", session_id=user)

    users = [f"user{number}" for number in range(12)]
    await asyncio.gather(*map(talk, users))

    for user in users:
        questions = [said for said in map(str, storage.load_session(user)) if "'role': 'user'" in said]
        assert [f"{user} {number}" in said for number, said in enumerate(questions)] == [True] * 3


async def test_agents_in_one_file_have_conversations_of_their_own(tmp_path: Path) -> None:
    """Two agents that talk with the same user do not read each other's."""
    first, second = ListeningLLM("first answer"), ListeningLLM("second answer")
    await chatty(first, SQLiteStorage(tmp_path / "app.db", namespace="a")).invoke("first", session_id="alice")
    await chatty(second, SQLiteStorage(tmp_path / "app.db", namespace="b")).invoke("second", session_id="alice")

    assert said(second.heard[0]) == ["second"]


TALKING = """
import asyncio, sys
from protolink import Agent
from protolink.llms import MockLLM
from protolink.storage import SQLiteStorage

path, name = sys.argv[1:]
agent = Agent(name="reader", llm=MockLLM(default_response=f"to {name}"), state=["conversation"],
              storage=SQLiteStorage(path))


async def main():
    await asyncio.gather(*(agent.invoke(f"{name} {number}", session_id="alice") for number in range(8)))


asyncio.run(main())
"""


def test_two_processes_talk_in_one_session(tmp_path: Path) -> None:
    """Every question is followed by its answer, and none is lost."""
    names = ["first", "second"]
    processes = [subprocess.Popen([sys.executable, "-c", TALKING, str(tmp_path / "app.db"), name]) for name in names]
    assert [process.wait(60) for process in processes] == [0, 0]

    texts = said(list(SQLiteStorage(tmp_path / "app.db").load_session("alice")))
    assert sorted(texts[::2]) == sorted(f"{name} {number}" for name in names for number in range(8))
    assert texts[1::2] == [f"to {question.split()[0]}" for question in texts[::2]]


@pytest.mark.parametrize("storage", ["app.db", object(), {}])
def test_what_is_no_storage_is_refused(storage: Any) -> None:
    """At the constructor, not in the first run."""
    with pytest.raises(ConfigurationError, match="storage"):
        Agent(name="reader", storage=storage)
