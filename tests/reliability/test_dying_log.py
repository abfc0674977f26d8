"""The log that dies, by itself: the other tests are worth what it is worth."""

from __future__ import annotations

import pytest

from protolink import TaskState
from protolink.durable import RecordLog
from protolink.errors import UnknownRunError
from protolink.testing import DyingLog, LogDiedError
from tests.reliability.facts import stored
from tests.reliability.teams import KINDS, ROOT, World, task


async def test_a_log_that_never_dies_counts_its_writes() -> None:
    """Reserving the root is the first, a step of a run takes two, and its end shares the last reply's."""
    log = DyingLog()

    ended = await KINDS["tool"].build(log, World()).run_task(task())

    assert ended.state is TaskState.COMPLETED
    assert (log.dead, log.writes) == (False, 7)
    assert isinstance(log, RecordLog)


@pytest.mark.parametrize("applied", [True, False], ids=["stored", "lost"])
async def test_the_last_write_is_stored_or_lost_as_one_likes(applied: bool) -> None:
    """The second write is the run's first two records: that it exists, and that its model is about to be asked."""
    log = DyingLog(dies_at=2, applied=applied)
    with pytest.raises(LogDiedError):
        await KINDS["tool"].build(log, World()).run_task(task())

    rows = await stored(log.reopened())

    assert len(rows) == (2 if applied else 0)


async def test_whoever_uses_it_after_its_death_is_told() -> None:
    """A dead process reads nothing either, and gives nothing back."""
    log = DyingLog(dies_at=1, applied=False)
    with pytest.raises(LogDiedError):
        await KINDS["tool"].build(log, World()).run_task(task())

    for use in (log.read(ROOT), log.get(ROOT), log.list(), log.acquire(ROOT), log.delete(ROOT)):
        with pytest.raises(LogDiedError):
            await use
    with pytest.raises(UnknownRunError):
        await log.reopened().read(ROOT)


async def test_it_can_end_the_process_instead() -> None:
    """What `die` does is the caller's; here it is only heard of."""
    heard: list[str] = []
    log = DyingLog(dies_at=3, die=lambda: heard.append("dead"))

    with pytest.raises(LogDiedError):
        await KINDS["tool"].build(log, World()).run_task(task())

    assert heard == ["dead"]


def test_a_place_that_is_none_is_refused() -> None:
    """Writes are counted from one."""
    with pytest.raises(ValueError, match="from 1"):
        DyingLog(dies_at=0)
