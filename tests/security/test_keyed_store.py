"""Attacks on a store by somebody who can write the file, knows all of the code, and has not the key."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, CapabilityPolicy, RunContext, RunManager, SQLiteDurableStore, Task, TaskState
from protolink.durable.records import first_checksum
from protolink.durable.rows import row_content
from protolink.durable.runs import StoredRun
from protolink.durable.signet import Signet
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import StoreDamagedError, StoreKeyError
from protolink.testing import call
from tests.support import model

KEY, OTHER = b"canary-key-of-32-bytes-012345678", b"another-key-of-32-bytes-12345678"


def store(path: Path, key: bytes | None = KEY) -> SQLiteDurableStore:
    return SQLiteDurableStore(path, integrity_key=key)


def clerk(path: Path, key: bytes | None = KEY) -> Agent:
    """An agent whose payment has to be approved."""

    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    policy = CapabilityPolicy(default_effect="require_approval")
    return Agent(
        name="clerk", llm=model(call("pay", amount=3)), tools=[pay], durability=store(path, key), policy=policy
    )


async def waiting(path: Path, key: bytes | None = KEY) -> tuple[str, str]:
    """A stored run that waits for an approval: its id and that of the request."""
    task = await clerk(path, key).run_task(Task.create_infer("go", context=RunContext()))
    return task.metadata["interruption"]["run_id"], task.metadata["interruption"]["request_id"]


async def approve(path: Path, run: tuple[str, str], key: bytes | None = KEY) -> Task:
    return await clerk(path, key).resume_task(run[0], request_id=run[1], approved=True)


def forged(path: Path, *statements: str) -> None:
    """Change the file, and make every checksum in it anew by the rules that hold without a key."""
    with closing(sqlite3.connect(path)) as file:
        for statement in statements:
            file.execute(statement)
        (store_id,) = file.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()
        signet = Signet(store_id, None)
        for number, root_id in file.execute("SELECT id, root_id FROM runs").fetchall():
            checksum, rows = first_checksum(root_id, signet), 0
            for row in file.execute(
                "SELECT number, sequence, run_id, at, kind, version, body, bodies FROM records "
                "WHERE run = ? ORDER BY number",
                (number,),
            ).fetchall():
                checksum = signet.digest(checksum + row_content(row[0], row[1], row[2] or root_id, *row[3:]))
                file.execute("UPDATE records SET checksum = ? WHERE run = ? AND number = ?", (checksum, number, row[0]))
                rows += 1
            file.execute("UPDATE runs SET checksum = ?, records = ? WHERE id = ?", (checksum, rows, number))
            run = StoredRun(*file.execute("SELECT * FROM runs WHERE id = ?", (number,)).fetchone())
            file.execute("UPDATE runs SET seal = ? WHERE id = ?", (run.sealed(signet), number))
        file.commit()


def copied(source: Path, target: Path) -> None:
    """Put what is in one store into the file of another."""
    with closing(sqlite3.connect(source)) as old, closing(sqlite3.connect(target)) as new:
        old.backup(new)


FORGERIES: dict[str, tuple[str, ...]] = {
    "nothing but the checksums": (),
    "an argument": (
        """UPDATE records SET body = replace(body, '"amount":3', '"amount":9') WHERE kind = 'ActionPrepared'""",
    ),
    "a verdict": ("UPDATE records SET body = replace(body, 'require_approval', 'allow') WHERE kind = 'ActionJudged'",),
    "a record removed": ("DELETE FROM records WHERE number = (SELECT max(number) FROM records)",),
    "two records swapped": (
        "UPDATE records SET number = -1 WHERE number = 2",
        "UPDATE records SET number = 2 WHERE number = 3",
        "UPDATE records SET number = 3 WHERE number = -1",
    ),
    "the owner": ("UPDATE runs SET principal = 'mallory'",),
    "a record of another run": (
        "INSERT INTO records SELECT 1, 1 + (SELECT max(number) FROM records WHERE run = 1), sequence, run_id, at, "
        "kind, version, body, bodies, checksum FROM records WHERE run = 2 AND number = 1",
    ),
    "the list of another run": (
        "DELETE FROM records WHERE run = 1",
        "INSERT INTO records SELECT 1, number, sequence, run_id, at, kind, version, body, bodies, checksum "
        "FROM records WHERE run = 2",
    ),
}
PROOFS = {
    "the proof kept": "SELECT 1",
    "the proof removed": "DELETE FROM meta WHERE key = 'proof'",
    "the proof forged": f"UPDATE meta SET value = '{'0' * 64}' WHERE key = 'proof'",
}


@pytest.mark.parametrize("proof", PROOFS)
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_b01_with_a_key_nothing_is_believed_that_was_made_without_it(
    forgery: str, proof: str, tmp_path: Path
) -> None:
    """Change, removal, swap and copy, with every checksum made anew; unkeyed rows also where all of them are."""
    path = tmp_path / "runs.sqlite"
    run, _ = await waiting(path), await waiting(path)
    forged(path, *FORGERIES[forgery], PROOFS[proof])

    with pytest.raises((StoreDamagedError, StoreKeyError)):
        await approve(path, run)


async def test_b01_without_a_key_whoever_makes_every_checksum_anew_is_believed(tmp_path: Path) -> None:
    """What a key is for; and the forger of these tests is one that succeeds."""
    path = tmp_path / "runs.sqlite"
    run = await waiting(path, None)
    forged(path, *FORGERIES["the owner"], *FORGERIES["an argument"])

    rows, info = await store(path, None).log.read(run[0]), await store(path, None).log.get(run[0])
    assert info is not None
    assert info.principal == "mallory"
    assert '"amount":9' in "".join(row.body for row in rows)


@pytest.mark.parametrize("row", range(1, 8))
async def test_b01_with_a_key_each_row_is_chained(row: int, tmp_path: Path) -> None:
    """Rows of the file itself, each keyed, but at another place or with an older body."""
    path = tmp_path / "runs.sqlite"
    run = await waiting(path)
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE records SET at = at + 1 WHERE number = ?", (row,))
        file.commit()

    with pytest.raises(StoreDamagedError, match=f"record {row} of root"):
        await approve(path, run)


async def test_a05_an_argument_that_was_changed_in_the_store_is_not_executed(tmp_path: Path) -> None:
    """Also where every checksum was made anew: the action is no longer the one that its fingerprint was taken of."""
    path = tmp_path / "runs.sqlite"
    run = await waiting(path, None)
    forged(path, *FORGERIES["an argument"])

    task = await approve(path, run, None)

    assert task.metadata["error"]["code"] == "action_changed"
    assert "paid" not in str(task.to_dict())


COLUMNS = {
    "principal": "'mallory'",
    "agent_name": "'other'",
    "session_id": "'s'",
    "status": "'completed'",
    "attempts": "9",
    "fence": "fence + 1",
    "owner": "'somebody'",
    "created_at": "0.5",
    "updated_at": "0.5",
    "summary": "'{}'",
    "root_id": "'other'",
    "seal": "x'00'",
}


@pytest.mark.parametrize("key", [None, KEY], ids=["without a key", "with a key"])
@pytest.mark.parametrize("column", COLUMNS)
async def test_b01_what_stands_beside_a_list_is_sealed(column: str, key: bytes | None, tmp_path: Path) -> None:
    """Whose a run is, how it stands and what it waits for; the list itself is left as it was."""
    path = tmp_path / "runs.sqlite"
    run_id, _ = await waiting(path, key)
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"UPDATE runs SET {column} = {COLUMNS[column]}")
        file.commit()

    with pytest.raises(StoreDamagedError):
        await store(path, key).log.read("other" if column == "root_id" else run_id)


MISMATCHES = {"with a key": (None, KEY), "without the key": (KEY, None), "with another key": (KEY, OTHER)}
READS: dict[str, Callable[[SQLiteRecordLog, str], Awaitable[object]]] = {
    "read": lambda log, run_id: log.read(run_id),
    "get": lambda log, run_id: log.get(run_id),
    "list": lambda log, _: log.list(),
    "acquire": lambda log, run_id: log.acquire(run_id),
    "delete": lambda log, run_id: log.delete(run_id),
}


@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("mismatch", MISMATCHES)
async def test_b01_a_store_is_opened_with_its_own_key_alone(mismatch: str, read: str, tmp_path: Path) -> None:
    """The message says which of the three it is, and the file stays as it was."""
    written, opened = MISMATCHES[mismatch]
    path = tmp_path / "runs.sqlite"
    run_id, _ = await waiting(path, written)
    before = await store(path, written).log.read(run_id)

    for read_only in (False, True):
        log = SQLiteRecordLog(path, read_only=read_only, integrity_key=opened)
        if not read_only or read in ("read", "get", "list"):
            with pytest.raises(StoreKeyError, match="integrity"):
                await READS[read](log, run_id)
        await log.close()

    assert await store(path, written).log.read(run_id) == before


async def test_b01_a_file_that_was_put_back_is_seen_by_who_counts_elsewhere(tmp_path: Path) -> None:
    """An older copy is sealed as well as the file; how many records a run had is what an application can keep."""
    path, old = tmp_path / "runs.sqlite", tmp_path / "old.sqlite"
    run = await waiting(path)
    copied(path, old)
    await approve(path, run)
    counted = await store(path).log.get(run[0])
    copied(old, path)

    found = await store(path).log.get(run[0])
    assert found is not None
    assert counted is not None
    assert found.records < counted.records


async def test_b01_a_store_without_runs_takes_a_key_over(tmp_path: Path) -> None:
    """Whoever emptied it can remove it too; a process that died between making and keying a file leaves such a one."""
    path = tmp_path / "runs.sqlite"
    run_id, _ = await waiting(path, None)
    await RunManager(stores=[store(path, None)]).cancel(run_id)
    await RunManager(stores=[store(path, None)]).prune(keep=0)

    task = await approve(path, await waiting(path))

    assert task.state is TaskState.COMPLETED


async def test_b01_the_key_is_in_no_file_and_in_no_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What the file remembers of it is a proof, from which nobody gets the key."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "runs.sqlite"
    run_id, _ = await waiting(path)
    with pytest.raises(StoreKeyError) as refused:
        await store(path, OTHER).log.read(run_id)

    texts = [repr(store(path).log), repr(clerk(path)), str(clerk(path).to_dict()), str(refused.value), caplog.text]
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    shapes = [KEY, KEY.hex().encode(), hashlib.sha256(KEY).digest()]
    assert not any(shape in content for shape in shapes for content in [*files, *map(str.encode, texts)])


@pytest.mark.parametrize("key", ["a text of more than sixteen", b"", b"fifteen bytes..", 16, bytearray(32)])
def test_b01_a_key_that_proves_nothing_is_refused(key: Any, tmp_path: Path) -> None:
    """Where it is given, and not at the first run."""
    with pytest.raises((TypeError, ValueError), match="integrity key"):
        SQLiteDurableStore(tmp_path / "runs.sqlite", integrity_key=key)
