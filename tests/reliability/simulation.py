"""F29: processes that share nothing but a store, in a world where a seed decides what happens next.

Each simulated process has an event loop of its own, which takes one step at a time. The seed decides whose turn it
is and which of its ready callbacks runs, how long a store, a model or a tool takes, when the wall clock jumps, what
the store complains about, and which process is killed, stopped or told to cancel the run. Time passes only when
nothing else can happen. What has gone wrong once goes wrong again with the same seed.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
import threading
from asyncio import events
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar, cast

from protolink import Agent, TaskState, current_action
from protolink._core.records import ActionReconciled, ActionStarted, CancelRequested
from protolink._environment import Environment
from protolink.durable import Lease, Row, RunInfo, RunStatus
from protolink.durable.memory import MemoryRecordLog
from protolink.errors import DurableExecutionError, StoreBusyError, StoreError, StoreFullError, TaskExecutionError
from protolink.testing import use_environment
from tests.reliability.facts import assert_sound, facts, fold, of_kind
from tests.reliability.teams import KINDS, ROOT, Operator, Outcome, Wait, World

T = TypeVar("T")

MOST_TURNS = 100_000
"""Far more than any run takes; one that is still not over goes round in circles."""

HOUR = 3600.0


class SteppingLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a number, and which runs whichever of its ready callbacks it is told to."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._now = clock
        self._thread = threading.get_ident()
        self.faults: list[str] = []
        self.set_exception_handler(lambda loop, context: self.faults.append(str(context["message"])))

    _ready: Any
    _scheduled: Any

    def time(self) -> float:
        """The simulation's time."""
        return self._now()

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> Any:  # type: ignore[override]
        """Without threads it is the other one; with them nothing could be repeated."""
        assert threading.get_ident() == self._thread, "a thread takes part in a simulation"
        return self.call_soon(callback, *args, context=context)

    def next_timer(self) -> float | None:
        """When the next timer falls due."""
        while self._scheduled and self._scheduled[0].cancelled():
            heapq.heappop(self._scheduled)
        return self._scheduled[0].when() if self._scheduled else None

    def ready(self) -> int:
        """How many callbacks are ready."""
        while (moment := self.next_timer()) is not None and moment <= self.time():
            self._ready.append(heapq.heappop(self._scheduled))
        return len(self._ready)

    def step(self, choice: int) -> None:
        """Run one of the ready callbacks."""
        self._ready.rotate(-choice)
        handle = self._ready.popleft()
        if handle.cancelled():
            return
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(None)


class Process:
    """One process: its loop, and the lease that ends with it."""

    main: asyncio.Task[None]

    def __init__(self, simulation: Simulation) -> None:
        self.loop = SteppingLoop(lambda: simulation.now)
        self.lease: Lease | None = None
        self.stopped_until = 0.0
        self._store = simulation.store

    def give_back(self) -> None:
        """Have the lease no more."""
        lease, self.lease = self.lease, None
        if lease is not None:
            at_once(self._store.release(lease))

    def wakes_at(self, now: float) -> float:
        """When it goes on, as far as it knows."""
        moment = now if self.loop.ready() else self.loop.next_timer()
        return math.inf if moment is None else max(moment, self.stopped_until)


class SimulatedEnvironment(Environment):
    """Clocks and ids that the seed decides."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def now(self) -> float:
        """A wall clock that somebody sets now and then, by up to a month."""
        return self._simulation.wall_clock()

    def monotonic(self) -> float:
        """The simulation's time."""
        return self._simulation.now

    def new_id(self) -> str:
        """The seed's next id."""
        return f"{self._simulation.chance.getrandbits(128):032x}"


class SimulatedWorld(World):
    """What all processes act on. A dead one cannot, and one without the lease must not."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        super().__init__()
        self._simulation = simulation
        self._process = process
        self.effects = simulation.effects

    def act(self, value: int = 0) -> int:
        """Have the effect."""
        simulation, action_id = self._simulation, current_action().action_id
        if simulation.is_over:
            return value
        assert simulation.holders() == [self._process], "an action was entered by who does not have the run"
        assert simulation.is_started(action_id), "an action was entered before its start was stored"
        return super().act(value)

    def asked(self) -> Wait:
        """A model is called, and takes its time."""
        if not self._simulation.is_over:
            self._simulation.calls += 1
        return self.pause

    async def pause(self) -> None:
        """Take as long as the seed says."""
        await self._simulation.pause()


class SimulatedLog:
    """One process's access to the store that all of them share."""

    def __init__(self, simulation: Simulation, process: Process) -> None:
        self._simulation = simulation
        self._process = process

    async def create(self, root_id: str, info: RunInfo) -> Lease:
        """Reserve a new root."""
        return await self._do(lambda store: store.create(root_id, info), lambda lease: lease)

    async def acquire(self, root_id: str) -> tuple[Lease, list[Row]]:
        """Take the lease of a root."""
        return await self._do(lambda store: store.acquire(root_id), lambda taken: taken[0])

    async def append(
        self,
        lease: Lease,
        expected: int,
        rows: Sequence[Row],
        *,
        status: RunStatus,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Store rows."""
        await self._do(lambda store: store.append(lease, expected, rows, status=status, summary=summary))

    async def release(self, lease: Lease) -> None:
        """Give a lease back."""
        if lease is self._process.lease:
            self._process.give_back()

    async def read(self, root_id: str, after: int = 0) -> list[Row]:
        """The rows of a root."""
        return await self._do(lambda store: store.read(root_id, after))

    async def get(self, root_id: str) -> RunInfo | None:
        """What is known of a root."""
        return await self._do(lambda store: store.get(root_id))

    async def list(self, **filters: Any) -> Any:
        """Roots."""
        return await self._do(lambda store: store.list(**filters))

    async def delete(self, root_id: str) -> bool:
        """Delete a root."""
        return await self._do(lambda store: store.delete(root_id))

    async def close(self) -> None:
        """The store stays open for the others."""

    async def _do(
        self, work: Callable[[MemoryRecordLog], Coroutine[Any, Any, T]], leased: Callable[[T], Lease] | None = None
    ) -> T:
        """Do it at one moment, with a wait, and perhaps a complaint, on either side."""
        simulation, process = self._simulation, self._process
        await simulation.pause()
        simulation.complain("before")
        value = at_once(work(simulation.store))
        if leased is not None:
            process.lease = leased(value)
        try:
            await simulation.pause()
            simulation.complain("after")
        except BaseException:
            if leased is not None:  # nobody will ever hear of it
                process.give_back()
            raise
        return value


class Simulation:
    """One run of one kind, and everything that befalls it."""

    def __init__(self, seed: int) -> None:
        chance = self.chance = random.Random(seed)
        self.kind = chance.choice(list(KINDS))
        self.store = MemoryRecordLog()
        self.now = 0.0
        self.effects: list[str] = []
        self.calls = 0
        self.outcomes: list[Outcome] = []
        self.reached: Counter[str] = Counter()
        self.is_over = False
        self._processes: list[Process] = []
        self._ended: list[Process] = []
        self._offset = 1_767_225_600.0
        self._turns = 0
        self._rate = 10 ** chance.uniform(-2.7, -1.3)
        self._left = {what: chance.choice([0, 0, 1, 2, 4]) for what in ("kill", "stop", "cancel", "complain", "jump")}

    def run(self) -> None:
        """Let it happen, to the end. Raises `AssertionError` where something happens that must not."""
        try:
            for _ in range(self.chance.choice([1, 1, 2, 3])):
                self._start()
            while self._processes:
                self._turn()
            self._check()
        finally:
            self._clear()

    def wall_clock(self) -> float:
        """What time it is said to be."""
        if self._happens("jump"):
            self._offset += self.chance.choice([-720, -24, -1, 1, 24, 720]) * HOUR
        return self._offset + self.now

    async def pause(self) -> None:
        """Take no time, a few turns, or some time."""
        for _ in range(self.chance.choice([0, 0, 1, 1, 2])):
            await asyncio.sleep(self.chance.choice([0, 0, 0.001, 0.2, 2.0]))

    def complain(self, when: str) -> None:
        """The store's faults: refused before it was done, or done and said not to be."""
        if self.is_over:
            raise StoreError("the simulation is over")
        if self._happens("complain", 3):
            self.reached[f"complained {when}"] += 1
            raise self.chance.choice([StoreBusyError, StoreFullError, StoreError])("the disk is not well")

    def is_started(self, action_id: str) -> bool:
        """Whether the start of an action is stored."""
        rows = at_once(self.store.read(ROOT))
        return any(row.kind == "ActionStarted" and f'"{action_id}"' in row.body for row in reversed(rows))

    def holders(self) -> list[Process]:
        """The processes that have the lease."""
        return [process for process in self._processes if process.lease is not None]

    def _happens(self, what: str, rate: float = 1.0) -> bool:
        """Whether one of the things that may befall the run does so now."""
        if self._left[what] <= 0 or self.is_over or self.chance.random() >= self._rate * rate:
            return False
        self._left[what] -= 1
        self.reached[what] += 1
        return True

    def _start(self) -> None:
        process = Process(self)
        process.main = process.loop.create_task(self._attend(process))
        self._processes.append(process)

    async def _attend(self, process: Process) -> None:
        with use_environment(SimulatedEnvironment(self)):
            world, log = SimulatedWorld(self, process), SimulatedLog(self, process)
            operator = Operator(KINDS[self.kind], world)
            agent = KINDS[self.kind].build(log, world)
            while True:
                try:
                    outcome = await self._canceled_perhaps(agent, operator.attend(agent))
                except (DurableExecutionError, TaskExecutionError) as error:
                    self.reached[type(error).__name__] += 1
                    await asyncio.sleep(self.chance.choice([0.01, 60.0, HOUR / 2]))
                else:
                    self.outcomes.append(outcome)
                    return

    async def _canceled_perhaps(self, agent: Agent, work: Coroutine[Any, Any, T]) -> T:
        attending = asyncio.ensure_future(work)
        while not attending.done():
            await asyncio.wait({attending}, timeout=self.chance.uniform(0.01, 10))
            if not attending.done() and self._happens("cancel", 5):
                await agent.cancel_task(ROOT)
        return attending.result()

    def _turn(self) -> None:
        """Run one callback of one process; where none is ready, let time pass."""
        self._turns += 1
        assert self._turns < MOST_TURNS, "the run does not end"
        ready = [process for process in self._processes if process.stopped_until <= self.now and process.loop.ready()]
        if not ready:
            self.now = min(process.wakes_at(self.now) for process in self._processes)
            assert self.now < math.inf, "nothing is left that could happen"
            return
        process = self.chance.choice(ready)
        process.loop.step(self.chance.randrange(process.loop.ready()))
        if process.main.done():
            self._end(process)
            process.main.result()
        elif self._happens("kill"):
            self._end(process)
            self._start()
        elif self._happens("stop"):
            process.stopped_until = self.now + self.chance.choice([1.0, HOUR])

    def _end(self, process: Process) -> None:
        """The process is gone, and its lease with it."""
        self._processes.remove(process)
        self._ended.append(process)
        process.give_back()

    def _check(self) -> None:
        """What has to hold at the end of everything, whatever it was."""
        rows = at_once(self.store.read(ROOT))
        assert_sound(rows)
        tree, info = fold(rows), at_once(self.store.get(ROOT))
        assert info is not None
        assert info.owner is None, "the run is still held"
        assert self.calls <= tree.counters.llm_calls, "a model call is not charged"
        entered = {record.action_id for record in cast("list[ActionStarted]", of_kind(rows, ActionStarted))}
        assert set(self.effects) <= entered
        if self.kind != "parallel read-only tools":
            assert max(Counter(self.effects).values(), default=0) <= 1, "an effect happened twice"
        states = {outcome.task.state for outcome in self.outcomes}
        assert len(states) == 1, "the run has ended in two ways"
        if any(fact.run_id == ROOT and isinstance(fact.record, CancelRequested) for fact in facts(rows)):
            assert TaskState.COMPLETED not in states, "the run was canceled, and has gone on"
        assert not [fault for process in self._ended for fault in process.loop.faults]
        settled = {record.action_id for record in cast("list[ActionReconciled]", of_kind(rows, ActionReconciled))}
        if not self.reached["kill"] and not self.reached["complain"] and self.kind != "reconcile":
            assert settled == set(), "something was called uncertain for no reason"

    def _clear(self) -> None:
        """Let what was killed clean up after all, where nothing counts any more."""
        self.is_over = True
        for process in [*self._ended, *self._processes]:
            for task in asyncio.all_tasks(process.loop):
                task.cancel()
            while process.loop.ready() or process.loop.next_timer() is not None:
                if process.loop.ready():
                    process.loop.step(0)
                else:
                    self.now = process.wakes_at(self.now)
            process.loop.close()


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as ended:
        return cast("T", ended.value)
    raise AssertionError("the store in memory has waited for something")
