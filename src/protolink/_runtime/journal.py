"""The one list of a tree, its state, and those who read along.

Appending is the only way to change anything: the state accepts the record, the log keeps it, then readers
are woken. A reader is a cursor on the list, not a queue, so one that is slow or gone costs nothing.

Without a log the list lives in memory and a record is told at once. With one it is told when it is stored:
records that are followed by nothing outside the list wait for the next one that is, and share its commit.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, cast, get_args

from protolink._core.codec import CodecError, decode, encode
from protolink._core.entries import Entry, Fragment, is_public
from protolink._core.evolve import evolve
from protolink._core.handoffs import complete, shorten, shorten_all
from protolink._core.parse import MAX_REPLY_CHARS
from protolink._core.records import (
    ActionCompleted,
    ActionJudged,
    ActionPrepared,
    ActionStarted,
    AnswerGiven,
    AttemptEnded,
    BudgetWarned,
    ModelAsked,
    ModelReplied,
    ModelRetried,
    Record,
    RunFinished,
    RunPaused,
    RunStarted,
    Yielded,
)
from protolink._core.state import ActionState, RecordRefused, TreeState
from protolink._core.views.parts import Identity
from protolink._environment import Environment
from protolink._json import JSONError, dumps, parse, reread
from protolink._text import describe_error
from protolink.durable.port import Lease, RecordLog, Row, RunInfo, RunStatus
from protolink.errors import (
    DurableExecutionError,
    LostRunError,
    RunBusyError,
    RunExistsError,
    StoreDamagedError,
    StoreError,
)

__all__ = ["Cursor", "Journal"]

FRAGMENTS_BEHIND = 256
"""A reader that is further behind gets the waiting fragments of a reply joined into one."""

MAX_STORED_DEPTH = 250
"""Nesting of a stored record: what a result may have, and what the record adds around it."""

MAX_LISTED_CHARACTERS = 131_072
"""What is kept beside the list of what a run waits for; an eighth of it for each."""

MAX_LISTED_DEPTH = 50

_MAY_WAIT: frozenset[type[Any]] = frozenset(
    {ModelReplied, AnswerGiven, ActionPrepared, ActionJudged, ActionCompleted, BudgetWarned, Yielded}
)
"""Nothing outside the list depends on these before the next record, so they share its commit."""

_ROUTINE: frozenset[type[Any]] = _MAY_WAIT - {Yielded} | {ActionStarted, ModelAsked}
"""A list that these alone are added to stands where it stood."""


class _Done:
    """Awaiting it takes no time: a list in memory has nothing to wait for."""

    def __await__(self) -> Generator[None, None, None]:
        return _nothing()


def _nothing() -> Generator[None, None, None]:
    return
    yield


_DONE = _Done()


class Journal:
    """The list of one tree of runs. It belongs to one event loop."""

    __slots__ = (
        "_environment",
        "_flush",
        "_flush_due",
        "_last_waiters",
        "_lock",
        "_log",
        "_number",
        "_reach",
        "_sequence",
        "_status",
        "_stored",
        "_untold",
        "_waiters",
        "broken",
        "closed",
        "entries",
        "identities",
        "lease",
        "tree",
    )

    def __init__(self, root_id: str, environment: Environment, log: RecordLog | None = None) -> None:
        self.tree: TreeState = TreeState(root_id)
        self.entries: list[Entry | Fragment] = []
        self.identities: dict[str, Identity] = {}
        self.closed: bool = False
        self.broken: DurableExecutionError | None = None
        """Why the log takes nothing more from this attempt."""

        self.lease: Lease | None = None
        self._log = log
        self._lock = asyncio.Lock() if log is not None else None
        self._environment = environment
        self._number = 0
        self._stored = 0
        self._status: RunStatus = "running"
        self._sequence = 0
        self._reach = 0
        self._untold: list[Entry | Fragment] = []
        self._flush: asyncio.Task[None] | None = None
        self._flush_due: asyncio.Handle | None = None
        self._waiters: dict[asyncio.Future[None], None] = {}
        self._last_waiters: dict[asyncio.Future[None], None] = {}

    @property
    def durable(self) -> bool:
        """Whether the list is stored."""
        return self._log is not None

    @property
    def records(self) -> int:
        """How many records the list has."""
        return self._number

    @property
    def failure(self) -> DurableExecutionError | None:
        """Why records that were made are not stored; None where everything is."""
        return self.broken if self._stored < self._number else None

    async def begin(self) -> None:
        """Store what was noted before the first attempt; without a log, and later on, nothing is to be done.

        Raises `RunExistsError` for a root id that is taken, and whatever else keeps the log from taking it.
        """
        if self._log is None or self.lease is not None:
            return
        try:
            self.lease = await self._reserved(self._log)
        except DurableExecutionError as error:
            self.broken = error
            self.wake()
            raise
        except Exception as error:  # a store's, or a name that no store can hold
            self.broken = StoreError(f"run {self.tree.root_id!r} was not created: {describe_error(error)}")
            self.wake()
            raise self.broken from error
        self._flush_soon()

    async def _reserved(self, log: RecordLog) -> Lease:
        """The lease of a root that has no record yet: a new one, or one whose process died before its first."""
        root_id, info = self.tree.root_id, self._info()
        try:
            return await log.create(root_id, info)
        except RunExistsError as exists:
            known = await log.get(root_id)
            if known is None or known.records or known.principal != info.principal:
                raise
            try:
                lease, rows = await log.acquire(root_id)
            except RunBusyError:  # somebody else starts it right now
                raise exists from None
            if rows:
                await log.release(lease)
                raise
            return lease

    async def end(self) -> None:
        """Give the lease back and let the readers leave."""
        log, lease = self._log, self.lease
        if log is not None and lease is not None:
            self.lease = None
            try:
                await log.release(lease)
            except DurableExecutionError as error:
                self.broken = self.broken or error
        self.close()

    def _info(self) -> RunInfo:
        started = self.tree.runs[self.tree.root_id].started
        now = self._environment.now()
        return RunInfo(
            root_id=self.tree.root_id,
            agent_name=started.agent_name,
            principal=started.principal,
            status="running",
            attempts=1,
            records=0,
            created_at=now,
            updated_at=now,
            session_id=started.context.get("session_id"),
        )

    def append(self, run_id: str, *records: Record) -> Awaitable[None]:
        """Add records of one run, in order, and tell the readers; awaited, they are stored as far as they have to be.

        Raises `RecordRefused` at the first that cannot follow, those before it stand; and
        `DurableExecutionError` when the log cannot keep them, after which it takes nothing more.
        """
        if self.broken is not None:
            raise self.broken
        if self._log is None:
            self._keep_in_memory(run_id, records)
            return _DONE
        for record in records:
            self._untold.append(self._entry(run_id, record))
        if all(type(record) in _MAY_WAIT for record in records):
            self._flush_soon()
            return _DONE
        return self._commit(self._log)

    async def settle(self) -> None:
        """Store what waits for the next record that cannot. Raises what `append` does when the log fails."""
        if self._log is not None:
            await self._commit(self._log)

    async def append_together(
        self, records: Iterable[tuple[str, Record]], *, first: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Add records of several runs in one commit, so that a process that dies leaves all of them or none.

        `first` is awaited when the state has accepted them and before they are stored. Raises what `append` does.
        """
        if self.broken is not None:
            raise self.broken
        for run_id, record in records:
            self._untold.append(self._entry(run_id, record))
        if first is not None:
            await first()
        if self._log is None:
            self._tell(len(self._untold))
        else:
            await self._commit(self._log)

    def note(self, run_id: str, record: Record) -> None:
        """Add a record that its author does not wait for."""
        if self._log is None:
            self._keep_in_memory(run_id, (record,))
        elif self.broken is None:
            self._untold.append(self._entry(run_id, record))
            if self.lease is not None:
                self._flush_soon()

    def _keep_in_memory(self, run_id: str, records: Iterable[Record]) -> None:
        """Without a log a record is kept, and told, as soon as the state accepts it."""
        try:
            for record in records:
                self.entries.append(self._entry(run_id, record))
                if type(record) in _LAST and run_id == self.tree.root_id:
                    self.closed = True
        finally:
            if self._waiters or self._last_waiters:
                self.wake()

    def _entry(self, run_id: str, record: Record, at: float | None = None) -> Entry:
        tree = self.tree
        run = tree.runs.get(run_id)
        kind = type(record)
        action: ActionState | None = None
        if kind in _ABOUT_ACTIONS and run is not None:
            action_id: str = cast("Any", record).action_id
            action = run.actions.get(action_id) or run.background.get(action_id)
        asked = run.asked if run is not None else None
        # A run's end is the last thing that its stream shows, even where a lost effect is settled afterwards.
        public = is_public(record) and (run is None or run.finished is None)
        evolve(tree, run_id, record)
        if run is None:
            run = tree.runs[run_id]
            if isinstance(record, RunStarted):
                self.identities[run_id] = _identity(run_id, record)
        if public:
            self._sequence += 1
            run.seen += 1
        self._number += 1
        now = self._environment.now() if at is None else at
        entry = Entry(self._number, run_id, now, record, self._sequence, run.seen, public, run.steps, action)
        if kind is ActionPrepared and action is not None:
            action.prepared_at = now
        elif kind is ModelReplied:
            entry.asked = asked
            entry.usage = tree.counters.snapshot()
        elif kind is ModelRetried:
            entry.asked = asked
        elif kind in _LAST:
            entry.usage = tree.counters.snapshot()
        return entry

    def _tell(self, count: int) -> None:
        """Show the first `count` of what is untold, and the fragments that follow them."""
        untold = self._untold
        while count < len(untold) and isinstance(untold[count], Fragment):
            count += 1
        for item in untold[:count]:
            self.entries.append(item)
            if isinstance(item, Entry) and item.run_id == self.tree.root_id and type(item.record) in _LAST:
                self.closed = True
        del untold[:count]
        self.wake()

    def _flush_soon(self) -> None:
        """Store what waits, unless something that cannot wait takes it along within two rounds of the event loop.

        Rounds and not a time, so that the same program makes the same commits on a slow machine.
        """
        if self._flush_due is None:
            loop = asyncio.get_running_loop()
            self._flush_due = loop.call_soon(self._flush_next_round, loop)

    def _flush_next_round(self, loop: asyncio.AbstractEventLoop) -> None:
        self._flush_due = loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = None
        if self._untold and (self._flush is None or self._flush.done()):
            self._flush = asyncio.get_running_loop().create_task(self._flushed())

    async def _flushed(self) -> None:
        # What came while a commit was under way was not part of it.
        while self._log is not None and self.broken is None and self._untold and isinstance(self._untold[0], Entry):
            try:
                await self._commit(self._log)
            except DurableExecutionError:
                return  # the next append raises it where somebody can act on it

    async def _commit(self, log: RecordLog) -> None:
        if self._lock is None:
            raise LostRunError(f"run {self.tree.root_id!r} is kept in memory only")
        async with self._lock:
            if self.broken is not None:
                raise self.broken
            batch: list[Entry] = []
            told = 0
            for place, item in enumerate(self._untold, 1):
                if isinstance(item, Entry):
                    batch.append(item)
                    told = place
            if not batch:
                return
            if self._flush_due is not None:
                # A loop that goes round while the store's thread commits would fight with it for the interpreter.
                self._flush_due.cancel()
                self._flush_due = None
            if all(type(entry.record) in _ROUTINE for entry in batch):
                status, summary = self._status, None
            else:
                status, summary = self._standing()
            try:
                if self.lease is None:
                    raise LostRunError(f"run {self.tree.root_id!r} is not held by this attempt")
                await log.append(
                    self.lease,
                    self._stored,
                    [_row(entry) for entry in batch],
                    status=status,
                    summary=summary,
                )
            except DurableExecutionError as error:
                self.broken = error
                self.wake()
                raise
            except Exception as error:  # a store's, which should have said so in the family's words
                why = describe_error(error)
                self.broken = StoreError(f"{len(batch)} records of run {self.tree.root_id!r} were not stored: {why}")
                self.wake()
                raise self.broken from error
            self._status = status
            self._stored = batch[-1].number
            self._tell(told)

    def _standing(self) -> tuple[RunStatus, Mapping[str, Any]]:
        """Where the root is, and what it waits for, kept beside the list so that lists of runs need not be folded."""
        root = self.tree.runs[self.tree.root_id]
        if isinstance(root.rest, RunPaused):
            return "paused", {"interruptions": _listed(shorten_all(root.rest.interruptions), "request")}
        uncertain: list[dict[str, Any]] = [
            {
                "run_id": run.run_id,
                "action_id": action_id,
                "name": action.proposal.name,
                "arguments": None if action.prepared is None else action.prepared.arguments,
            }
            for run in self.tree.runs.values()
            for action_id, action in run.uncertain.items()
        ]
        if uncertain:  # whoever called the run off still has to learn what became of them
            return "uncertain", {"uncertain": _listed(uncertain, "arguments")}
        if root.finished is not None:
            return root.finished.status, {}
        return "running" if root.rest is None else "resumable", {}

    def restore(self, rows: Iterable[Row]) -> None:
        """Fold a stored list. Raises `StoreDamagedError` for a row that cannot follow or cannot be read."""
        for row in rows:
            try:
                entry = self._restored(row)
            except (CodecError, JSONError, RecordRefused) as error:
                raise StoreDamagedError(
                    f"record {row.number} of run {self.tree.root_id!r} cannot be restored: {error}"
                ) from error
            self.entries.append(entry)
        self._stored = self._number
        self._reach = self._sequence = self._sequence + MAX_REPLY_CHARS * self._replies_under_way()

    def _replies_under_way(self) -> int:
        """How many replies had begun and are not in the list. Fragments of them, which are not stored, had places."""
        return sum(run.asked is not None and not run.at_rest for run in self.tree.runs.values())

    def _restored(self, row: Row) -> Entry:
        plain = reread(row.body, max_depth=MAX_STORED_DEPTH)
        bodies: dict[str, Any] = {}
        if row.bodies:
            bodies = {name: reread(text, max_depth=MAX_STORED_DEPTH) for name, text in row.bodies.items()}
        record = decode(row.kind, row.version, complete(row.kind, plain, self.tree), bodies)
        entry = self._entry(row.run_id, record, row.at)
        entry.sequence = self._sequence = row.sequence  # fragments took places of their own and were not stored
        return entry

    def fragment(self, run_id: str, text: str) -> None:
        """Show a piece of a reply to the readers; nothing is recorded, and nothing after the run's end is shown."""
        run = self.tree.runs[run_id]
        if run.asked is None or run.stop is not None:
            return
        self._sequence += 1
        fragment = Fragment(run_id, self._environment.now(), text, self._number, self._sequence, run.seen, run.steps)
        if self._untold:
            self._untold.append(fragment)
        else:
            self.entries.append(fragment)
            self.wake()

    def wake(self) -> None:
        """Let those who wait look at the list."""
        if self._waiters:
            waiters, self._waiters = self._waiters, {}
            _rouse(waiters)
        if self._last_waiters and (self.closed or self.broken is not None):
            waiters, self._last_waiters = self._last_waiters, {}
            _rouse(waiters)

    def close(self) -> None:
        """Let readers leave: no attempt is at work any more."""
        self.closed = True
        self.wake()

    def stored_records(self) -> Iterator[Entry]:
        """The records so far, in their order."""
        return (entry for entry in self.entries if isinstance(entry, Entry))

    def beginning(self, run_id: str) -> Iterator[Entry]:
        """The first record of a run, where it is not stored yet and the list does not show it."""
        for item in self._untold:
            if isinstance(item, Entry) and item.run_id == run_id and isinstance(item.record, RunStarted):
                yield item

    def action(self, action_id: str) -> ActionState | None:
        """What the list says of an action."""
        for entry in self.entries:
            action = entry.action if isinstance(entry, Entry) else None
            if action is not None and action.proposal.action_id == action_id:
                return action
        return None

    @property
    def last_place(self) -> int:
        """The place of the last item that readers can see, or 0."""
        return self.entries[-1].sequence if self.entries else 0

    @property
    def reach(self) -> int:
        """The last place that a reader can have seen, in a process that has died too."""
        return max(self.last_place, self._reach)

    def more(self) -> asyncio.Future[None]:
        """What is done once there is more to read, or nothing more will come. Canceled, it is forgotten."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        waiter.add_done_callback(self._forget)
        return waiter

    def over(self) -> asyncio.Future[None]:
        """What is done once nothing more will come. Canceled, it is forgotten."""
        waiter = asyncio.get_running_loop().create_future()
        self._last_waiters[waiter] = None
        waiter.add_done_callback(self._forget)
        return waiter

    def _forget(self, waiter: asyncio.Future[None]) -> None:
        self._waiters.pop(waiter, None)
        self._last_waiters.pop(waiter, None)

    async def follow(self, after: int = 0) -> AsyncIterator[Entry | Fragment]:
        """Everything behind the place `after`, then whatever comes, until the root's attempt has ended."""
        cursor = Cursor(self, after)
        while True:
            for item in cursor.ready():
                yield item
            if cursor.at_end:
                return
            await self.more()


class Cursor:
    """A place in a list, and what can be read from there on without waiting."""

    __slots__ = ("_index", "_journal")

    def __init__(self, journal: Journal, after: int) -> None:
        self._journal = journal
        self._index = bisect_right(journal.entries, after, key=_place)

    def passed(self) -> Sequence[Entry | Fragment]:
        """What stands before the place."""
        return self._journal.entries[: self._index]

    @property
    def at_end(self) -> bool:
        """Whether everything was read and nothing more will come.

        Raises `DurableExecutionError` where nothing more comes because the store failed.
        """
        journal = self._journal
        if self._index < len(journal.entries):
            return False
        if not journal.closed and journal.broken is not None:
            raise journal.broken
        return journal.closed

    def ready(self) -> Iterator[Entry | Fragment]:
        """What is there by now."""
        entries = self._journal.entries
        while self._index < len(entries):
            item = entries[self._index]
            self._index += 1
            if isinstance(item, Fragment) and len(entries) - self._index > FRAGMENTS_BEHIND:
                item, self._index = _joined(entries, item, self._index)
            yield item


def _rouse(waiters: Iterable[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


_LAST = frozenset({RunFinished, RunPaused, AttemptEnded})
"""What ends an attempt of the root, and so its stream."""

_KINDS: tuple[type[Any], ...] = get_args(Record)
_ABOUT_ACTIONS: frozenset[type[Any]] = frozenset(
    kind for kind in _KINDS if any(item.name == "action_id" for item in fields(kind))
)


def _listed(items: Iterable[Mapping[str, Any]], large: str) -> list[dict[str, Any]]:
    """Items for a list of runs. A field that is too large for one is None there, and `omitted` names it.

    The list itself has it; what is only for people to look at must not keep a run from pausing.
    """
    room = MAX_LISTED_CHARACTERS
    listed: list[dict[str, Any]] = []
    for item in items:
        text = dumps(item[large])
        if len(text) > min(room, MAX_LISTED_CHARACTERS // 8) or _is_deep(text):
            listed.append({**item, large: None, "omitted": [large]})
        else:
            room -= len(text)
            listed.append(dict(item))
    return listed


def _is_deep(text: str) -> bool:
    try:
        parse(text, max_depth=MAX_LISTED_DEPTH)
    except JSONError:
        return True
    return False


def _row(entry: Entry) -> Row:
    kind, version, plain, bodies = encode(entry.record)
    return Row(
        number=entry.number,
        sequence=entry.sequence,
        run_id=entry.run_id,
        at=entry.at,
        kind=kind,
        version=version,
        body=_storable(dumps(shorten(kind, plain))),
        bodies={name: _storable(text) for name, text in bodies.items()},
    )


_HALF = re.compile("[\ud800-\udfff]")


def _storable(text: str) -> str:
    """JSON text with each half of a character as a visible escape: a file name, say, in an exception's words."""
    if text.isascii() or _HALF.search(text) is None:
        return text
    return _HALF.sub(lambda half: f"\\\\u{ord(half[0]):04x}", text)


def _place(item: Entry | Fragment) -> int:
    return item.sequence


def _joined(entries: Sequence[Entry | Fragment], first: Fragment, index: int) -> tuple[Fragment, int]:
    """The fragments from `first` on as one, up to the first item of another kind or run."""
    texts = [first.text]
    last = first
    while index < len(entries):
        item = entries[index]
        if not isinstance(item, Fragment) or item.run_id != first.run_id or item.step != first.step:
            break
        texts.append(item.text)
        last = item
        index += 1
    text = "".join(texts)
    joined = Fragment(last.run_id, last.at, text, last.number, last.sequence, last.source_sequence, last.step)
    return joined, index


def _identity(run_id: str, record: RunStarted) -> Identity:
    parent = record.context.get("parent_run_id") if record.parent_action_id is not None else None
    return Identity(run_id, record.task_id, record.agent_name, parent, record.parent_action_id, record.delegation_id)
