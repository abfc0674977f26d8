"""Runs that are called off: how each state that a process can leave behind ends."""

from __future__ import annotations

import pytest

from protolink._core.records import ActionFailed, ErrorInfo, Record, RunFailed
from protolink._runtime.calling_off import call_off
from tests.unit.core.facts import (
    RUN,
    act,
    answered,
    asked,
    asks,
    authorized,
    canceled,
    completed,
    decided,
    entered,
    listed,
    prepared,
    proposed,
    seen,
    started,
    uncertain,
)

BROKEN = ErrorInfo(code="tool_failed", message="it broke")
OPENED: tuple[Record, ...] = (started(durable=True), asked(), proposed("note", "note"))

LEFT: dict[str, tuple[tuple[Record, ...], str, list[str]]] = {
    "a model turn": ((started(durable=True), asked()), "canceled", []),
    "an answer": ((started(durable=True), asked(), answered()), "canceled", []),
    "proposals": (OPENED, "canceled", ["action.canceled"] * 2),
    "a request for approval": ((*OPENED, prepared(1), *asks(1)), "canceled", ["action.canceled"] * 2),
    "an approval": ((*OPENED, prepared(1), *asks(1), decided(1, True)), "canceled", ["action.canceled"] * 2),
    "an entered action": (
        (*OPENED, *authorized(1), *authorized(2), entered(1)),
        "canceled",
        ["action.uncertain", "action.canceled"],
    ),
    "an entered action that only reads": (
        (*OPENED, *authorized(1, read_only=True), *authorized(2), entered(1)),
        "canceled",
        ["action.canceled"] * 2,
    ),
    "an uncertain action": (
        (*OPENED, *authorized(1), *authorized(2), entered(1), uncertain(1)),
        "canceled",
        ["action.canceled"],
    ),
    "a completed action": (
        (*OPENED, *authorized(1), *authorized(2), entered(1), completed(1)),
        "canceled",
        ["action.canceled"],
    ),
    "a failure": (
        (*OPENED, *authorized(1), *authorized(2), entered(1), ActionFailed(action_id=act(1), error=BROKEN)),
        "failed",
        ["action.canceled"],
    ),
    "a failure of its own": ((started(durable=True), RunFailed(error=BROKEN)), "failed", []),
    "a cancellation": ((*OPENED, canceled("before")), "canceled", ["action.canceled"] * 2),
}


@pytest.mark.parametrize("left", LEFT)
async def test_whatever_a_process_left_gets_an_ending(left: str) -> None:
    """Each open action has one, and the first stopping fact says how the run ends."""
    records, status, endings = LEFT[left]
    journal = await listed(*records)
    before = len(seen(journal))

    assert await call_off(journal, "enough")

    finished = journal.tree.runs[RUN].finished
    assert finished is not None
    assert finished.status == status
    added = [event.type for event in seen(journal)[before:]]
    assert [kind for kind in added if kind.startswith("action.")] == endings


async def test_calling_off_twice_is_once() -> None:
    """The second one finds a run that has ended and adds nothing."""
    journal = await listed(*OPENED)
    await call_off(journal, "enough")
    before = journal.records

    assert not await call_off(journal, "again")
    assert journal.records == before


async def test_the_first_reason_for_a_cancellation_stands() -> None:
    """Somebody had asked for the end before the process died, and that is why the run ends."""
    journal = await listed(*OPENED, canceled("before"))

    await call_off(journal, "enough")

    finished = journal.tree.runs[RUN].finished
    assert finished is not None
    assert finished.reason == "before"
