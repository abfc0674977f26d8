"""What every record log promises, as a test class to be subclassed."""

from __future__ import annotations

import asyncio
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, TypeVar
from unittest import SkipTest

from protolink._environment import use_environment
from protolink.durable.port import Lease, RecordLog, Row, RunInfo
from protolink.durable.rows import MAX_APPEND_ROWS, MAX_BODY_BYTES, MAX_NAME_CHARACTERS, MAX_SUMMARY_BYTES
from protolink.errors import (
    DurableExecutionError,
    LostRunError,
    RunBusyError,
    RunExistsError,
    StoreClosedError,
    StoreFullError,
    UnknownRunError,
)
from protolink.testing.clock import ManualClock

__all__ = ["RecordLogConformance", "run_info", "stored_rows"]

T = TypeVar("T")
E = TypeVar("E", bound=BaseException)

ODD_NAMES: Final = (
    "Grüße 🥛",
    "with\0nul",
    "'; DROP TABLE runs; --",
    '"quoted" %s ? :name',
    "../../etc/passwd",
    " ",
    "\x1b[31mred",
    "x" * MAX_NAME_CHARACTERS,
)
NO_NAMES: Final[tuple[Any, ...]] = ("", "x" * (MAX_NAME_CHARACTERS + 1), "half \ud800", None, 7, b"bytes")


def run_info(root_id: str, **changes: Any) -> RunInfo:
    """What is known of a new root, with what a test wants to be different."""
    info = RunInfo(
        root_id=root_id,
        agent_name="agent",
        principal="local",
        status="running",
        attempts=1,
        records=0,
        created_at=1_767_225_600.0,
        updated_at=1_767_225_600.0,
    )
    return replace(info, **changes)


def stored_rows(after: int, count: int, **changes: Any) -> list[Row]:
    """Rows that follow the first `after` ones, with what a test wants to be different."""
    return [
        replace(
            Row(
                number=number,
                sequence=number,
                run_id="run",
                at=1_767_225_600.25,
                kind="noted",
                version=1,
                body=f'{{"note":{number}}}',
            ),
            **changes,
        )
        for number in range(after + 1, after + 1 + count)
    ]


def _require(promise: bool, complaint: str) -> None:
    if not promise:
        raise AssertionError(complaint)


async def _refused(kind: type[E] | tuple[type[E], ...], call: Awaitable[Any], what: str) -> E:
    """The error of a call that has to be refused."""
    try:
        value = await call
    except kind as error:
        return error
    raise AssertionError(f"{what} must be refused, and gave {value!r}")


async def _outcomes(*calls: Awaitable[T]) -> tuple[list[T], list[BaseException]]:
    """What several calls at once gave and raised."""
    ended = await asyncio.gather(*calls, return_exceptions=True)
    given = [value for value in ended if not isinstance(value, BaseException)]
    return given, [error for error in ended if isinstance(error, BaseException)]


class RecordLogConformance(ABC):
    """What an implementation of the record-log port promises to the runtime.

    Subclass it and say how an empty log is made:

        class TestMyRecordLog(RecordLogConformance):
            async def make(self):
                return MyRecordLog(...)

    The tests are coroutines, so pytest needs a plugin that runs those.
    """

    @abstractmethod
    async def make(self) -> RecordLog:
        """A fresh log with nothing in it."""

    async def other(self, log: RecordLog) -> RecordLog | None:
        """Another log over what `log` stores; None skips what needs it."""
        return None

    async def test_a_new_root_has_its_first_attempt(self) -> None:
        """Whoever creates a root drives it, and its first record needs nothing else."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            await log.append(lease, 0, stored_rows(0, 1), status="running")
            _require((lease.root_id, lease.attempt) == ("root", 1), f"the first attempt must be 1: {lease!r}")

    async def test_a_root_is_created_once(self) -> None:
        """Starting one run twice executes it once."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            await _refused(RunExistsError, log.create("root", run_info("root")), "an id that is driven")
            await log.release(lease)
            await _refused(RunExistsError, log.create("root", run_info("root")), "an id that is stored")

    async def test_one_of_many_creates_wins(self) -> None:
        """However many start the same run at once."""
        async with self._log() as log:
            leases, errors = await _outcomes(*(log.create("root", run_info("root")) for _ in range(8)))
            _require(len(leases) == 1, f"one create must win, not {len(leases)}")
            _require(all(isinstance(error, RunExistsError) for error in errors), f"losers must be told so: {errors!r}")

    async def test_a_refused_create_changes_nothing(self) -> None:
        """The owner of the id goes on."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root", agent_name="first"))
            await _refused(RunExistsError, log.create("root", run_info("root", agent_name="second")), "a taken id")
            await log.append(lease, 0, stored_rows(0, 2), status="running")
            _require((await self._info(log, "root")).agent_name == "first", "the first one's info must stay")

    async def test_a_new_root_is_known_as_it_was_described(self) -> None:
        """Apart from what the store counts itself."""
        async with self._log() as log:
            told = run_info("root", agent_name="a", principal="p", session_id="s", summary={"n": [1, None, "ü"]})
            lease = await log.create("root", replace(told, attempts=7, records=9, owner="me"))
            await log.release(lease)
            known = await self._info(log, "root")
            _require(known == replace(told, attempts=1, records=0), f"it must be as it was described: {known!r}")

    async def test_an_info_of_another_root_is_refused(self) -> None:
        """Two ids for one root are a mistake of the caller's."""
        async with self._log() as log:
            await _refused(ValueError, log.create("root", run_info("other")), "an info of another root")
            _require(await log.get("root") is None, "nothing may have been created")

    async def test_what_is_no_name_is_refused(self) -> None:
        """Before anything is stored."""
        async with self._log() as log:
            for name in NO_NAMES:
                await _refused((ValueError, TypeError), log.create(name, run_info(name)), f"the id {name!r:.30}")
            for field in ("agent_name", "principal", "session_id"):
                info = run_info("root", **{field: "half \ud800"})
                await _refused(ValueError, log.create("root", info), f"half a character as {field}")
            _require(await log.list() == [], "nothing may have been created")

    async def test_any_text_is_a_name(self) -> None:
        """Quotes, control characters and other scripts mean nothing to a store."""
        async with self._log() as log:
            for name in ODD_NAMES:
                info = run_info(name, agent_name=name, principal=name, session_id=name)
                await log.release(await log.create(name, info))
                _require(await log.get(name) == info, f"the name {name!r:.30} must come back")
            _require(len(await log.list(limit=100)) == len(ODD_NAMES), "each must be a root of its own")

    async def test_a_summary_is_json(self) -> None:
        """And it has a limit, which the error names."""
        async with self._log() as log:
            bad: Any = {"when": object()}
            await _refused(TypeError, log.create("root", run_info("root", summary=bad)), "an object in a summary")
            large = {"text": "x" * (MAX_SUMMARY_BYTES + 1)}
            error = await _refused(StoreFullError, log.create("root", run_info("root", summary=large)), "a large one")
            _require("MAX_SUMMARY_BYTES" in str(error), f"the limit must be named: {error}")

    async def test_a_root_has_a_status_and_finite_times(self) -> None:
        """What cannot be stored and read back is refused."""
        async with self._log() as log:
            for changes in ({"status": "asleep"}, {"created_at": math.nan}, {"updated_at": math.inf}):
                await _refused(ValueError, log.create("root", run_info("root", **changes)), f"{changes!r}")

    async def test_an_unknown_root_cannot_be_acquired(self) -> None:
        """And it is not made by asking for it."""
        async with self._log() as log:
            await _refused(UnknownRunError, log.acquire("root"), "an unknown root")
            _require(await log.get("root") is None, "asking must not create it")

    async def test_a_driven_root_is_busy(self) -> None:
        """The loser is told who has it and since when, and has changed nothing."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            error = await _refused(RunBusyError, log.acquire("root"), "a driven root")
            _require(bool(error.owner) and bool(error.since), f"the owner must be named: {error!r}")
            _require((await self._info(log, "root")).attempts == 1, "a refused attempt must not be counted")
            await log.append(lease, 0, stored_rows(0, 1), status="running")

    async def test_a_released_root_is_taken_up_with_its_list(self) -> None:
        """In order, and as the next attempt."""
        async with self._log() as log:
            first = await self._written(log, "root", 5)
            await log.release(first)
            second, rows = await log.acquire("root")
            _require(rows == stored_rows(0, 5), f"the list must be complete and in order: {rows!r}")
            _require((second.attempt, second.fence > first.fence) == (2, True), f"the next attempt: {second!r}")
            await log.append(second, 5, stored_rows(5, 1), status="running")

    async def test_one_of_many_acquires_wins(self) -> None:
        """The others get no error but that the root is busy."""
        async with self._log() as log:
            await log.release(await self._written(log, "root", 2))
            won, errors = await _outcomes(*(log.acquire("root") for _ in range(8)))
            _require(len(won) == 1, f"one must win, not {len(won)}")
            _require(all(isinstance(error, RunBusyError) for error in errors), f"the others are late: {errors!r}")
            _require((await self._info(log, "root")).attempts == 2, "only the winner's attempt counts")

    async def test_a_root_without_records_can_be_acquired(self) -> None:
        """Its first owner died before it wrote one."""
        async with self._log() as log:
            await log.release(await log.create("root", run_info("root")))
            lease, rows = await log.acquire("root")
            _require(rows == [], "there is no record")
            await log.append(lease, 0, stored_rows(0, 1), status="running")

    async def test_a_former_owner_can_store_nothing(self) -> None:
        """Whoever lost the run finds out at the next append, which comes before the next effect."""
        async with self._log() as log:
            first = await self._written(log, "root", 1)
            await log.release(first)
            await log.acquire("root")
            late = log.append(first, 1, stored_rows(1, 1), status="running")
            await _refused(LostRunError, late, "a former owner's append")
            _require(await log.read("root") == stored_rows(0, 1), "nothing may have been stored")

    async def test_every_attempt_is_counted(self) -> None:
        """A run that kills its process each time has to be noticed."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            for attempt in range(2, 6):
                await log.release(lease)
                lease, _ = await log.acquire("root")
                _require(lease.attempt == attempt, f"attempt {attempt} must be counted: {lease!r}")
            _require((await self._info(log, "root")).attempts == 5, "the list must show it")

    async def test_a_canceled_acquire_leaves_the_root_free(self) -> None:
        """Wherever the cancellation meets it."""
        async with self._log() as log:
            await log.release(await self._written(log, "root", 1))
            for turns in range(12):
                asked = asyncio.ensure_future(log.acquire("root"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                asked.cancel()
                with suppress(asyncio.CancelledError):
                    await log.release((await asked)[0])
                lease, _ = await log.acquire("root")
                await log.release(lease)

    async def test_a_driven_root_is_busy_for_another_log(self) -> None:
        """The lease belongs to the store and not to the object."""
        async with self._two_logs() as (log, other):
            lease = await self._written(log, "root", 1)
            await _refused(RunBusyError, other.acquire("root"), "a root that another log drives")
            await log.release(lease)
            _, rows = await other.acquire("root")
            _require(rows == stored_rows(0, 1), "the other one must see the list")

    async def test_rows_come_back_as_they_were_stored(self) -> None:
        """Every field of them."""
        async with self._log() as log:
            rows = [
                Row(
                    number=1,
                    sequence=0,
                    run_id="child 🥛",
                    at=0.1 + 0.2,
                    kind="k",
                    version=3,
                    body='{"a": [1, 2.5, null]}',
                    bodies={"result": '"ü"', "arguments": "{}"},
                ),
                Row(number=2, sequence=2**62, run_id="r", at=-1.5e300, kind="ü", version=0, body="{}"),
            ]
            lease = await log.create("root", run_info("root"))
            await log.append(lease, 0, rows, status="running")
            _require(await log.read("root") == rows, "each field must come back")

    async def test_a_wrong_number_stores_nothing(self) -> None:
        """Neither too early nor too late."""
        async with self._log() as log:
            lease = await self._written(log, "root", 3)
            for expected in (0, 2, 4, 100):
                late = log.append(lease, expected, stored_rows(expected, 2), status="failed")
                await _refused(LostRunError, late, f"an append behind {expected} of 3")
            _require(await log.read("root") == stored_rows(0, 3), "nothing may have been stored")
            _require((await self._info(log, "root")).status == "running", "nor may the status have changed")

    async def test_rows_are_numbered_without_a_gap(self) -> None:
        """A list with a hole is a mistake of the caller's, and nothing of it is stored."""
        async with self._log() as log:
            lease = await self._written(log, "root", 1)
            for rows in ([*stored_rows(1, 1), *stored_rows(3, 1)], stored_rows(2, 1), stored_rows(0, 1)):
                await _refused(ValueError, log.append(lease, 1, rows, status="running"), "a gap in the numbers")
            _require(await log.read("root") == stored_rows(0, 1), "nothing may have been stored")

    async def test_a_stale_fence_stores_nothing(self) -> None:
        """The fence alone is enough, whatever the lock says."""
        async with self._log() as log:
            await log.release(await self._written(log, "root", 1))
            lease, _ = await log.acquire("root")
            stale = replace(lease, fence=lease.fence - 1)
            await _refused(LostRunError, log.append(stale, 1, stored_rows(1, 1), status="running"), "a stale fence")
            await log.append(lease, 1, stored_rows(1, 1), status="running")

    async def test_a_released_lease_stores_nothing(self) -> None:
        """Also while nobody else has taken the root."""
        async with self._log() as log:
            lease = await self._written(log, "root", 1)
            await log.release(lease)
            late = log.append(lease, 1, stored_rows(1, 1), status="running")
            await _refused(LostRunError, late, "an append after the release")

    async def test_a_lease_without_the_store_s_handle_stores_nothing(self) -> None:
        """Knowing the numbers is not having the lease."""
        async with self._log() as log:
            lease = await self._written(log, "root", 1)
            forged = Lease(root_id="root", fence=lease.fence, attempt=lease.attempt)
            await _refused(LostRunError, log.append(forged, 1, stored_rows(1, 1), status="running"), "a forged lease")

    async def test_a_deleted_root_takes_no_records(self) -> None:
        """Neither itself nor the one that was created in its place."""
        async with self._log() as log:
            lease = await self._written(log, "root", 1)
            await log.release(lease)
            await log.delete("root")
            await log.create("root", run_info("root"))
            for expected in (0, 1):
                late = log.append(lease, expected, stored_rows(expected, 1), status="running")
                await _refused(LostRunError, late, "an append to a deleted root")
            _require(await log.read("root") == [], "the new root must be empty")

    async def test_one_of_two_writers_of_a_number_wins(self) -> None:
        """Two tasks that share a lease by mistake are told apart by the number."""
        async with self._log() as log:
            lease = await self._written(log, "root", 1)
            ended, errors = await _outcomes(
                *(log.append(lease, 1, stored_rows(1, 1), status="running") for _ in range(6))
            )
            _require(len(ended) == 1, f"one append must win, not {len(ended)}")
            _require(all(isinstance(error, LostRunError) for error in errors), f"the others are lost: {errors!r}")
            _require(await log.read("root") == stored_rows(0, 2), "the row must be there once")

    async def test_appends_of_many_roots_do_not_mix(self) -> None:
        """One that is refused undoes none of those that are committed with it."""
        async with self._log() as log:
            leases = [await log.create(f"root-{n}", run_info(f"root-{n}")) for n in range(6)]
            expected = [0, 0, 5, 0, 7, 0]
            _, errors = await _outcomes(
                *(
                    log.append(lease, after, stored_rows(after, 2), status="running")
                    for lease, after in zip(leases, expected, strict=True)
                )
            )
            counts = [len(await log.read(lease.root_id)) for lease in leases]
            _require(counts == [2, 2, 0, 2, 0, 2], f"the refused ones alone must be empty: {counts}")
            _require([type(error) for error in errors] == [LostRunError] * 2, f"and are told so: {errors!r}")

    async def test_a_status_can_change_without_rows(self) -> None:
        """An attempt that ended for a reason outside the run has nothing to add to it."""
        async with self._log() as log:
            lease = await self._written(log, "root", 2)
            await log.append(lease, 2, [], status="resumable", summary={"why": "store"})
            known = await self._info(log, "root")
            _require((known.status, known.records) == ("resumable", 2), f"the status must have changed: {known!r}")

    async def test_empty_and_large_texts_are_stored(self) -> None:
        """Ten megabytes come back like none."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            large = "ü" * 5_000_000
            rows = stored_rows(0, 1, body="", bodies={"empty": "", "large": large})
            rows += stored_rows(1, 1, body=large)
            await log.append(lease, 0, rows, status="running")
            _require(await log.read("root") == rows, "each text must come back")

    async def test_nul_other_scripts_and_deep_nesting_are_stored(self) -> None:
        """A store does not look into a text."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            texts = ("a\0b", "\0", "🥛\u202e\ufeff\uffff", "\r\n\x1b[31m", "[" * 100_000 + "]" * 100_000)
            rows = [
                row for n, text in enumerate(texts) for row in stored_rows(n, 1, body=text, bodies={text[:9]: text})
            ]
            await log.append(lease, 0, rows, status="running")
            _require(await log.read("root") == rows, "each text must come back")

    async def test_a_summary_stays_until_it_is_replaced(self) -> None:
        """What the run waits for does not vanish because something was appended."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root", summary={"waits": "for you"}))
            await log.append(lease, 0, stored_rows(0, 1), status="paused")
            _require((await self._info(log, "root")).summary == {"waits": "for you"}, "it must stay")
            await log.append(lease, 1, stored_rows(1, 1), status="running", summary={})
            _require((await self._info(log, "root")).summary == {}, "it must be replaced")

    async def test_what_no_row_can_be_is_refused(self) -> None:
        """As a mistake of the caller's, with nothing stored."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            changes: tuple[Mapping[str, Any], ...] = (
                {"body": "half \ud800"},
                {"body": None},
                {"bodies": {"result": "half \ud800"}},
                {"run_id": ""},
                {"kind": "half \ud800"},
                {"at": math.nan},
                {"sequence": -1},
                {"version": 2**63},
            )
            for change in changes:
                bad = log.append(lease, 0, [*stored_rows(0, 1), *stored_rows(1, 1, **change)], status="running")
                await _refused((ValueError, TypeError), bad, f"a row with {change!r}")
            status: Any = "asleep"
            await _refused(ValueError, log.append(lease, 0, stored_rows(0, 1), status=status), "an unknown status")
            _require(await log.read("root") == [], "nothing may have been stored")

    async def test_a_limit_is_named(self) -> None:
        """Whoever stores too much is told how much is allowed."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            large = log.append(lease, 0, stored_rows(0, 1, body="x" * (MAX_BODY_BYTES + 1)), status="running")
            _require("MAX_BODY_BYTES" in str(await _refused(StoreFullError, large, "a huge body")), "name the limit")
            many = log.append(lease, 0, stored_rows(0, MAX_APPEND_ROWS + 1), status="running")
            _require("MAX_APPEND_ROWS" in str(await _refused(StoreFullError, many, "many rows")), "name the limit")
            await log.append(lease, 0, stored_rows(0, 1), status="running")

    async def test_what_was_stored_is_the_store_s(self) -> None:
        """A caller that changes its own mapping afterwards changes nothing here."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            bodies = {"result": "1"}
            await log.append(lease, 0, stored_rows(0, 1, bodies=bodies), status="running")
            bodies["result"] = "2"
            _require((await log.read("root"))[0].bodies == {"result": "1"}, "the stored text must stay")

    async def test_an_append_is_dated_by_the_environment(self) -> None:
        """A simulation decides what time it is."""
        async with self._log() as log:
            with use_environment(ManualClock(start=1_800_000_000.0)):
                await self._written(log, "root", 1)
            known = await self._info(log, "root")
            _require((known.created_at, known.updated_at) == (1_767_225_600.0, 1_800_000_000.0), f"{known!r}")

    async def test_a_lease_can_be_released_twice(self) -> None:
        """Cleaning up needs no bookkeeping."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            await log.release(lease)
            await log.release(lease)
            await log.acquire("root")

    async def test_a_former_owner_s_release_harms_nobody(self) -> None:
        """The root stays with whoever has it now."""
        async with self._log() as log:
            first = await self._written(log, "root", 1)
            await log.release(first)
            second, _ = await log.acquire("root")
            await log.release(first)
            await _refused(RunBusyError, log.acquire("root"), "a root whose former owner released it again")
            await log.append(second, 1, stored_rows(1, 1), status="running")

    async def test_a_released_root_shows_no_owner(self) -> None:
        """Nobody drives it."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            _require(bool((await self._info(log, "root")).owner), "a driven root shows its owner")
            await log.release(lease)
            _require((await self._info(log, "root")).owner is None, "a released one shows none")

    async def test_releasing_changes_no_records_and_no_status(self) -> None:
        """It says nothing about the run."""
        async with self._log() as log:
            lease = await self._written(log, "root", 2)
            before = await self._info(log, "root")
            await log.release(lease)
            await log.acquire("root")
            after = await self._info(log, "root")
            _require(replace(after, attempts=1, owner=before.owner) == before, f"{before!r} became {after!r}")

    async def test_a_lease_of_a_deleted_root_can_be_released(self) -> None:
        """Harmless, like every release of what is gone."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            await log.release(lease)
            await log.delete("root")
            await log.create("root", run_info("root"))
            await log.release(lease)
            await _refused(RunBusyError, log.acquire("root"), "the new root")

    async def test_a_lease_can_be_released_after_the_end(self) -> None:
        """Whoever cleans up need not know in which order the rest was closed."""
        log = await self.make()
        lease = await log.create("root", run_info("root"))
        await log.close()
        await log.release(lease)

    async def test_a_forged_lease_releases_nothing(self) -> None:
        """Knowing the numbers is not having the lease."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            await log.release(Lease(root_id="root", fence=lease.fence, attempt=1))
            await _refused(RunBusyError, log.acquire("root"), "a driven root")

    async def test_many_leases_are_released_one_by_one(self) -> None:
        """Each lock is a root's own."""
        async with self._log() as log:
            leases = [await log.create(f"root-{n}", run_info(f"root-{n}")) for n in range(5)]
            await log.release(leases[2])
            for number in (0, 1, 3, 4):
                await _refused(RunBusyError, log.acquire(f"root-{number}"), "a root that was not released")
            await log.acquire("root-2")

    async def test_an_unknown_root_cannot_be_read(self) -> None:
        """An empty list would say that there is one."""
        async with self._log() as log:
            await _refused(UnknownRunError, log.read("root"), "an unknown root")

    async def test_a_root_is_read_from_any_number(self) -> None:
        """A reader who comes back asks for the rest."""
        async with self._log() as log:
            await self._written(log, "root", 6)
            for after in range(9):
                rows = await log.read("root", after)
                _require(rows == stored_rows(0, 6)[after:], f"behind {after}: {rows!r}")

    async def test_a_root_without_records_reads_empty(self) -> None:
        """It exists."""
        async with self._log() as log:
            await log.create("root", run_info("root"))
            _require(await log.read("root") == [], "there is no record")

    async def test_reading_needs_no_lease_and_changes_nothing(self) -> None:
        """Looking at a driven run disturbs nobody."""
        async with self._log() as log:
            lease = await self._written(log, "root", 2)
            before = await self._info(log, "root")
            await log.read("root")
            _require(await self._info(log, "root") == before, "reading must change nothing")
            await log.append(lease, 2, stored_rows(2, 1), status="running")

    async def test_a_reader_sees_whole_appends(self) -> None:
        """All rows of an append or none of them, whatever is written meanwhile."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))

            async def write() -> None:
                for after in range(0, 60, 3):
                    await log.append(lease, after, stored_rows(after, 3), status="running")

            writing = asyncio.ensure_future(write())
            while not writing.done():
                rows = await log.read("root")
                await asyncio.sleep(0)  # a log that never waits would keep the writer from its turn
                _require(len(rows) % 3 == 0, f"part of an append was seen: {len(rows)} rows")
            await writing

    async def test_a_number_to_read_after_is_counted_from_zero(self) -> None:
        """Anything else is a mistake of the caller's."""
        async with self._log() as log:
            await self._written(log, "root", 1)
            bad: Any
            for bad in (-1, "1", None, 0.5):
                await _refused((ValueError, TypeError), log.read("root", bad), f"after {bad!r}")

    async def test_equal_bodies_belong_to_each_row(self) -> None:
        """However a store keeps them."""
        async with self._log() as log:
            rows = stored_rows(0, 3, bodies={"result": "x" * 5000, "again": "x" * 5000})
            lease = await log.create("root", run_info("root"))
            await log.append(lease, 0, rows, status="running")
            _require(await log.read("root", 1) == rows[1:], "each row must have them")

    async def test_what_was_read_is_the_reader_s(self) -> None:
        """A reader that changes its list changes nothing here."""
        async with self._log() as log:
            await self._written(log, "root", 2)
            (await log.read("root")).clear()
            _require(await log.read("root") == stored_rows(0, 2), "the list must stay")

    async def test_an_unknown_root_is_none(self) -> None:
        """Asking is no mistake."""
        async with self._log() as log:
            _require(await log.get("root") is None, "there is none")
            await self._written(log, "root", 1)
            _require(await log.get("Root") is None and await log.get("root ") is None, "nor one that is like it")

    async def test_an_info_counts_records_and_shows_the_last_status(self) -> None:
        """It is written together with the rows."""
        async with self._log() as log:
            lease = await log.create("root", run_info("root"))
            for after, status in enumerate(("running", "paused", "uncertain", "completed")):
                state: Any = status
                await log.append(lease, after, stored_rows(after, 1), status=state)
                known = await self._info(log, "root")
                _require((known.records, known.status) == (after + 1, status), f"it must say so: {known!r}")

    async def test_an_info_names_the_owner(self) -> None:
        """Whoever asks why a run is busy."""
        async with self._log() as log:
            await log.create("root", run_info("root"))
            busy = await _refused(RunBusyError, log.acquire("root"), "a driven root")
            owner = (await self._info(log, "root")).owner or ""
            _require(f"{busy.owner}" in owner and f"{busy.since}" in owner, f"{owner!r} must name {busy.owner!r}")

    async def test_an_info_without_a_session_says_none(self) -> None:
        """Which is not an empty text."""
        async with self._log() as log:
            await log.create("root", run_info("root", session_id=None))
            _require((await self._info(log, "root")).session_id is None, "there is none")

    async def test_a_summary_comes_back_as_it_was(self) -> None:
        """Nested, in other scripts, with any number."""
        async with self._log() as log:
            summary: dict[str, Any] = {"list": [{"a": None}, 2**60, 0.1, True], "ü": "\0🥛", "": {}}
            await log.create("root", run_info("root", summary=summary))
            _require((await self._info(log, "root")).summary == summary, "it must come back")

    async def test_what_is_no_name_is_not_looked_for(self) -> None:
        """It is a mistake of the caller's."""
        async with self._log() as log:
            for name in NO_NAMES:
                await _refused((ValueError, TypeError), log.get(name), f"the id {name!r:.30}")
                await _refused((ValueError, TypeError), log.read(name), f"the id {name!r:.30}")
                await _refused((ValueError, TypeError), log.acquire(name), f"the id {name!r:.30}")
                await _refused((ValueError, TypeError), log.delete(name), f"the id {name!r:.30}")

    async def test_an_info_is_the_asker_s(self) -> None:
        """Changing it changes nothing here."""
        async with self._log() as log:
            told: dict[str, object] = {"waits": ["a"]}
            await log.create("root", run_info("root", summary=told))
            told.clear()
            known: Any = (await self._info(log, "root")).summary
            known["waits"].append("b")
            _require((await self._info(log, "root")).summary == {"waits": ["a"]}, "the stored summary must stay")

    async def test_asking_changes_nothing(self) -> None:
        """Not even who drives it."""
        async with self._log() as log:
            lease = await self._written(log, "root", 1)
            infos = [await self._info(log, "root") for _ in range(3)]
            _require(infos[0] == infos[1] == infos[2], "asking must change nothing")
            await log.append(lease, 1, stored_rows(1, 1), status="running")

    async def test_an_empty_log_lists_nothing(self) -> None:
        """Nor does it fail."""
        async with self._log() as log:
            _require(await log.list() == [], "there is nothing")

    async def test_the_latest_root_comes_first(self) -> None:
        """Whatever was appended to the others since."""
        async with self._log() as log:
            leases = [await log.create(f"root-{n}", run_info(f"root-{n}")) for n in range(4)]
            await log.append(leases[0], 0, stored_rows(0, 1), status="running")
            listed = [known.root_id for known in await log.list()]
            _require(listed == ["root-3", "root-2", "root-1", "root-0"], f"the order is {listed}")

    async def test_a_list_has_a_limit(self) -> None:
        """Twenty unless it is asked for otherwise."""
        async with self._log() as log:
            for number in range(22):
                await log.release(await log.create(f"root-{number}", run_info(f"root-{number}")))
            counts = [len(await log.list()), len(await log.list(limit=3)), len(await log.list(limit=100))]
            _require(counts == [20, 3, 22], f"the limit must hold: {counts}")

    async def test_a_limit_is_a_positive_number(self) -> None:
        """Anything else is a mistake of the caller's."""
        async with self._log() as log:
            bad: Any
            for bad in (0, -1, "1", None, 2**80):
                await _refused((ValueError, TypeError), log.list(limit=bad), f"the limit {bad!r}")

    async def test_a_list_is_filtered_by_status(self) -> None:
        """By the one that is stored now."""
        async with self._log() as log:
            for number, status in enumerate(("paused", "running", "paused")):
                state: Any = status
                lease = await log.create(f"root-{number}", run_info(f"root-{number}"))
                await log.append(lease, 0, stored_rows(0, 1), status=state)
            listed = [known.root_id for known in await log.list(status="paused")]
            _require(listed == ["root-2", "root-0"], f"only the paused ones: {listed}")

    async def test_a_list_is_filtered_by_agent_and_principal(self) -> None:
        """All filters hold at once."""
        async with self._log() as log:
            for number, (agent, principal) in enumerate((("a", "p"), ("a", "q"), ("b", "p"))):
                info = run_info(f"root-{number}", agent_name=agent, principal=principal)
                await log.create(f"root-{number}", info)
            listed = [
                [known.root_id for known in await log.list(agent_name="a")],
                [known.root_id for known in await log.list(principal="p")],
                [known.root_id for known in await log.list(agent_name="a", principal="p", status="running")],
            ]
            _require(listed == [["root-1", "root-0"], ["root-2", "root-0"], ["root-0"]], f"the filters gave {listed}")

    async def test_a_filter_is_a_value_and_no_pattern(self) -> None:
        """Whatever it looks like."""
        async with self._log() as log:
            await log.create("root", run_info("root"))
            for text in ("%", "*", "' OR 1=1 --", "agent' OR '1'='1", "AGENT", "\0", ""):
                listed = [*await log.list(agent_name=text), *await log.list(principal=text)]
                listed += await log.list(status=text)
                _require(listed == [], f"nothing is called {text!r}")

    async def test_a_list_shows_what_a_single_root_shows(self) -> None:
        """There is one truth."""
        async with self._log() as log:
            await self._written(log, "root", 2)
            _require(await log.list() == [await log.get("root")], "both must be the same")

    async def test_a_deleted_root_is_gone(self) -> None:
        """With its records and from every list."""
        async with self._log() as log:
            await log.release(await self._written(log, "root", 3))
            _require(await log.delete("root") is True, "it was there")
            _require((await log.get("root"), await log.list()) == (None, []), "it must be gone")
            await _refused(UnknownRunError, log.read("root"), "a deleted root")
            await _refused(UnknownRunError, log.acquire("root"), "a deleted root")

    async def test_an_unknown_root_is_not_deleted(self) -> None:
        """Which is no mistake, also the second time."""
        async with self._log() as log:
            _require(await log.delete("root") is False, "there was none")
            await log.release(await log.create("root", run_info("root")))
            answers = [await log.delete("root"), await log.delete("root")]
            _require(answers == [True, False], f"it was there once: {answers}")

    async def test_a_driven_root_is_not_deleted(self) -> None:
        """Its owner goes on."""
        async with self._log() as log:
            lease = await self._written(log, "root", 1)
            await _refused(RunBusyError, log.delete("root"), "a driven root")
            await log.append(lease, 1, stored_rows(1, 1), status="running")
            _require(await log.read("root") == stored_rows(0, 2), "nothing may be missing")

    async def test_a_body_stays_while_another_root_refers_to_it(self) -> None:
        """Equal texts may be stored once, and are not anybody's."""
        async with self._log() as log:
            rows = stored_rows(0, 1, bodies={"result": "x" * 5000})
            for name in ("first", "second"):
                lease = await log.create(name, run_info(name))
                await log.append(lease, 0, rows, status="completed")
                await log.release(lease)
            await log.delete("first")
            _require(await log.read("second") == rows, "the other root must keep its body")

    async def test_a_deleted_id_can_be_used_again(self) -> None:
        """It begins anew."""
        async with self._log() as log:
            await log.release(await self._written(log, "root", 3))
            await log.delete("root")
            lease = await log.create("root", run_info("root"))
            _require((lease.attempt, await log.read("root")) == (1, []), "it must begin anew")
            await log.append(lease, 0, stored_rows(0, 1), status="running")

    async def test_deleting_leaves_the_others_alone(self) -> None:
        """Driven or not."""
        async with self._log() as log:
            leases = [await self._written(log, f"root-{n}", 2) for n in range(3)]
            await log.release(leases[1])
            await log.delete("root-1")
            await log.append(leases[0], 2, stored_rows(2, 1), status="running")
            counts = [len(await log.read("root-0")), len(await log.read("root-2"))]
            _require(counts == [3, 2], f"the others must be complete: {counts}")

    async def test_one_of_many_deletes_finds_it(self) -> None:
        """The others find nothing, or one that is just being deleted."""
        async with self._log() as log:
            await log.release(await self._written(log, "root", 2))
            found, errors = await _outcomes(*(log.delete("root") for _ in range(6)))
            _require(found.count(True) == 1, f"it was there once: {found}")
            _require(all(isinstance(error, RunBusyError) for error in errors), f"and else busy: {errors!r}")

    async def test_a_deleted_root_is_gone_for_another_log(self) -> None:
        """The store forgot it."""
        async with self._two_logs() as (log, other):
            await log.release(await self._written(log, "root", 1))
            _require(await other.delete("root") is True, "the other one must find it")
            _require(await log.get("root") is None, "it must be gone")

    async def test_a_closed_log_does_nothing(self) -> None:
        """And says that it was closed, whatever is asked."""
        log = await self.make()
        lease = await self._written(log, "root", 1)
        await log.close()
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: log.create("new", run_info("new")),
            lambda: log.acquire("root"),
            lambda: log.append(lease, 1, stored_rows(1, 1), status="running"),
            lambda: log.read("root"),
            lambda: log.get("root"),
            lambda: log.list(),
            lambda: log.delete("root"),
        ]
        for call in calls:
            await _refused(StoreClosedError, call(), "a call on a closed log")

    async def test_a_log_can_be_closed_twice(self) -> None:
        """Also one that was never used."""
        log = await self.make()
        await log.close()
        await log.close()
        await _refused(StoreClosedError, log.list(), "a call on a closed log")

    async def test_closing_at_once_from_many_tasks_is_harmless(self) -> None:
        """Whoever closes need not be the only one."""
        log = await self.make()
        await self._written(log, "root", 1)
        _, errors = await _outcomes(*(log.close() for _ in range(4)))
        _require(errors == [], f"each must return: {errors!r}")

    async def test_what_was_asked_before_the_close_is_answered(self) -> None:
        """With what it asked for or with an error, and never not at all."""
        log = await self.make()
        lease = await log.create("root", run_info("root"))
        asked: list[Awaitable[Any]] = [log.append(lease, 0, stored_rows(0, 2), status="running"), log.read("root")]
        tasks = [asyncio.ensure_future(each) for each in asked]
        await asyncio.sleep(0)
        await log.close()
        _, errors = await _outcomes(*tasks)
        _require(all(isinstance(error, DurableExecutionError) for error in errors), f"they were told {errors!r}")

    async def test_a_close_at_any_moment_leaves_nobody_waiting(self) -> None:
        """Nor a root driven by somebody who never came to know of it."""
        for turns in range(10):
            log = await self.make()
            name = f"root-{turns}"
            await log.release(await self._written(log, name, 1))
            asked = asyncio.ensure_future(log.acquire(name))
            for _ in range(turns):
                await asyncio.sleep(0)
            await log.close()
            _, errors = await _outcomes(asked)
            _require(all(isinstance(error, StoreClosedError) for error in errors), f"it was told {errors!r}")

    async def test_closing_releases_every_lease(self) -> None:
        """Somebody else can take the runs up."""
        async with self._two_logs() as (log, other):
            for number in range(3):
                await self._written(log, f"root-{number}", 1)
            await log.close()
            for number in range(3):
                _, rows = await other.acquire(f"root-{number}")
                _require(rows == stored_rows(0, 1), "the list must be there")

    async def test_closing_one_log_leaves_another_open(self) -> None:
        """They share nothing but what is stored."""
        async with self._two_logs() as (log, other):
            lease = await self._written(other, "root", 1)
            await log.list()
            await log.close()
            await other.append(lease, 1, stored_rows(1, 1), status="running")
            _require(await other.read("root") == stored_rows(0, 2), "the other one must go on")

    async def test_a_closed_store_opens_again_with_everything(self) -> None:
        """That is what it is for."""
        async with self._two_logs() as (log, other):
            await log.release(await self._written(log, "root", 3))
            await log.close()
            _require(await other.read("root") == stored_rows(0, 3), "nothing may be missing")

    async def test_a_log_works_from_several_event_loops(self) -> None:
        """An application may have one in each thread."""
        log = await self.make()
        failures: list[BaseException] = []

        async def work(number: int) -> None:
            lease = await self._written(log, f"root-{number}", 2)
            await log.release(lease)
            lease, rows = await log.acquire(f"root-{number}")
            await log.append(lease, 2, stored_rows(2, 1), status="completed")
            _require(len(rows) == 2, f"two rows were stored, not {len(rows)}")

        def serve(number: int) -> None:
            try:
                with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                    runner.run(work(number))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        _require(failures == [], f"each loop must be served: {failures!r}")
        _require([len(await log.read(f"root-{n}")) for n in range(4)] == [3] * 4, "each root must be complete")
        await log.close()

    @asynccontextmanager
    async def _log(self) -> AsyncGenerator[RecordLog]:
        log = await self.make()
        try:
            yield log
        finally:
            await log.close()

    @asynccontextmanager
    async def _two_logs(self) -> AsyncGenerator[tuple[RecordLog, RecordLog]]:
        async with self._log() as log:
            other = await self.other(log)
            if other is None:
                raise SkipTest("there is only one log of what this one stores")
            try:
                yield log, other
            finally:
                await other.close()

    async def _written(self, log: RecordLog, root_id: str, count: int) -> Lease:
        lease = await log.create(root_id, run_info(root_id))
        await log.append(lease, 0, stored_rows(0, count), status="running")
        return lease

    async def _info(self, log: RecordLog, root_id: str) -> RunInfo:
        info = await log.get(root_id)
        if info is None:
            raise AssertionError(f"{root_id!r} must be known")
        return info
