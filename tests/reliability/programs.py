"""What the processes run. Each function is one program; what it returns is its last word."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path
from typing import Any

from protolink import Agent, AgentGroup, RunBudget, current_action
from protolink.durable import Lease, RecordLog, Row, RunStatus
from protolink.durable.memory import MemoryRecordLog
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import DurableExecutionError, ProtolinkError
from protolink.llms import LLM, LLMReply, LLMRequest
from protolink.testing import DyingLog, call
from protolink.testing.record_log import run_info, stored_rows
from tests.reliability.disks import Change, Disk, Mode
from tests.reliability.host import Line
from tests.reliability.teams import KINDS, ROOT, FileWorld, OpenWorld, Operator, Player, Wait, World, task

STORE = "runs.sqlite"

DISK = "disk"
"""The folder of a store whose disk is watched; the world is not on it."""


class TalkingWorld(FileWorld):
    """A world that tells the test where the process is and waits until it may go on."""

    def __init__(self, folder: Path, line: Line, points: list[str]) -> None:
        super().__init__(folder)
        self._line = line
        self._points = frozenset(points)

    def act(self, value: int = 0) -> int:
        """Have the effect, between `entered` and `acted`."""
        self._reach("entered")
        result = super().act(value)
        self._reach("acted")
        return result

    def asked(self) -> Wait | None:
        """A model call, at `asked`."""
        wait = super().asked()
        self._reach("asked")
        return wait

    def _reach(self, point: str) -> None:
        if point in self._points:
            self._line.ask(point)


async def warm_up() -> None:
    """Load and build, once and in memory, what every child would load and build for itself."""
    for kind in KINDS.values():
        world = World()
        await Operator(kind, world).attend(kind.build(MemoryRecordLog(), world))
    assert threading.active_count() == 1, "a process with threads is not one to fork"


def _agent(line: Line, folder: str, kind: str, points: list[str], log: RecordLog | None = None) -> Agent:
    place = Path(folder)
    return KINDS[kind].build(log or SQLiteRecordLog(place / STORE), TalkingWorld(place, line, points))


async def start(line: Line, *, folder: str, kind: str, points: list[str]) -> Any:
    """Start the run and await what it comes to."""
    return await _told(KINDS[kind].start(_agent(line, folder, kind, points)))


async def start_within(line: Line, *, folder: str, kind: str, points: list[str], budget: dict[str, Any]) -> Any:
    """Start the run under limits of its own."""
    return await _told(_agent(line, folder, kind, points).run_task(task(budget=RunBudget(**budget))))


async def resume(line: Line, *, folder: str, kind: str, points: list[str], **response: Any) -> Any:
    """Take the run up once."""
    return await _told(_agent(line, folder, kind, points).resume_task(ROOT, **response))


async def _told(work: Any) -> Any:
    """How it ended, as JSON, and how long that took."""
    began, waited = time.monotonic(), _kept_waiting()
    try:
        task = await work
    except ProtolinkError as error:
        told: dict[str, Any] = {"error": type(error).__name__, "message": str(error)}
        for name in ("owner", "since", "root_run_id", "run_id", "action_id", "tool_name", "arguments"):
            told[name] = getattr(error, name, None)
        return {**told, "seconds": time.monotonic() - began, "kept_waiting": _since(waited)}
    return {"state": task.state.value, "output": task.get_output(), "seconds": time.monotonic() - began}


def _kept_waiting() -> dict[str, float]:
    """How long each thread of this process was ready to run while others had the processors, in seconds."""
    waited: dict[str, float] = {}
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError):  # a thread that has just ended
            waited[thread.parent.name] = int(thread.read_text().split()[1]) / 1e9
    return waited


def _since(before: Mapping[str, float]) -> float:
    return sum(seconds - before.get(thread, 0.0) for thread, seconds in _kept_waiting().items())


async def attend(
    line: Line,
    *,
    folder: str,
    kind: str,
    points: list[str] | None = None,
    dies_at: int | None = None,
    applied: bool = True,
    timer: float | None = None,
    largest_file: int | None = None,
    statement: int | None = None,
) -> Any:
    """Take the run to its end as an operator would, unless something kills the process first."""
    if statement is not None:
        _die_at_statement(statement)
    log: RecordLog = SQLiteRecordLog(Path(folder) / STORE)
    writes = None
    if dies_at is not None:
        log = writes = DyingLog(log, dies_at=dies_at, applied=applied, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    if largest_file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    operator = Operator(KINDS[kind], FileWorld(Path(folder)))
    agent = _agent(line, folder, kind, points or [], log)
    if timer is not None:
        # Nobody handles SIGALRM, so the kernel ends the process there and then, as it does for SIGKILL.
        signal.setitimer(signal.ITIMER_REAL, timer)
    began = time.monotonic()
    outcome = await operator.attend(agent)
    return {
        "seconds": time.monotonic() - began,
        "state": outcome.task.state.value,
        "output": outcome.answer,
        "settled": outcome.uncertain,
        "writes": None if writes is None else writes.writes,
    }


def _die_at_statement(last: int) -> None:
    """Kill this process right before its n-th statement, over all connections that it will open."""
    connect, numbers = sqlite3.connect, count(1)

    def reach(statement: str) -> None:
        if next(numbers) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(*args: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **options)
        connection.set_trace_callback(reach)
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]


class MarkedWorld(FileWorld):
    """A world that puts into the trace of the disk where the process is."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        super().__init__(folder)
        self._disk = disk

    def act(self, value: int = 0) -> int:
        """Have the effect, right behind `entered` and the action."""
        self._disk.mark(f"entered {current_action().action_id}")
        return super().act(value)

    def asked(self) -> Wait | None:
        """A model call, at `asked`."""
        self._disk.mark("asked")
        return super().asked()


class MarkedLog(SQLiteRecordLog):
    """A store that puts into the trace of the disk what it has told its caller."""

    def __init__(self, path: Path, disk: Disk) -> None:
        super().__init__(path)
        self._disk = disk

    async def append(
        self,
        lease: Lease,
        expected: int,
        rows: Sequence[Row],
        *,
        status: RunStatus,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Store, then say how many records there are."""
        await super().append(lease, expected, rows, status=status, summary=summary)
        self._disk.mark(f"stored {expected + len(rows)}")


async def watched(
    line: Line, *, folder: str, kind: str, trace: str, dies_at: int | None = None, sync: int | None = None
) -> Any:
    """Take the run to its end on a disk that is watched.

    The process is killed behind its n-th write, where one is told, and one of its syncs fails.
    """
    place, disk = Path(folder), Disk()
    disk.watch(place / DISK, Path(trace))
    if sync is not None:
        disk.fail([Change.SYNC], sync, mode=Mode.ONCE)
    world, store = MarkedWorld(place, disk), MarkedLog(place / DISK / STORE, disk)
    log: RecordLog = DyingLog(store, dies_at=dies_at, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    operator, errors, outcome = await _endured(kind, world, log, attempts=4)
    assert outcome is not None
    await store.close()
    return {**outcome, "errors": errors, "settled": operator.settled}


async def checkpointed(line: Line, *, folder: str, trace: str, records: int, size: int) -> Any:
    """Store large records one by one on a disk that is watched, so that checkpoints are due between them."""
    disk = Disk()
    disk.watch(Path(folder) / DISK, Path(trace))
    log = MarkedLog(Path(folder) / DISK / STORE, disk)
    lease = await log.create(ROOT, run_info(ROOT))
    for after in range(records):
        await log.append(lease, after, stored_rows(after, 1, body="x" * size), status="running")
    await log.close()


async def beset(
    line: Line, *, folder: str, kind: str, changes: list[int], place: int, number: int, mode: int, attempts: int = 1
) -> Any:
    """Take the run to its end on a disk that fails."""
    disk = Disk()
    disk.watch(Path(folder) / DISK, Path(folder) / "trace")
    disk.fail(changes, place, mode=mode, number=number)
    log = SQLiteRecordLog(Path(folder) / DISK / STORE)
    operator, errors, outcome = await _endured(kind, FileWorld(Path(folder)), log, attempts=attempts)
    await log.close()
    return {"outcome": outcome, "errors": errors, "settled": operator.settled, "faults": disk.faults}


async def _endured(
    kind: str, world: World, log: RecordLog, *, attempts: int
) -> tuple[Operator, list[str], dict[str, Any] | None]:
    """The run's end, or None; what the store complains about ends an attempt, and the process goes on."""
    operator = Operator(KINDS[kind], world)
    errors: list[str] = []
    for _ in range(attempts):
        try:
            outcome = await operator.attend(KINDS[kind].build(log, world))
        except DurableExecutionError as error:
            errors.append(type(error).__name__)
        else:
            return operator, errors, {"state": outcome.task.state.value, "output": outcome.answer}
    return operator, errors, None


class FusedWorld(FileWorld):
    """A world in which the kernel ends the process a moment after it has entered an action, or acted."""

    def __init__(self, folder: Path, point: str, number: int, seconds: float) -> None:
        super().__init__(folder)
        self._point = point
        self._left = number
        self._seconds = seconds

    def act(self, value: int = 0) -> int:
        """Have the effect; the n-th one burns down the fuse."""
        self._left -= 1
        self._reach("entered")
        result = super().act(value)
        self._reach("acted")
        return result

    def _reach(self, point: str) -> None:
        if self._left == 0 and point == self._point:
            signal.setitimer(signal.ITIMER_REAL, self._seconds)


async def fused(line: Line, *, folder: str, kind: str, point: str, number: int, seconds: float) -> Any:
    """Take the run to its end, unless the kernel ends the process before."""
    world = FusedWorld(Path(folder), point, number, seconds)
    log = SQLiteRecordLog(Path(folder) / STORE)
    outcome = await Operator(KINDS[kind], world).attend(KINDS[kind].build(log, world))
    return {"state": outcome.task.state.value, "output": outcome.answer}


class JumpingWorld(FileWorld):
    """A world in which somebody sets the clock whenever something happens."""

    def __init__(self, folder: Path, disk: Disk, jumps: Sequence[int]) -> None:
        super().__init__(folder)
        self._disk = disk
        self._jumps = cycle(jumps)

    def jump(self) -> None:
        """Set the clock, to the next of the differences from the machine's."""
        self._disk.shift_clock(next(self._jumps))

    def act(self, value: int = 0) -> int:
        """Have the effect, with a jump before and behind it."""
        self.jump()
        result = super().act(value)
        self.jump()
        return result

    def asked(self) -> Wait | None:
        """A model call, and a jump in it."""
        self.jump()
        return super().asked()


async def jumping(line: Line, *, folder: str, kind: str, jumps: list[int], dies_at: int | None = None) -> Any:
    """Take the run to its end while the clock jumps, unless the process is killed behind its n-th write."""
    world = JumpingWorld(Path(folder), Disk(), jumps)
    world.jump()
    store = SQLiteRecordLog(Path(folder) / STORE)
    log: RecordLog = DyingLog(store, dies_at=dies_at, die=lambda: os.kill(os.getpid(), signal.SIGKILL))
    outcome = await Operator(KINDS[kind], world).attend(KINDS[kind].build(log, world))
    return {"state": outcome.task.state.value, "output": outcome.answer}


async def confined(line: Line, *, folder: str, kind: str, limit: int, room: int) -> Any:
    """Take the run as far as it comes under a limit of the kernel's, and to its end without it.

    `room` is what is left: bytes of address space, or descriptors.
    """
    world, log = OpenWorld(Path(folder)), SQLiteRecordLog(Path(folder) / STORE)
    operator = Operator(KINDS[kind], world)
    errors: list[str] = []
    soft, hard = resource.getrlimit(limit)
    for allowed in (_used(limit) + room, soft):
        resource.setrlimit(limit, (allowed, hard))
        try:
            outcome = await operator.attend(KINDS[kind].build(log, world))
        except (DurableExecutionError, MemoryError) as error:
            errors.append(f"{type(error).__name__}: {error}")
        else:
            return {
                "state": outcome.task.state.value,
                "output": outcome.answer,
                "errors": errors,
                "settled": operator.settled,
            }
    raise AssertionError(f"without the limit it failed as well: {errors[-1]}")


def _used(limit: int) -> int:
    if limit == resource.RLIMIT_NOFILE:
        return max(map(int, os.listdir("/proc/self/fd")))
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


class Steady(LLM):
    """A model that asks for one action in each turn, up to some number of them, whatever the conversation is."""

    blocking = False
    provider = "test"
    model = "steady"

    def __init__(self, turns: int, steps: int) -> None:
        self.turns = turns
        self._steps = steps

    def respond(self, request: LLMRequest) -> LLMReply:
        """Ask for the next one."""
        self.turns += 1
        if self.turns > self._steps:
            return LLMReply(text="done")
        action = call("act", value=self.turns)
        return LLMReply(text=json.dumps(action), actions=action)


async def drive_far(line: Line, *, folder: str, steps: int) -> Any:
    """Drive a run of many steps until one is left, or take it up and end it."""
    log = SQLiteRecordLog(Path(folder) / STORE)

    async def act(value: int) -> int:
        """Give it back."""
        return value

    began, is_known = time.monotonic(), await log.get(ROOT) is not None
    model = Steady(steps - 1 if is_known else 0, steps)
    agent = Agent(name="far", llm=model, tools=[act], durability=log, yield_after_steps=steps - 1, verbosity=0)
    budget = RunBudget(max_steps=steps + 1)
    ended = await (agent.resume_task(ROOT) if is_known else agent.run_task(task(budget=budget)))
    seconds = time.monotonic() - began
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    await log.close()
    return {"state": ended.state.value, "seconds": seconds, "resident": resident, "turns": model.turns}


async def hold(line: Line, *, folder: str) -> Any:
    """Hold the write lock of the store until told otherwise, as another program might."""
    connection = sqlite3.connect(Path(folder) / STORE, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    line.ask("held")
    connection.execute("ROLLBACK")
    connection.close()
    await asyncio.sleep(0)


async def race(line: Line) -> Any:
    """Whatever the test says, at the moment it says: several such processes try the same run at once."""
    while (request := line.hear()) is not None:
        agent = _agent(line, request["folder"], request["kind"], [])
        line.ask("ready")
        work = agent.resume_task(ROOT) if request["verb"] == "resume" else KINDS[request["kind"]].start(agent)
        line.say(await _told(work))


async def serve(line: Line, *, folder: str, runs: int) -> Any:
    """Serve a group of runs, each in an action or in a model call that never ends, until told to terminate."""
    world = FileWorld(Path(folder))
    at_work = asyncio.Semaphore(0)

    async def act(value: int) -> int:
        """Wait for ever."""
        world.act(value)
        at_work.release()
        await asyncio.Event().wait()
        return value

    class Waiting(Player):
        async def respond(self, request: LLMRequest) -> Any:
            if "think" in request.messages[0]["content"]:
                at_work.release()
                await asyncio.Event().wait()
            return super().respond(request)

    model = Waiting(world.asked, call("act", value=1))
    agent = Agent(name="server", llm=model, tools=[act], durability=SQLiteRecordLog(Path(folder) / STORE))
    main = asyncio.current_task()
    assert main is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    try:
        async with AgentGroup([agent]) as group:
            for number in range(runs):
                group.run(agent, task("think" if number % 2 else "act", run_id=f"run {number}"))
            for _ in range(runs):
                await at_work.acquire()
            line.say("at work")
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "terminated"
