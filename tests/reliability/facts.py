"""What a stored list says, read with the library's own fold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from protolink._core.codec import decode
from protolink._core.evolve import evolve
from protolink._core.records import (
    ActionCanceled,
    ActionCompleted,
    ActionFailed,
    ActionReconciled,
    ActionRejected,
    ActionStarted,
    ActionUncertain,
    ModelAsked,
    ModelReplied,
    Record,
)
from protolink._core.state import TreeState
from protolink._json import parse
from protolink.durable import RecordLog, Row
from tests.reliability.teams import ROOT

ENDINGS = (ActionCompleted, ActionFailed, ActionRejected, ActionCanceled, ActionUncertain, ActionReconciled)


@dataclass
class Fact:
    """One record and whose it is."""

    run_id: str
    record: Record


def facts(rows: Sequence[Row]) -> list[Fact]:
    """The records of a list."""
    found: list[Fact] = []
    for row in rows:
        bodies = tuple(row.bodies.items())
        found.append(Fact(row.run_id, _record(row.kind, row.version, row.body, bodies)))
    return found


@lru_cache(maxsize=4096)
def _record(kind: str, version: int, body: str, bodies: tuple[tuple[str, str], ...]) -> Record:
    return decode(kind, version, _parsed(body), {name: _parsed(text) for name, text in bodies})


def _parsed(text: str) -> object:
    return parse(text, max_bytes=1 << 31, max_depth=250)


async def stored(log: RecordLog, root_id: str = ROOT) -> list[Row]:
    """The rows of a root that exists."""
    return await log.read(root_id)


def of_kind(rows: Sequence[Row], *kinds: type[Record]) -> list[Record]:
    """The records of some kinds, in order."""
    return [fact.record for fact in facts(rows) if isinstance(fact.record, kinds)]


def left_open(rows: Sequence[Row]) -> set[str]:
    """Tool actions that were entered, have no ending, and may not be run again."""
    state = fold(rows)
    return {
        action_id
        for run in state.runs.values()
        for action_id, action in run.actions.items()
        if action.stage == "started"
        and action.proposal.kind == "tool.call"
        and action.prepared is not None
        and not (action.prepared.read_only or action.prepared.idempotent)
    }


def uncertain(rows: Sequence[Row]) -> set[str]:
    """Actions of which it is recorded that nobody knows."""
    return {action_id for run in fold(rows).runs.values() for action_id in run.uncertain}


def fold(rows: Sequence[Row]) -> TreeState:
    """The state that the list leads to; checks on the way that usage never shrinks."""
    tree = TreeState(rows[0].run_id)
    before = (0, 0, 0, 0, 0)
    for fact in facts(rows):
        evolve(tree, fact.run_id, fact.record)
        counters = tree.counters
        now = (
            counters.steps,
            counters.llm_calls,
            counters.tool_calls,
            counters.input_tokens,
            counters.output_tokens,
        )
        assert all(one <= other for one, other in zip(before, now, strict=True)), "usage went back"
        before = now
    return tree


def assert_sound(rows: Sequence[Row]) -> None:
    """Each action has at most one start for each ending that lets it run again, and at most one final ending."""
    starts: dict[str, int] = {}
    endings: dict[str, int] = {}
    records = [fact.record for fact in facts(rows)]
    for record in records:
        if isinstance(record, ActionStarted):
            starts[record.action_id] = starts.get(record.action_id, 0) + 1
        elif isinstance(record, ENDINGS) and not isinstance(record, ActionUncertain):
            endings[record.action_id] = endings.get(record.action_id, 0) + 1
    assert all(number == 1 for number in endings.values()), "an action has two endings"
    asked = sum(isinstance(record, ModelAsked) for record in records)
    replied = sum(isinstance(record, ModelReplied) for record in records)
    assert replied <= asked
    fold(rows)
