"""The one list of a tree, its state, and those who read along.

Appending is the only way to change anything: the state accepts the record, the list keeps it, readers are
woken. A reader is a cursor on the list, not a queue, so one that is slow or gone costs nothing.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncIterator, Sequence

from protolink._core.entries import Entry, Fragment, is_public
from protolink._core.records import ModelReplied, Record, RunFinished, RunStarted
from protolink._core.state import ActionState, TreeState, evolve
from protolink._core.views.project import Identity
from protolink._environment import Environment

__all__ = ["Journal"]

FRAGMENTS_BEHIND = 256
"""A reader that is further behind gets the waiting fragments of a reply joined into one."""


class Journal:
    """The list of one tree of runs, in memory. It belongs to one event loop."""

    __slots__ = (
        "_counts",
        "_environment",
        "_number",
        "_sequence",
        "_waiters",
        "closed",
        "entries",
        "identities",
        "tree",
    )

    def __init__(self, root_id: str, environment: Environment) -> None:
        self.tree = TreeState(root_id)
        self.entries: list[Entry | Fragment] = []
        self.identities: dict[str, Identity] = {}
        self.closed = False
        self._environment = environment
        self._number = 0
        self._sequence = 0
        self._counts: dict[str, int] = {}
        self._waiters: list[asyncio.Future[None]] = []

    async def append(self, run_id: str, *records: Record) -> None:
        """Add records of one run, in order, and tell the readers.

        Raises `RecordRefused` at the first that cannot follow; those before it stand.
        """
        for record in records:
            self._add(run_id, record)
        self._wake()

    def note(self, run_id: str, record: Record) -> None:
        """Add a record that needs no commit of its own before its author goes on."""
        self._add(run_id, record)
        self._wake()

    def _add(self, run_id: str, record: Record) -> None:
        tree = self.tree
        run = tree.runs.get(run_id)
        action_id = getattr(record, "action_id", None)
        action = None
        if run is not None and action_id is not None:
            action = run.actions.get(action_id) or run.background.get(action_id)
        asked = run.asked if run is not None else None
        evolve(tree, run_id, record)
        if run is None:
            run = tree.runs[run_id]
            if isinstance(record, RunStarted):
                self.identities[run_id] = _identity(run_id, record)
        public = is_public(record)
        count = self._counts.get(run_id, 0)
        if public:
            self._sequence += 1
            self._counts[run_id] = count = count + 1
        self._number += 1
        entry = Entry(
            self._number, run_id, self._environment.now(), record, self._sequence, count, public, run.steps, action
        )
        if type(record) is ModelReplied:
            entry.asked = asked
            entry.usage = tree.counters.snapshot()
        self.entries.append(entry)
        if type(record) is RunFinished and run_id == tree.root_id:
            self.closed = True

    def fragment(self, run_id: str, text: str) -> None:
        """Show a piece of a reply to the readers; nothing is recorded, and nothing after the run's end is shown."""
        run = self.tree.runs[run_id]
        if run.asked is None or run.stop is not None:
            return
        self._sequence += 1
        self._counts[run_id] = count = self._counts[run_id] + 1
        self.entries.append(Fragment(run_id, self._environment.now(), text, self._sequence, count, run.steps))
        self._wake()

    def _wake(self) -> None:
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def action(self, action_id: str) -> ActionState | None:
        """What the list says of an action."""
        for entry in self.entries:
            action = entry.action if isinstance(entry, Entry) else None
            if action is not None and action.proposal.action_id == action_id:
                return action
        return None

    async def follow(self, after: int = 0) -> AsyncIterator[Entry | Fragment]:
        """Everything behind the place `after`, then whatever comes, until the root has ended."""
        entries = self.entries
        index = bisect_right(entries, after, key=_place)
        while True:
            while index < len(entries):
                item = entries[index]
                index += 1
                if isinstance(item, Fragment) and len(entries) - index > FRAGMENTS_BEHIND:
                    item, index = _joined(entries, item, index)
                yield item
            if self.closed:
                return
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter


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
    joined = Fragment(last.run_id, last.at, "".join(texts), last.sequence, last.source_sequence, last.step)
    return joined, index


def _identity(run_id: str, record: RunStarted) -> Identity:
    parent = record.context.get("parent_run_id") if record.parent_action_id is not None else None
    return Identity(run_id, record.task_id, record.agent_name, parent, record.parent_action_id, record.delegation_id)
