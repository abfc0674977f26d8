"""What happens to a SQLite record log when its process, its disk, its file or its neighbours fail."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import random
import signal
import sqlite3
import stat
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protolink.durable.port import Lease
from protolink.durable.schema import APPLICATION_ID
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import (
    DurableExecutionError,
    LostRunError,
    RunBusyError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
    StoreVersionError,
    UnknownRunError,
)
from protolink.testing.record_log import run_info, stored_rows
from tests.durable.processes import running, said_by
from tests.reliability.scale import scaled
from tests.reliability.tally import Tally


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


@asynccontextmanager
async def opened(path: Path, busy_timeout: float = 5.0, read_only: bool = False) -> AsyncGenerator[SQLiteRecordLog]:
    log = SQLiteRecordLog(path, busy_timeout=busy_timeout, read_only=read_only)
    try:
        yield log
    finally:
        await log.close()


async def written(log: SQLiteRecordLog, root_id: str, count: int, **changes: object) -> Lease:
    lease = await log.create(root_id, run_info(root_id))
    await log.append(lease, 0, stored_rows(0, count, **changes), status="running")
    return lease


async def make_store(path: Path) -> None:
    """Two paused roots; the first has a large body."""
    async with opened(path) as log:
        for root_id in ("first", "second"):
            lease = await written(log, root_id, 4)
            rows = stored_rows(4, 1, bodies={"result": f'"{root_id * 800}"'})
            await log.append(lease, 4, rows, status="paused", summary={"waits": root_id})


def sql(path: Path, *statements: str) -> None:
    """Change the file as another program would."""
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


KILLED_AT_EVERY_STATEMENT = """
import shutil
from pathlib import Path

folder = Path(path)
connect = sqlite3.connect
statements = 0


def dying_at(last):
    def count(statement):
        global statements
        statements += 1
        if statements == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def traced(*args, **options):
        connection = connect(*args, **options)
        connection.set_trace_callback(count)
        return connection

    return traced


async def run(store, acknowledge):
    log = SQLiteRecordLog(store)
    lease = await log.create("root", run_info("root"))
    acknowledge(1)
    for after in (0, 3, 6):
        rows = stored_rows(after, 3, bodies={"result": "x" * 100})
        await log.append(lease, after, rows, status="running")
        acknowledge(3)
    await log.release(lease)
    lease, rows = await log.acquire("root")
    await log.append(lease, 9, stored_rows(9, 1), status="completed")
    acknowledge(1)
    await log.close()
    return 0


async def verify(store, acknowledged):
    log = SQLiteRecordLog(store)
    try:
        lease, rows = await log.acquire("root")
    except UnknownRunError:
        assert not acknowledged, "an acknowledged root is gone"
        lease, rows = await log.create("root", run_info("root")), []
    allowed = {0: (0,), 1: (0, 3), 4: (3, 6), 7: (6, 9), 10: (9, 10), 11: (10,)}[acknowledged]
    assert len(rows) in allowed, f"{acknowledged} were acknowledged, and {len(rows)} records are there"
    whole = [*stored_rows(0, 9, bodies={"result": "x" * 100}), *stored_rows(9, 1)]
    assert rows == whole[: len(rows)], "a record was changed"
    await log.append(lease, len(rows), stored_rows(len(rows), 1), status="running")
    await log.close()
    return 0


def forked(work):
    if (pid := os.fork()) == 0:
        code = 99
        try:
            code = asyncio.run(work())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


last = 0
while True:
    last += 1
    here = folder / str(last)
    here.mkdir()
    heard, said = os.pipe()
    sqlite3.connect = dying_at(last)
    ended = forked(lambda: run(here / "runs.sqlite", lambda count: os.write(said, b"." * count)))
    sqlite3.connect = connect
    os.write(said, b"!")
    acknowledged = len(os.read(heard, 100)) - 1
    if ended == 0:
        break
    assert ended == -signal.SIGKILL, f"it ended with {ended} and not at statement {last}"
    assert forked(lambda: verify(here / "runs.sqlite", acknowledged)) == 0, f"killed at statement {last}"
    shutil.rmtree(here)
say(last)
"""


@pytest.mark.fault(name="F1")
def test_a_kill_at_any_statement_loses_nothing_that_was_acknowledged(tally: Tally) -> None:
    """From the making of the file to its closing; each file opens again, and the run goes on in it."""
    # A killed process loses nothing that it has written, synced or not, so this may be a disk in memory.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        said = said_by(KILLED_AT_EVERY_STATEMENT, folder)

    assert said
    tally.add("kills at statements of a list", int(said[0]) - 1)
    assert int(said[0]) > 90


DRIVING = """
async def drive():
    log = SQLiteRecordLog(path)
    lease = await log.create("root", run_info("root"))
    await log.append(lease, 0, stored_rows(0, 3), status="running")
    say("driving")
    wait()

asyncio.run(drive())
"""


async def test_a_dead_owner_s_run_is_taken_up_at_once(path: Path) -> None:
    """The lock went with the process; no clock has to run out."""
    with running(DRIVING, path) as owner:
        assert owner.hears() == "driving"
        owner.kill()

    async with opened(path) as log:
        lease, rows = await log.acquire("root")
        assert (lease.attempt, rows) == (2, stored_rows(0, 3))


async def test_a_dead_owner_is_not_shown(path: Path) -> None:
    """A list that says who drives a run does not name the dead."""
    with running(DRIVING, path) as owner:
        owner.hears()
        owner.kill()

    async with opened(path) as log:
        assert [known.owner for known in await log.list()] == [None]


async def test_a_stopped_owner_keeps_its_run(path: Path) -> None:
    """Being slow is not being dead, however long it takes; the loser is told who has the run."""
    with running(DRIVING, path) as owner:
        assert owner.hears() == "driving"
        owner.stop(signal.SIGSTOP)
        async with opened(path) as log:
            with pytest.raises(RunBusyError) as busy:
                await log.acquire("root")
            assert str(owner.pid) in (busy.value.owner or "")
            known = await log.get("root")

    assert known is not None
    assert (known.attempts, known.records) == (1, 3)


FORKED = """
import warnings

log = SQLiteRecordLog(path)
lease = asyncio.run(log.create("root", run_info("root")))
warnings.simplefilter("ignore", DeprecationWarning)  # newer versions warn of forking with threads
if os.fork() == 0:
    try:
        asyncio.run(log.append(lease, 0, stored_rows(0, 1), status="running"))
    except LostRunError:
        say("the child has no lease")
    say("the child is there")
    wait()
    os._exit(0)
signal.pause()
"""


async def test_a_forked_child_does_not_keep_its_parent_s_lease(path: Path) -> None:
    """A lock that was inherited would keep a dead owner's run busy for as long as the child lives."""
    with running(FORKED, path) as parent:
        assert [parent.hears(), parent.hears()] == ["the child has no lease", "the child is there"]
        parent.kill()

        async with opened(path) as log:
            lease, rows = await log.acquire("root")

    assert (lease.attempt, rows) == (2, [])


RACING = """
async def acquire(number):
    log = SQLiteRecordLog(path)
    try:
        lease, rows = await log.acquire("root")
    except RunBusyError as error:
        return 1 if error.owner and error.since else 98
    os.write(said, b".")
    os.read(held, 1)  # until every loser has been told
    await log.append(lease, len(rows), stored_rows(len(rows), 1), status="running")
    return 0


async def make():
    log = SQLiteRecordLog(path)
    await log.close() if await log.get("root") else await log.release(await log.create("root", run_info("root")))
    await log.close()


async def look():
    log = SQLiteRecordLog(path)
    say((await log.get("root")).attempts)
    say(len(await log.read("root")))
    await log.close()


asyncio.run(make())
for _ in range(10):
    heard, said = os.pipe()
    held, free = os.pipe()
    gate, opened = os.pipe()
    pids = []
    for number in range(4):
        if (pid := os.fork()) == 0:
            code = 99
            try:
                os.close(opened)
                os.close(free)
                os.read(gate, 1)
                code = asyncio.run(acquire(number))
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(opened)
    os.close(gate)
    os.read(heard, 1)
    codes = [os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(3)]
    os.close(free)
    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
    say(" ".join(map(str, codes)))
asyncio.run(look())
"""


def test_of_four_processes_one_takes_a_run_up(path: Path) -> None:
    """The others are told that it is busy and by whom, and get no other error; nothing is counted for them."""
    *rounds, attempts, records = said_by(RACING, path)

    assert rounds == ["1 1 1 0"] * 10
    assert (attempts, records) == ("11", "10")


OPENING = """
async def work(number):
    log = SQLiteRecordLog(path)
    lease = await log.create(f"root-{number}", run_info(f"root-{number}"))
    await log.append(lease, 0, stored_rows(0, 2), status="completed")
    await log.close()
    return 0

for attempt in range(5):
    path = f"{sys.argv[1]}-{attempt}"
    say(children(8, work))
"""


async def test_eight_processes_may_make_the_file_at_once(path: Path) -> None:
    """Whoever comes first makes the tables, and nobody fails."""
    assert said_by(OPENING, path) == [str([0] * 8)] * 5

    for attempt in range(5):
        async with opened(Path(f"{path}-{attempt}")) as log:
            assert {known.records for known in await log.list()} == {2}
            assert len(await log.list()) == 8


LOCKING = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
print("unlocked", flush=True)
sys.stdin.readline()
"""


@pytest.mark.fault(name="F8")
async def test_a_store_that_others_lock_for_a_while_is_waited_for(path: Path) -> None:
    """Another program's transaction is no fault."""
    async with opened(path, busy_timeout=25.0) as log:
        lease = await written(log, "root", 1)
        with running(LOCKING, path, prelude="") as other:
            assert other.hears() == "locked"
            appending = asyncio.ensure_future(log.append(lease, 1, stored_rows(1, 2), status="running"))
            done, _ = await asyncio.wait({appending}, timeout=1.0)
            assert not done
            other.tell()
            await appending
        assert await log.read("root") == stored_rows(0, 3)


@pytest.mark.fault(name="F8")
async def test_a_store_that_others_lock_for_ever_is_busy(path: Path) -> None:
    """Each call ends by its timeout, says what was not done, and the store goes on when it is free."""
    async with opened(path, busy_timeout=0.2) as log:
        lease = await written(log, "root", 1)
        with running(LOCKING, path, prelude="") as other:
            other.hears()
            with pytest.raises(StoreBusyError, match="2 records of root 'root' were not stored"):
                await log.append(lease, 1, stored_rows(1, 2), status="running")
            assert await log.read("root") == stored_rows(0, 1)
            other.tell()
            assert other.hears() == "unlocked"
            await log.append(lease, 1, stored_rows(1, 2), status="running")
        assert await log.read("root") == stored_rows(0, 3)


@pytest.mark.fault(name="F8")
async def test_a_driven_root_is_busy_also_while_the_store_is_locked(path: Path) -> None:
    """The lease can be seen without writing, and who loses a run is told so and not something else."""
    async with opened(path) as log, opened(path, busy_timeout=0.1) as late:
        lease = await written(log, "root", 1)
        await log.release(await written(log, "free", 1))
        with running(LOCKING, path, prelude="") as other:
            other.hears()
            with pytest.raises(RunBusyError) as busy:
                await late.acquire("root")
            with pytest.raises(StoreBusyError):
                await late.acquire("free")
            with pytest.raises(UnknownRunError):
                await late.acquire("unknown")
        assert busy.value.owner is not None
        await log.append(lease, 1, stored_rows(1, 1), status="running")


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every connection that is opened during the test, to put a limit on it."""
    made: list[sqlite3.Connection] = []
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def connected(*args: object, **options: object) -> sqlite3.Connection:
        made.append(connect(*args, **options))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", connected)
    return made


async def test_a_full_disk_stores_nothing_of_an_append(path: Path, connections: list[sqlite3.Connection]) -> None:
    """The error is the library's own, and with room again the run goes on."""
    async with opened(path) as log:
        lease = await written(log, "root", 1)
        connections[0].execute("PRAGMA max_page_count = 20")
        large = stored_rows(1, 2, body="x" * 60_000)
        with pytest.raises(StoreFullError, match="2 records of root 'root' were not stored"):
            await log.append(lease, 1, large, status="failed")
        known = await log.get("root")
        connections[0].execute("PRAGMA max_page_count = 4294967294")
        await log.append(lease, 1, large, status="completed")

        assert known is not None
        assert (known.status, known.records) == ("running", 1)
        assert await log.read("root") == [*stored_rows(0, 1), *large]


async def test_a_full_disk_fails_only_what_has_no_room(path: Path, connections: list[sqlite3.Connection]) -> None:
    """What is committed together with an append that fails is stored all the same."""
    async with opened(path) as log:
        leases = [await written(log, f"root-{n}", 1) for n in range(3)]
        connections[0].execute("PRAGMA max_page_count = 20")
        sizes = (10, 60_000, 10)
        ended = await asyncio.gather(
            *(
                log.append(lease, 1, stored_rows(1, 1, body="x" * size), status="running")
                for lease, size in zip(leases, sizes, strict=True)
            ),
            return_exceptions=True,
        )

        assert [type(each) for each in ended] == [type(None), StoreFullError, type(None)]
        assert [len(await log.read(lease.root_id)) for lease in leases] == [2, 1, 2]


class Careless(sqlite3.Connection):
    """One that syncs less than it was told to, as a build of SQLite or a wrapper might."""

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        return super().execute(sql.replace("synchronous = FULL", "synchronous = NORMAL"), *arguments)


async def test_a_setting_that_does_not_take_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a sync before each effect the promise would not hold, so nothing is begun."""
    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Careless))

    async with opened(path) as log:
        with pytest.raises(StoreError, match="PRAGMA synchronous is 1 and has to be 2"):
            await log.create("root", run_info("root"))


WITHOUT_THREADS = """
import threading

LARGER_THAN_MEMORY = 1 << 46


async def attempt():
    log = SQLiteRecordLog(path)
    for size in (LARGER_THAN_MEMORY, 0):
        threading.stack_size(size)
        try:
            await log.create("root", run_info("root"))
        except StoreError as error:
            say(error)
        else:
            say("done")
    await log.close()

asyncio.run(attempt())
"""


def test_a_store_without_threads_says_so_and_opens_when_there_are_some(path: Path) -> None:
    """The system may have no more of them to give."""
    assert said_by(WITHOUT_THREADS, path) == ["root 'root' was not created: no thread could be started", "done"]


READ_ONLY = """
async def attempt(log, call):
    try:
        await call(log)
    except Exception as error:
        say(type(error).__name__)
    else:
        say("done")
    await log.close()


async def all_of_it():
    await attempt(SQLiteRecordLog(path), lambda log: log.create("new", run_info("new")))
    await attempt(SQLiteRecordLog(path), lambda log: log.acquire("first"))
    await attempt(SQLiteRecordLog(path, read_only=True), lambda log: log.acquire("first"))
    log = SQLiteRecordLog(path, read_only=True)
    say([known.root_id for known in await log.list()])
    say(len(await log.read("first")))
    await log.close()
    return 0


if os.geteuid() == 0 and os.fork() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    os._exit(asyncio.run(all_of_it()))
elif os.geteuid() == 0:
    os.wait()
else:
    asyncio.run(all_of_it())
"""


@pytest.fixture
def public_folder() -> Generator[Path]:
    """A folder that another user can look into, which pytest's are not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)
        os.chmod(name, 0o755)


@pytest.mark.fault(name="F7")
async def test_a_read_only_file_can_be_read_and_says_so_otherwise(public_folder: Path) -> None:
    """Neither the file nor its folder can be written by whoever looks at it."""
    path = public_folder / "runs.sqlite"
    await make_store(path)
    path.chmod(0o444)
    public_folder.chmod(0o555)
    before = hashlib.sha256(path.read_bytes()).digest()

    said = said_by(READ_ONLY, path)

    assert said == [*["StoreReadOnlyError"] * 3, "['second', 'first']", "5"]
    assert hashlib.sha256(path.read_bytes()).digest() == before


@pytest.mark.fault(name="F7")
async def test_reading_only_makes_no_file(path: Path) -> None:
    """A mistyped path stays a mistake."""
    async with opened(path, read_only=True) as log:
        with pytest.raises(StoreReadOnlyError):
            await log.list()

    assert list(path.parent.iterdir()) == []


@pytest.mark.fault(name="F9")
async def test_a_flipped_bit_is_never_an_answer(tmp_path: Path, tally: Tally) -> None:
    """Wherever it is: the list comes back as it was stored, or not at all."""
    whole = tmp_path / "whole.sqlite"
    await make_store(whole)
    content = whole.read_bytes()
    async with opened(whole) as log:
        expected = {root_id: (await log.get(root_id), await log.read(root_id)) for root_id in ("first", "second")}
    chance = random.Random(20260101)
    for number in range(scaled(commit=60, short=200, full=1_000)):
        place = chance.randrange(len(content))
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        path = tmp_path / f"{number}.sqlite"
        path.write_bytes(damaged)
        async with opened(path) as log:
            for root_id, stored in expected.items():
                try:
                    found = await log.get(root_id), await log.read(root_id)
                except DurableExecutionError:
                    tally.add("lists refused")
                else:
                    assert found in (stored, (None, [])), f"bit {place} changed what was read"
        tally.add("flips under a list")
        for file in tmp_path.glob(f"{number}.*"):
            file.unlink()

    assert tally["lists refused"] > 0


CHANGES = {
    "a body": "UPDATE records SET body = replace(body, '2', '9') WHERE run = 1 AND number = 2",
    "a time": "UPDATE records SET at = at + 1 WHERE run = 1 AND number = 2",
    "a kind": "UPDATE records SET kind = 'wished' WHERE run = 1 AND number = 2",
    "a missing record": "DELETE FROM records WHERE run = 1 AND number = 2",
    "another root's record": """
        UPDATE records SET (body, run_id, checksum) = (SELECT body, run_id, checksum FROM records WHERE run = 2
        AND number = 2) WHERE run = 1 AND number = 2
    """,
    "a reference": "UPDATE records SET bodies = replace(bodies, 'result', 'error') WHERE run = 1 AND number = 5",
    "a large text": "UPDATE blobs SET text = replace(text, 'first', 'worst')",
}


@pytest.mark.fault(name="F9")
@pytest.mark.parametrize("change", CHANGES)
async def test_a_changed_record_is_detected(path: Path, change: str) -> None:
    """The error names the root and the record, and the other root is unharmed."""
    await make_store(path)
    sql(path, CHANGES[change])

    async with opened(path) as log:
        for call in (log.read, log.acquire):
            with pytest.raises(StoreDamagedError, match=r"record [25] of root 'first'"):
                await call("first")
        assert len((await log.acquire("second"))[1]) == 5
        assert await log.delete("first")


@pytest.mark.fault(name="F9")
async def test_records_that_are_cut_off_are_missed(path: Path) -> None:
    """The root knows how many it has."""
    await make_store(path)
    sql(path, "DELETE FROM records WHERE run = 1 AND number >= 4")

    async with opened(path) as log:
        with pytest.raises(StoreDamagedError, match="record 4 of root 'first'"):
            await log.read("first")


@pytest.mark.fault(name="F9")
@pytest.mark.parametrize(
    "change",
    [
        "UPDATE runs SET status = 'completed' WHERE id = 1",
        "UPDATE runs SET agent_name = 'other' WHERE id = 1",
        "UPDATE runs SET fence = fence - 1 WHERE id = 1",
        "UPDATE runs SET records = 3 WHERE id = 1",
        """
        UPDATE runs SET records = 3, checksum = (SELECT checksum FROM records WHERE run = 1 AND number = 3)
        WHERE id = 1
        """,
        "UPDATE runs SET summary = '{}' WHERE id = 1",
    ],
)
async def test_a_changed_root_is_detected(path: Path, change: str) -> None:
    """What a list shows is sealed as well; the root that was changed is left out of it."""
    await make_store(path)
    sql(path, change)

    async with opened(path) as log:
        for call in (log.get, log.read, log.acquire):
            with pytest.raises(StoreDamagedError, match="root 'first'"):
                await call("first")
        assert [known.root_id for known in await log.list()] == ["second"]


async def test_a_text_that_was_removed_leaves_the_list_readable(path: Path) -> None:
    """Large bodies may be deleted to save room; the record still holds."""
    await make_store(path)
    sql(path, "DELETE FROM blobs")

    async with opened(path) as log:
        rows = await log.read("first")
        assert rows == stored_rows(0, 5)


@pytest.mark.fault(name="F9")
async def test_a_text_that_its_index_has_lost_is_not_taken_for_a_removed_one(path: Path) -> None:
    """A bit is enough for that, and the model would be told that its result is no longer available."""
    await make_store(path)
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_blobs_1'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    content = bytearray(path.read_bytes())
    number_of_entries = (page - 1) * size + 4
    assert content[number_of_entries] == 2
    content[number_of_entries] = 0
    path.write_bytes(content)

    async with opened(path) as log:
        with pytest.raises(StoreDamagedError, match="record 5 of root 'first'"):
            await log.read("first")


async def test_equal_texts_are_stored_once(path: Path) -> None:
    """Over all roots; the file grows by one copy."""
    text = "x" * 2_000_000
    async with opened(path) as log:
        for name in ("first", "second", "third"):
            await log.release(await written(log, name, 4, bodies={"result": text, "again": text}))

    assert path.stat().st_size < 1.2 * len(text)


async def test_deleting_a_root_frees_its_texts(path: Path) -> None:
    """Those that no other root refers to."""
    async with opened(path) as log:
        for name, text in (("first", "shared"), ("second", "shared"), ("third", "own")):
            await log.release(await written(log, name, 1, bodies={"result": text}))
        await log.delete("first")
        await log.delete("third")

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT text FROM blobs").fetchall() == [("shared",)]
        assert connection.execute("SELECT count(*) FROM records").fetchone() == (1,)


def foreign(path: Path) -> None:
    sql(path, "CREATE TABLE runs (id INTEGER)", "PRAGMA user_version = 1")


def emptied(path: Path) -> None:
    sql(path, "CREATE TABLE t (id INTEGER)", "DROP TABLE t")


def newer(path: Path) -> None:
    sql(path, f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 9", "CREATE TABLE t (id INTEGER)")


def ours_with_a_trigger(path: Path) -> None:
    asyncio.run(make_store(path))
    sql(path, "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END")


def text(path: Path) -> None:
    path.write_text("This is a text and no database. " * 200)


@pytest.mark.fault(name="F26")
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (foreign, StoreDamagedError),
        (emptied, StoreDamagedError),
        (newer, StoreVersionError),
        (ours_with_a_trigger, StoreDamagedError),
        (text, StoreDamagedError),
    ],
)
def test_a_file_that_is_none_of_ours_is_refused(
    path: Path, make: Callable[[Path], None], kind: type[Exception]
) -> None:
    """And left as it is; the error says what it is."""
    make(path)
    before = path.read_bytes()

    async def use() -> None:
        for read_only in (False, True):
            async with opened(path, read_only=read_only) as log:
                with pytest.raises(kind):
                    await log.list()

    asyncio.run(use())
    assert path.read_bytes() == before


@pytest.mark.fault(name="F26")
async def test_an_empty_file_is_adopted(path: Path) -> None:
    """As a temporary file that was made for it would be."""
    path.touch(0o600)

    async with opened(path) as log:
        await written(log, "root", 1)
        assert len(await log.list()) == 1


@pytest.mark.fault(name="F26")
async def test_a_newer_version_is_named(path: Path) -> None:
    """Whoever reads the error knows what to install."""
    newer(path)

    async with opened(path) as log:
        with pytest.raises(StoreVersionError, match="version 9"):
            await log.list()


async def test_every_file_is_private(path: Path) -> None:
    """Whatever the umask; the folder is the application's."""
    before = os.umask(0)
    try:
        async with opened(path) as log:
            await written(log, "root", 1)
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    finally:
        os.umask(before)

    suffixes = ("", "-shm", "-wal", ".lock", ".open.lock")
    assert modes == {f"runs.sqlite{suffix}": 0o600 for suffix in suffixes}


@pytest.mark.parametrize("suffix", [".lock", ".open.lock", "-wal", "-shm", "-journal"])
@pytest.mark.parametrize("plant", ["symlink", "dangling", "hard link", "fifo"])
async def test_a_planted_side_file_is_refused(path: Path, suffix: str, plant: str) -> None:
    """Nothing is written to where somebody else's link leads."""
    victim = path.with_name("victim")
    planted = Path(f"{path}{suffix}")
    if plant != "dangling":
        victim.write_text("mine")
    if plant in ("symlink", "dangling"):
        planted.symlink_to(victim)
    elif plant == "hard link":
        planted.hardlink_to(victim)
    else:
        os.mkfifo(planted)

    async with opened(path, busy_timeout=0.1) as log:
        with pytest.raises(StoreError):
            await log.create("root", run_info("root"))
        with suppress(DurableExecutionError):
            assert await log.get("root") is None
    assert victim.exists() == (plant != "dangling")
    assert plant == "dangling" or victim.read_text() == "mine"


async def test_a_database_with_two_names_is_refused(path: Path) -> None:
    """Its locks and its log would be two different files."""
    await make_store(path)
    second = path.with_name("second.sqlite")
    second.hardlink_to(path)

    async with opened(second) as log:
        with pytest.raises(StoreDamagedError, match="second name"):
            await log.list()


async def test_a_file_that_was_replaced_takes_no_more_records(path: Path) -> None:
    """Nobody else would ever see them."""
    async with opened(path) as log:
        lease = await written(log, "root", 1)
        path.unlink()
        with pytest.raises(StoreDamagedError, match="removed or replaced"):
            await log.append(lease, 1, stored_rows(1, 1), status="running")
        with pytest.raises(LostRunError):
            await log.append(lease, 1, stored_rows(1, 1), status="running")


async def test_without_the_lock_file_the_fence_still_holds(path: Path) -> None:
    """Whoever removes it lets a second owner in; the first one can store nothing more."""
    async with opened(path) as log:
        first = await written(log, "root", 1)
        Path(f"{path}.lock").unlink()
        second, _ = await log.acquire("root")
        with pytest.raises(LostRunError):
            await log.append(first, 1, stored_rows(1, 1), status="running")
        await log.append(second, 1, stored_rows(1, 1), status="running")


async def test_a_link_to_the_store_leads_to_the_same_locks(path: Path, tmp_path: Path) -> None:
    """The path is the user's own and may be a link; the files beside it are those of its target."""
    link = tmp_path / "link.sqlite"
    async with opened(path) as log:
        await written(log, "root", 1)
        link.symlink_to(path)
        async with opened(link) as other:
            with pytest.raises(RunBusyError):
                await other.acquire("root")


async def test_a_file_that_others_can_write_is_warned_about(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """They could change what a run is told that it has done."""
    await make_store(path)
    path.chmod(0o622)

    with caplog.at_level(logging.WARNING, logger="protolink"):
        async with opened(path) as log:
            await log.list()

    assert "can be written by other users" in caplog.text


async def test_a_store_of_another_machine_is_warned_about(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two copies that are resumed in two places do the same action twice."""
    await make_store(path)
    sql(path, "UPDATE meta SET value = 'another' WHERE key = 'machine'")

    with caplog.at_level(logging.WARNING, logger="protolink"):
        async with opened(path) as log:
            await log.list()

    assert "another machine" in caplog.text


def test_a_lease_that_no_loop_is_left_for_is_given_back(path: Path) -> None:
    """Whoever asked for it cannot release it any more."""
    log = SQLiteRecordLog(path)
    creating = log.create("root", run_info("root"))

    async def begin() -> None:
        creating.send(None)  # it waits now for an answer that its loop will never bring

    async def take_up() -> int:
        await log.create("later", run_info("later"))  # what was asked for before is done by then
        creating.close()
        lease, _ = await log.acquire("root")
        await log.close()
        return lease.attempt

    asyncio.run(begin())

    assert asyncio.run(take_up()) == 2


async def test_an_unknown_folder_is_a_fault_of_the_store(tmp_path: Path) -> None:
    """It is not made, for who may look into it is not the library's to say."""
    async with opened(tmp_path / "missing" / "runs.sqlite") as log:
        with pytest.raises(StoreError, match="root 'root' was not created"):
            await log.create("root", run_info("root"))


async def test_unfinished_business_does_not_keep_the_file_growing(path: Path) -> None:
    """The write-ahead log is moved into the file now and then, and is gone at the end."""
    async with opened(path) as log:
        lease = await log.create("root", run_info("root"))
        for after in range(40):
            await log.append(lease, after, stored_rows(after, 1, body="x" * 500_000), status="running")
        wal = Path(f"{path}-wal").stat().st_size

    assert wal < 12_000_000
    assert not Path(f"{path}-wal").exists()


async def test_an_append_costs_the_same_at_the_end_of_a_long_list(path: Path) -> None:
    """What is written for a step does not depend on the steps before it."""
    wal = Path(f"{path}-wal")

    async def growth(log: SQLiteRecordLog, lease: Lease, after: int) -> int:
        before = wal.stat().st_size
        for number in range(after, after + 30, 3):
            await log.append(lease, number, stored_rows(number, 3), status="running")
        return wal.stat().st_size - before

    async with opened(path) as log:
        lease = await log.create("root", run_info("root"))
        early = await growth(log, lease, 0)
        await log.append(lease, 30, stored_rows(30, 6000), status="running")
        late = await growth(log, lease, 6030)

    assert 0 < late <= 1.5 * early


async def test_an_unknown_run_is_none_of_a_damaged_store_s(path: Path) -> None:
    """The store is well; it only does not know the root."""
    await make_store(path)

    async with opened(path) as log:
        with pytest.raises(UnknownRunError):
            await log.acquire("third")
