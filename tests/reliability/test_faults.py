"""Faults of the world around a run: locked stores, odd models, slow readers, signals, sizes, changed code."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sqlite3
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from protolink import (
    Agent,
    CapabilityPolicy,
    CheckpointMismatchError,
    RunBudget,
    RunInterruption,
    TaskState,
    UncertainExecutionError,
)
from protolink._core.records import ActionCompleted, ActionStarted, ModelFailed
from protolink.durable.memory import MemoryRecordLog
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import DurableExecutionError, StoreBusyError
from protolink.llms import LLM, LLMReply, LLMRequest, ToolCall
from protolink.testing import call, calls
from protolink.tools import Tool
from tests.reliability.facts import fold, of_kind
from tests.reliability.host import Host, Process
from tests.reliability.scale import scaled
from tests.reliability.sites import Site, new_folder
from tests.reliability.tally import Tally
from tests.reliability.teams import KINDS, ROOT, FileWorld, Operator, Player, World, acting, task
from tests.support import turns

HOLDERS = scaled(commit=1, short=2, full=8)
"""Programs that lock the store, one after the other."""


@pytest.mark.fault(name="F8")
async def test_a_store_that_is_locked_for_a_while_delays_a_run_and_no_more(
    memory: Path, host: Host, tally: Tally
) -> None:
    """Another program holds the file's write lock while the run wants to take its next step."""
    for number in range(HOLDERS):
        site = Site(new_folder(memory, str(number)), host)
        await KINDS["yield"].start(site.agent("yield"))
        holder = host.start("hold", folder=str(site.folder))
        holder.until("held")
        resumed = asyncio.ensure_future(site.agent("yield").resume_task(ROOT))
        await turns(1000)
        assert not resumed.done()
        assert site.world.calls == 1

        holder.tell()

        assert (await resumed).state is TaskState.INPUT_REQUIRED
        assert site.world.calls == 2
        tally.add("locks for a while")
        await site.log().close()


@pytest.mark.fault(name="F8")
async def test_a_store_that_stays_locked_is_a_clear_error_and_no_outcome(site: Site) -> None:
    """Nothing was entered, and when the lock is gone the run goes on."""
    await KINDS["yield"].start(site.agent("yield"))
    holder = site.host.start("hold", folder=str(site.folder))
    holder.until("held")
    impatient = KINDS["yield"].build(SQLiteRecordLog(site.path, busy_timeout=0.1), FileWorld(site.folder))

    with pytest.raises(StoreBusyError):
        await impatient.resume_task(ROOT)

    assert site.world.calls == 1
    holder.tell()
    holder.end()
    assert (await impatient.resume_task(ROOT)).state is TaskState.INPUT_REQUIRED


@pytest.mark.fault(name="F8")
async def test_a_store_that_is_locked_while_an_action_runs_leaves_the_action_uncertain(site: Site) -> None:
    """Its effect has happened and its receipt could not be stored, so somebody has to look."""
    world = FileWorld(site.folder)
    held: list[Process] = []

    async def act(value: int) -> int:
        """Have the effect; meanwhile somebody takes the lock."""
        result = world.act(value)
        if not held:
            holder = site.host.start("hold", folder=str(site.folder))
            holder.until("held")
            held.append(holder)
        return result

    def agent() -> Agent:
        log = SQLiteRecordLog(site.path, busy_timeout=0.1)
        return Agent(name="a", llm=Player(world.asked, call("act", value=1)), tools=[act], durability=log)

    with pytest.raises(StoreBusyError):
        await agent().run_task(task())
    held[0].tell()
    held[0].end()

    with pytest.raises(UncertainExecutionError) as caught:
        await agent().resume_task(ROOT)
    assert site.world.effects == [caught.value.action_id]


@pytest.mark.fault(name="F6")
async def test_a_disk_that_is_full_ends_the_attempt_and_never_the_run(site: Site, tally: Tally) -> None:
    """The kernel lets no file of the process grow any further: at every size a different write fails."""
    answered = 0
    for kilobytes in range(40, 200, 8):
        folder = site.folder / str(kilobytes)
        folder.mkdir()
        small = Site(folder, site.host)
        process = small.process("attend", "tool", largest_file=kilobytes * 1024)
        try:
            process.end()
            answered += 1
        except EOFError:
            assert process.wait() == 1
            tally.add("full disks")
        operator = Operator(KINDS["tool"], small.world)
        outcome = await operator.attend(small.agent("tool"))
        assert outcome.task.state is TaskState.COMPLETED
        assert len(small.world.effects) == len(set(small.world.effects)) == 2
    assert 0 < answered < 20, "the fault was not reached, or nothing else was"


DEEP = "[" * 100_000

ODD_REPLIES: dict[str, Any] = {
    "nothing": None,
    "a number": 5,
    "bytes": b"done",
    "a list": ["done"],
    "an empty text": LLMReply(text=""),
    "no text": LLMReply(text=cast("str", None)),
    "an unknown type": LLMReply(text='{"type": "launch", "target": "all"}'),
    "an unknown tool": LLMReply(text='{"type": "tool_call", "tool": "launch", "args": {}}'),
    "no arguments": LLMReply(text='{"type": "tool_call", "tool": "act"}'),
    "wrong arguments": LLMReply(text='{"type": "tool_call", "tool": "act", "args": {"value": "one"}}'),
    "arguments of another type": LLMReply(text='{"type": "tool_call", "tool": "act", "args": [1]}'),
    "an argument too many": LLMReply(text='{"type": "tool_call", "tool": "act", "args": {"value": 1, "more": 2}}'),
    "two different actions": LLMReply(text='{"type": "tool_call"} {"type": "final", "content": 1}'),
    "a lone surrogate": LLMReply(text="\ud800 done"),
    "a lone surrogate as an argument": LLMReply(text='{"type":"tool_call","tool":"act","args":{"value":"\\ud800"}}'),
    "a NUL": LLMReply(text="do\x00ne"),
    "terminal codes": LLMReply(text="\x1b[2J\x1b]0;owned\x07done"),
    "two megabytes": LLMReply(text="x" * 2_000_000),
    "a hundred thousand brackets": LLMReply(text=DEEP),
    "deep arguments": LLMReply(text='{"type":"tool_call","tool":"act","args":{"value":' + DEEP + "]" * 100_000 + "}}"),
    "NaN as an argument": LLMReply(text='{"type": "tool_call", "tool": "act", "args": {"value": NaN}}'),
    "a huge number": LLMReply(text='{"type": "tool_call", "tool": "act", "args": {"value": 1e999}}'),
    "a long number": LLMReply(text='{"type":"tool_call","tool":"act","args":{"value":' + "9" * 10_000 + "}}"),
    "a native call of nobody": LLMReply(calls=(ToolCall(name="", arguments={}, id=""),)),
    "a native call with garbage": LLMReply(calls=(ToolCall(name="act", arguments="{", id="1"),)),
    "too many calls": LLMReply(calls=tuple(ToolCall(name="act", arguments={}, id=str(n)) for n in range(1000))),
}


class Odd(LLM):
    """Says something odd first, and then that it is done."""

    blocking = False
    provider = "test"
    model = "odd"

    def __init__(self, reply: Any) -> None:
        self._reply = reply
        self._said = False

    def respond(self, request: LLMRequest) -> LLMReply:
        """The odd thing, once."""
        if self._said:
            return LLMReply(text="done")
        self._said = True
        return cast("LLMReply", self._reply)


@pytest.mark.fault(name="F13")
@pytest.mark.parametrize("name", ODD_REPLIES)
async def test_an_odd_reply_enters_no_action_and_leaves_a_run_that_can_be_read(name: str, tmp_path: Path) -> None:
    """It is stored, restored, and either answered, corrected, or the provider's fault; never the process's end."""
    path, world = tmp_path / "runs.sqlite", World()

    def agent() -> Agent:
        return Agent(name="a", llm=Odd(ODD_REPLIES[name]), tools=[acting(world)], durability=path)

    ended = await agent().run_task(task())
    rows = await SQLiteRecordLog(path).read(ROOT)
    assert world.effects == []
    assert not of_kind(rows, ActionStarted)
    assert (ended.state is TaskState.COMPLETED) is not bool(of_kind(rows, ModelFailed))
    fold(rows)

    again = Agent(name="a", llm=Odd(LLMReply(text="done")), tools=[acting(world)], durability=path)

    assert (await again.resume_task(ROOT)).state is TaskState.COMPLETED
    assert world.effects == []


def mutated(text: str, chance: random.Random) -> str:
    """A text in which some characters are others, are missing or stand twice; or nothing of it at all."""
    if chance.random() < 0.3:
        return bytes(chance.randrange(256) for _ in range(chance.randrange(200))).decode("utf-8", "surrogateescape")
    characters = list(text)
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(characters))
        characters[place : place + chance.randint(0, 2)] = chance.choices(
            '{}[]":,\\ua0\ud800\x00 tool', k=chance.randint(0, 3)
        )
    return "".join(characters)


REPLIES = scaled(commit=100, short=500, full=10_000)


@pytest.mark.fault(name="F13")
async def test_no_mutation_of_a_reply_enters_an_action_or_ends_the_process(tally: Tally) -> None:
    """What is said never names a tool that exists, however it is read."""
    chance, world, said = random.Random(20_266), World(), '{"type": "tool_call", "tool": "launch", "args": {"v": 1}}'

    for _ in range(REPLIES):
        agent = Agent(name="a", llm=Odd(LLMReply(text=mutated(said, chance))), tools=[acting(world)], verbosity=0)
        ended = await agent.run_task(task())
        assert ended.state in (TaskState.COMPLETED, TaskState.FAILED)
        tally.add("mutated replies")

    assert world.effects == []


FLIPS = scaled(commit=60, short=300, full=10_000)


@pytest.mark.fault(name="F9")
async def test_a_bit_that_was_flipped_under_a_paused_run_changes_no_answer(memory: Path, tally: Tally) -> None:
    """Wherever it is: the run comes to the end that it would have come to, or is refused."""
    chance, whole = random.Random(20_267), memory / "whole.sqlite"
    log = SQLiteRecordLog(whole)
    paused = await KINDS["yield"].start(KINDS["yield"].build(log, World()))
    assert paused.state is TaskState.INPUT_REQUIRED
    await log.close()
    content, outcomes = whole.read_bytes(), Counter[str]()

    for number in range(FLIPS):
        damaged, place = bytearray(content), chance.randrange(len(content))
        damaged[place] ^= 1 << chance.randrange(8)
        path = memory / f"{number}.sqlite"
        path.write_bytes(damaged)
        log = SQLiteRecordLog(path)
        try:
            outcome = await Operator(KINDS["yield"], World()).attend(KINDS["yield"].build(log, World()))
        except DurableExecutionError as error:
            outcomes[type(error).__name__] += 1
        else:
            outcomes["went on"] += 1
            assert outcome.answer == "seen ['1', '2', '3']", f"a flipped bit of byte {place} changed the answer"
        await log.close()
        tally.add("flips under a paused run")
        for file in memory.glob(f"{number}.*"):
            file.unlink()

    assert set(outcomes) <= {"went on", "StoreDamagedError", "StoreVersionError", "StoreError"}
    assert outcomes["went on"] > 0
    assert outcomes["StoreDamagedError"] > 5
    tally.add("refused", FLIPS - outcomes["went on"])


@pytest.mark.fault(name="F13")
async def test_half_a_character_anywhere_keeps_no_run_from_being_stored(tmp_path: Path) -> None:
    """In a prompt, and in an exception's words, where a file's name has brought it."""
    path = tmp_path / "runs.sqlite"

    async def act(value: int) -> int:
        """Look for a file."""
        raise FileNotFoundError("no file caf\udce9")

    agent = Agent(name="a", llm=Player(lambda: None, call("act", value=1)), tools=[act], durability=path)
    ended = await agent.run_task(task("find caf\udce9"))

    again = await agent.resume_task(ROOT)
    assert ended.state is again.state is TaskState.FAILED
    assert "caf\\udce9" in again.metadata["error"]["message"]


@pytest.mark.fault(name="F13")
async def test_a_model_that_hangs_can_be_waited_for_as_long_as_the_run_may_last() -> None:
    """The deadline breaks the call off; the run ends as over its budget, with no action entered."""
    world, log = World(), MemoryRecordLog()

    class Hanging(LLM):
        blocking = False

        async def respond(self, request: LLMRequest) -> LLMReply:
            await asyncio.Event().wait()
            raise AssertionError("nobody set it")

    agent = Agent(name="a", llm=Hanging(), tools=[acting(world)], durability=log)
    ended = await agent.run_task(task(budget=RunBudget(max_runtime_seconds=0.05)))

    assert ended.metadata["error"]["code"] == "budget_exceeded"
    assert world.effects == []
    assert (await log.get(ROOT)).owner is None  # type: ignore[union-attr]


TALK_STEPS = scaled(commit=200, short=500, full=2_000)
TALK_READERS = scaled(commit=10, short=20, full=50)


def talkative(world: World, log: Any, steps: int, size: int) -> Agent:
    """An agent with large results."""

    async def fetch(number: int) -> str:
        """Fetch a page."""
        return f"{number} ".ljust(size, "x")

    model = Player(world.asked, *(call("fetch", number=number) for number in range(steps)), "done")
    return Agent(name="talkative", llm=model, tools=[fetch], expose_tool_results=True, durability=log)


async def _peak(readers: Callable[[Any], list[Any]]) -> int:
    """The most memory that a run with such readers takes."""
    tracemalloc.start()
    try:
        agent = talkative(World(), MemoryRecordLog(), TALK_STEPS, 10_000_000 // TALK_STEPS)
        handle = agent.start_run(task(budget=RunBudget(max_steps=TALK_STEPS + 100)))
        reading = readers(handle)
        result = await handle.result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.error is None
    for one in reading:
        if isinstance(one, asyncio.Task):
            one.cancel()
    await asyncio.gather(*(one for one in reading if isinstance(one, asyncio.Task)), return_exceptions=True)
    return peak


@pytest.mark.fault(name="F12")
async def test_a_reader_that_never_reads_or_reads_slowly_costs_no_memory(tally: Tally) -> None:
    """Ten megabytes of results go past readers; a reader is a place in the list."""

    async def first_only(handle: Any) -> None:
        async for _ in handle.events():
            await asyncio.Event().wait()

    alone = await _peak(lambda handle: [])
    watched = await _peak(
        lambda handle: [handle.events(), *(asyncio.ensure_future(first_only(handle)) for _ in range(TALK_READERS))]
    )

    tally.add("steps", TALK_STEPS)
    tally.add("readers", TALK_READERS + 1)
    tally.see("MB that they cost", (watched - alone) / 1e6)
    assert watched - alone < 2_000_000


@pytest.mark.fault(name="F12")
async def test_a_slow_reader_sees_every_numbered_event() -> None:
    """It reads one event while the run makes many, and has missed none at the end."""
    handle = talkative(World(), MemoryRecordLog(), 100, 100).start_run(task(budget=RunBudget(max_steps=300)))
    sequences: list[int] = []
    behind = 0
    async for event in handle.events():
        sequences.append(event.sequence)
        behind = max(behind, len(handle.report.events) - len(sequences)) if len(sequences) % 50 == 1 else behind
        await turns(20)

    assert sequences == list(range(1, len(sequences) + 1))
    assert behind > 20, "the reader was never behind"


@pytest.mark.fault(name="F19")
async def test_a_process_that_is_terminated_in_an_action_leaves_it_uncertain(site: Site) -> None:
    """Without a handler SIGTERM is a kill like any other."""
    process = site.process("start", "tool", "acted")
    process.until("acted")
    process.signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM

    told = site.process("resume", "tool").end()

    assert told["error"] == "UncertainExecutionError"
    assert site.world.effects == [told["action_id"]]


@pytest.mark.fault(name="F19")
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
async def test_a_server_that_is_terminated_ends_its_runs_and_leaves_in_time(
    signals: list[signal.Signals], memory: Path, host: Host, tally: Tally
) -> None:
    """Twenty runs, half of them in actions and half in model calls; each is canceled, none is lost."""
    for one in range(scaled(commit=1, short=3, full=34)):
        site = Site(new_folder(memory, str(one)), host)
        server = host.start("serve", folder=str(site.folder), runs=20)
        server.until("at work")
        for number in signals:
            server.signal(number)

        assert server.end() == "terminated"
        assert server.wait() == 0

        tally.add("servers of 20 runs")
        infos = await site.log().list(limit=100)
        assert [(info.status, info.owner) for info in infos] == [("canceled", None)] * 20
        assert len(site.world.effects) == 10
        await site.log().close()


@pytest.mark.fault(name="F22")
async def test_a_large_result_is_stored_once(memory: Path, tally: Tally) -> None:
    """Ten megabytes from a tool, given twice, through a pause and a resume."""
    for number in range(scaled(commit=1, short=5, full=50)):
        await _large_result(memory / f"{number}.sqlite", chr(ord("a") + number % 26))
        tally.add("MB of results", 20)
        for file in memory.iterdir():
            file.unlink()


async def _large_result(path: Path, letter: str) -> None:
    world, size = World(), 10_000_000
    log = SQLiteRecordLog(path)

    def agent(log: SQLiteRecordLog) -> Agent:
        async def fetch(number: int) -> str:
            """Fetch a page."""
            return letter * size

        def last(asked: Any = None) -> Player:
            return Player(world.asked, call("fetch", number=1), call("fetch", number=2), "read")

        return Agent(name="a", llm=last(), tools=[fetch], durability=log, yield_after_steps=1)

    current = await agent(log).run_task(task())
    while current.state is TaskState.INPUT_REQUIRED:
        current = await agent(log).resume_task(ROOT)
    assert current.state is TaskState.COMPLETED
    receipts = cast("list[ActionCompleted]", of_kind(await log.read(ROOT), ActionCompleted))
    assert [len(one.result) for one in receipts] == [size, size]
    await log.close()

    assert path.stat().st_size <= 1.2 * size


def nested(depth: int) -> Any:
    """A list in a list in a list."""
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.fault(name="F23")
@pytest.mark.parametrize("depth", [98, 99, 100, 101, 10_000])
async def test_a_result_that_is_nested_deeply_is_stored_and_restored(depth: int, tmp_path: Path) -> None:
    """As it is, or cut and said to be; it is the same for the process that goes on."""
    path, world = tmp_path / "runs.sqlite", World()

    def agent() -> Agent:
        async def fetch(number: int) -> Any:
            """Fetch something odd."""
            return nested(depth)

        model = Player(world.asked, call("fetch", number=1), "read")
        return Agent(name="a", llm=model, tools=[fetch], durability=path, yield_after_steps=1)

    paused = await agent().run_task(task())
    assert paused.state is TaskState.INPUT_REQUIRED
    ended = await agent().resume_task(ROOT)

    (receipt,) = cast("list[ActionCompleted]", of_kind(await SQLiteRecordLog(path).read(ROOT), ActionCompleted))
    assert ended.state is TaskState.COMPLETED
    assert receipt.rendered is (depth > 99)


def randomly_nested(chance: random.Random, depth: int) -> Any:
    """Lists and objects in one another, and now and then something beside them."""
    value: Any = chance.choice([None, 1, "x", [], {}])
    for _ in range(depth):
        beside: list[Any] = chance.choice([[], [1], ["x", {}]])
        value = [*beside, value] if chance.random() < 0.6 else {"a": beside, "b": value}
    return value


@pytest.mark.fault(name="F23")
async def test_results_that_are_nested_at_random_are_stored_and_restored(tally: Tally) -> None:
    """As they are, or cut and said to be; around the limit of the depth, and far behind it."""
    chance, given = random.Random(20_269), list[Any]()

    async def fetch(number: int) -> Any:
        """Fetch something odd."""
        return given[-1]

    for _ in range(scaled(commit=40, short=500, full=10_000)):
        depth = chance.choice([chance.randrange(130), chance.randrange(90, 110), chance.randrange(3_000)])
        given[:] = [randomly_nested(chance, depth)]
        log, model = MemoryRecordLog(), Player(World().asked, call("fetch", number=1), "read")
        ended = await Agent(name="a", llm=model, tools=[fetch], durability=log, verbosity=0).run_task(task())

        (receipt,) = cast("list[ActionCompleted]", of_kind(await log.read(ROOT), ActionCompleted))
        assert ended.state is TaskState.COMPLETED
        assert receipt.rendered or receipt.result == given[0]
        tally.add("nestings cut" if receipt.rendered else "nestings kept")

    assert min(tally["nestings cut"], tally["nestings kept"]) > 0


@pytest.mark.fault(name="F23")
async def test_arguments_that_are_nested_deeply_wait_for_an_approval_and_are_used(tmp_path: Path) -> None:
    """What a person is asked about holds the arguments, and what a list of runs shows must not refuse them."""
    path, world = tmp_path / "runs.sqlite", World()

    def agent() -> Agent:
        async def act(value: list[Any]) -> int:
            """Take something odd."""
            return world.act(len(json.dumps(value)))

        model = Player(world.asked, call("act", value=nested(85)), "used")
        tool = Tool.from_callable(act, capabilities=["world.write"])
        policy = CapabilityPolicy({"world.write": "require_approval"})
        return Agent(name="a", llm=model, tools=[tool], policy=policy, durability=path)

    paused = await agent().run_task(task())
    interruption = RunInterruption.from_task(paused)
    assert interruption is not None
    ended = await agent().resume_task(ROOT, request_id=interruption.request_id, approved=True)

    assert ended.state is TaskState.COMPLETED
    assert len(world.effects) == 1


class Assistant:
    """A run that paused under one version of an application."""

    def __init__(self) -> None:
        self.world, self.log = World(), MemoryRecordLog()

    def agent(self, **changes: Any) -> Agent:
        """The application's agent, in this version or another."""

        async def search(words: str) -> str:
            """Search the archive."""
            return f"found {words}"

        other = changes.pop("tool", {})
        tools = [Tool.from_callable(search, **other), acting(self.world), *changes.pop("more_tools", [])]
        rules: dict[str, Any] = {"world.read": "allow", "world.write": "require_approval"}
        child = Agent(
            name="worker",
            llm=Player(self.world.asked),
            tools=[acting(self.world)],
            system_prompt=changes.pop("worker_prompt", "Work."),
        )
        settings: dict[str, Any] = {
            "name": "assistant",
            "llm": Player(self.world.asked, call("search", words="a"), "done"),
            "tools": tools,
            "system_prompt": "Assist.",
            "policy": CapabilityPolicy(rules),
            "subagents": [child],
            "yield_after_steps": 1,
            "durability": self.log,
        }
        return Agent(**{**settings, **changes})


class OtherModel(Player):
    """The same player under another name."""

    model = "another"


async def extra() -> int:
    """One tool more."""
    return 1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another name": ({"name": "helper"}, "name"),
    "another prompt": ({"system_prompt": "Assist quickly."}, "system_prompt"),
    "another slice": ({"yield_after_steps": 2}, "yield_after_steps"),
    "another version": ({"execution_version": "2"}, "execution_version"),
    "another model": ({"llm": OtherModel(lambda: None)}, "model"),
    "no policy": ({"policy": None}, "policies"),
    "another rule": (
        {"policy": CapabilityPolicy({"world.read": "deny", "world.write": "require_approval"})},
        "policies",
    ),
    "another description": ({"tool": {"description": "Search everything."}}, "tool search"),
    "another capability": ({"tool": {"capabilities": ["world.read"]}}, "tool search"),
    "another declaration": ({"tool": {"read_only": True}}, "tool search"),
    "one tool more": ({"more_tools": [extra]}, "tool extra"),
    "another worker's prompt": ({"worker_prompt": "Work hard."}, "child worker: system_prompt"),
    "no worker": ({"subagents": []}, "child worker: name"),
    "another schema": (
        {"tool": {"input_schema": {"type": "object", "properties": {"words": {"type": "string", "maxLength": 5}}}}},
        "tool search",
    ),
}


@pytest.mark.fault(name="F25")
@pytest.mark.parametrize("name", REFUSED)
async def test_a_change_that_matters_is_refused_by_its_name(name: str) -> None:
    """Nothing was executed or written, and the unchanged application can go on."""
    changes, difference = REFUSED[name]
    before = Assistant()
    assert (await before.agent().run_task(task())).state is TaskState.INPUT_REQUIRED
    rows, made = await before.log.read(ROOT), before.world.calls

    with pytest.raises(CheckpointMismatchError) as caught:
        await before.agent(**changes).resume_task(ROOT)

    assert difference in caught.value.differences
    assert difference in str(caught.value)
    assert (await before.log.read(ROOT), before.world.calls) == (rows, made)
    assert (await before.agent().resume_task(ROOT)).state is TaskState.COMPLETED


ACCEPTED: dict[str, dict[str, Any]] = {
    "the same once more": {},
    "another order of keys": {
        "policy": CapabilityPolicy(cast("Any", {"world.write": "require_approval", "world.read": "allow"}))
    },
    "another order of tools": {"order": "reversed"},
    "more threads": {"max_sync_workers": 9},
    "more to log": {"verbosity": 0},
    "public results": {"expose_tool_results": True},
    "a handler for approvals": {"approval_handler": lambda request, context: True},
}


@pytest.mark.fault(name="F25")
@pytest.mark.parametrize("name", ACCEPTED)
async def test_a_change_that_does_not_matter_is_accepted(name: str) -> None:
    """The run goes on under it."""
    changes = dict(ACCEPTED[name])
    before = Assistant()
    await before.agent().run_task(task())
    if changes.pop("order", None):
        changes["tools"] = list(reversed(list(before.agent().tools.values())))

    assert (await before.agent(**changes).resume_task(ROOT)).state is TaskState.COMPLETED


@pytest.mark.fault(name="F26")
async def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    """As after `touch`, or after a process that died while it made the file."""
    path = tmp_path / "runs.sqlite"
    path.touch()

    ended = await KINDS["tool"].build(SQLiteRecordLog(path), World()).run_task(task())

    assert ended.state is TaskState.COMPLETED


async def test_a_file_that_is_removed_under_a_run_is_noticed(tmp_path: Path) -> None:
    """What is written where nobody would find it again is not written."""
    path, world = tmp_path / "runs.sqlite", World()

    async def act(value: int) -> int:
        """Have the effect, and lose the file."""
        path.unlink()
        return world.act(value)

    agent = Agent(name="a", llm=Player(world.asked, calls(call("act", value=1), call("act", value=2))), tools=[act],
                  durability=path)  # fmt: skip
    from protolink.errors import StoreError

    with pytest.raises(StoreError):
        await agent.run_task(task())
    assert len(world.effects) == 1


@pytest.mark.fault(name="F21")
@pytest.mark.time_limit(120)
async def test_a_run_of_two_thousand_steps_grows_by_its_steps_and_nothing_else(memory: Path) -> None:
    """Records and bytes per step, measured at the eighth and at the whole of the way."""
    path, world, steps = memory / "runs.sqlite", World(), 2000
    log = SQLiteRecordLog(path)
    model = Player(world.asked, *(call("act", value=10_000 + number) for number in range(steps)))
    agent = Agent(name="long", llm=model, tools=[acting(world)], durability=log)
    ended = await agent.run_task(task(budget=RunBudget(max_steps=steps + 1)))
    assert ended.state is TaskState.COMPLETED

    rows = await log.read(ROOT)
    reached = [number for number, row in enumerate(rows) if row.kind == "ModelAsked"]
    early, late = reached[steps // 8], reached[steps]
    records = late / early
    size = sum(len(row.body) for row in rows[:late]) / sum(len(row.body) for row in rows[:early])
    await log.close()
    assert len(reached) == steps + 1
    assert records == pytest.approx(8, rel=0.02)
    assert size == pytest.approx(8, rel=0.05)
    with sqlite3.connect(path) as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.close()
    assert pages * 4096 < 3 * sum(len(row.body) + 200 for row in rows)


@pytest.mark.fault(name="F21")
async def test_a_long_run_takes_little_memory_and_is_taken_up_soon(memory: Path, host: Host, tally: Tally) -> None:
    """A process drives it almost to its end, another one takes it up and ends it."""
    steps = scaled(commit=1_000, short=5_000, full=100_000)
    driven = host.start("drive_far", folder=str(memory), steps=steps).end()
    size = sum(file.stat().st_size for file in memory.iterdir())
    ended = host.start("drive_far", folder=str(memory), steps=steps).end()

    tally.add("steps", steps)
    tally.see("MB of file", size / 1e6)
    tally.see("MB of memory of a process that drives it", driven["resident"] / 1e6)
    tally.see("s to take it up and end it", ended["seconds"])
    tally.see("MB of memory of a process that takes it up", ended["resident"] / 1e6)
    assert (driven["state"], ended["state"]) == ("input-required", "completed")
    assert (driven["turns"], ended["turns"]) == (steps - 1, steps + 1)
    assert size <= 2_000 * steps
    assert max(driven["resident"], ended["resident"]) <= 70_000_000 + 10_000 * steps


@pytest.mark.fault(name="F21")
async def test_a_run_in_many_slices_grows_by_its_slices_and_nothing_else() -> None:
    """A slice late in the run is stored in as many characters as one early in it."""
    world, log, slices = World(), MemoryRecordLog(), 100

    def agent() -> Agent:
        model = Player(world.asked, *(call("act", value=100 + number) for number in range(slices)))
        return Agent(name="slow", llm=model, tools=[acting(world)], durability=log, yield_after_steps=1)

    current = await agent().run_task(task(budget=RunBudget(max_steps=slices + 1)))
    while current.state is TaskState.INPUT_REQUIRED:
        current = await agent().resume_task(ROOT)

    rows = await log.read(ROOT)
    sizes: list[int] = []
    for row in rows:
        if row.kind == "ModelAsked":
            sizes.append(0)
        if sizes:
            sizes[-1] += len(row.body)
    assert sum(sizes[-20:-10]) <= 1.1 * sum(sizes[10:20])
