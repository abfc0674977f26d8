"""The stores in a SQLite file: what every store promises, and what a file adds to it."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from protolink.redaction import RedactionPolicy
from protolink.storage import RunStore, SQLiteRunStore, SQLiteStorage, Storage, StorageError
from tests.unit.storage.conformance import RunStoreConformance, StorageConformance, ended, report_of


class TestSQLiteStorage(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return SQLiteStorage(tmp_path / "storage.db", namespace="reader")


class TestSQLiteStorageInMemory(StorageConformance):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return SQLiteStorage(":memory:")


class TestSQLiteRunStore(RunStoreConformance):
    def make(self, tmp_path: Path, policy: RedactionPolicy | None = None) -> RunStore:
        return SQLiteRunStore(tmp_path / "runs.db", redaction_policy=policy)


BAD_NAMES = [
    "",
    "1st",
    "Runs",
    "a-b",
    "a b",
    'a"; DROP TABLE x; --',
    "a" * 33,
    "täble",
    "a\n",
    "<name>",
    "sqlite_x",
    None,
    7,
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_no_plain_word_is_refused(name: Any, tmp_path: Path) -> None:
    """Names stand in statements, where no parameter can; so only harmless ones are let in, and nothing is opened."""
    with pytest.raises(ValueError, match="table_name"):
        SQLiteStorage(tmp_path / "storage.db", table_name=name)
    with pytest.raises(ValueError, match="table_prefix"):
        SQLiteRunStore(tmp_path / "runs.db", table_prefix=name)

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["_", "a" * 32, "runs_2", "select"])
def test_a_plain_word_is_a_name(name: str, tmp_path: Path) -> None:
    """The longest too, and one that SQL uses itself; stores of both kinds may share it."""
    SQLiteStorage(tmp_path / "storage.db", table_name=name).save({"a": 1})
    SQLiteRunStore(tmp_path / "storage.db", table_prefix=name).save_task(ended())

    assert SQLiteStorage(tmp_path / "storage.db", table_name=name).load() == {"a": 1}
    assert len(SQLiteRunStore(tmp_path / "storage.db", table_prefix=name).list_task_records()) == 1


def test_two_storages_do_not_share_a_table_by_accident(tmp_path: Path) -> None:
    """The messages of one would be the objects of the other."""
    SQLiteStorage(tmp_path / "storage.db", table_name="a").save({"a": 1})

    with pytest.raises(StorageError, match="already exists"):
        SQLiteStorage(tmp_path / "storage.db", table_name="a_messages").load()


@pytest.mark.parametrize("text", ["'; DROP TABLE storage; --", '"', "a' OR '1'='1", "\x00", "%", "_", "日本"])
def test_hostile_keys_are_only_keys(text: str, tmp_path: Path) -> None:
    """Values are bound, so each finds its own row and nothing else."""
    path = tmp_path / "storage.db"
    storage, other = SQLiteStorage(path, namespace=text), SQLiteStorage(path, namespace="other")
    storage.save({"mine": True})
    storage.append_session(text, [{"content": "mine"}])
    runs = SQLiteRunStore(path)
    runs.save_task(ended(name=text, session_id=text))

    assert (other.load(), other.load_session(text)) == (None, ())
    assert (storage.load(), storage.load_session(text)) == ({"mine": True}, ({"content": "mine"},))
    assert len(runs.list_task_records(agent_name=text, session_id=text)) == 1
    assert runs.list_task_records(agent_name="other") == []


def test_data_survives_reopening(tmp_path: Path) -> None:
    """That is what the file is for."""
    path = tmp_path / "app.db"
    task = ended()
    storage, runs = SQLiteStorage(path), SQLiteRunStore(path)
    storage.append_session("alice", [{"content": "hello"}])
    runs.save_report(report_of(task))
    storage.close()
    runs.close()

    assert SQLiteStorage(path).load_session("alice") == ({"content": "hello"},)
    assert [record.task_id for record in SQLiteRunStore(path).list_report_records()] == [task.id]


def test_a_closed_store_opens_again(tmp_path: Path) -> None:
    """Closing gives the file back; it is no end."""
    storage = SQLiteStorage(tmp_path / "storage.db")
    storage.save({"a": 1})
    storage.close()
    storage.close()

    assert storage.load() == {"a": 1}


def test_building_a_store_touches_nothing(tmp_path: Path) -> None:
    """Agents are built at import time and on event loops."""
    SQLiteStorage(tmp_path / "storage.db")
    SQLiteRunStore(tmp_path / "runs.db")

    assert list(tmp_path.iterdir()) == []


def test_every_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Conversations are private, whatever the process's mask lets through, and so are the files beside them."""
    before = os.umask(0)
    try:
        storage = SQLiteStorage(tmp_path / "storage.db")
        storage.save({"a": 1})
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)

    assert "storage.db-wal" in modes
    assert set(modes.values()) == {0o600}


def test_the_mode_of_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    """An operator who shares a file with a group has a reason."""
    path = tmp_path / "storage.db"
    path.touch(0o640)
    path.chmod(0o640)
    SQLiteStorage(path).save({"a": 1})

    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_read_only_store_writes_nothing(tmp_path: Path) -> None:
    """A dashboard can look without being able to do harm, and does not make files that are not there."""
    task = ended()
    writer = SQLiteRunStore(tmp_path / "runs.db")
    writer.save_task(task)
    reader = SQLiteRunStore(tmp_path / "runs.db", read_only=True)

    found = reader.get_task(task.id)
    assert found is not None
    assert found.id == task.id
    with pytest.raises(StorageError, match="read-only"):
        reader.delete_task(task.id)
    with pytest.raises(StorageError):
        SQLiteRunStore(tmp_path / "absent.db", read_only=True).get_task(task.id)
    assert not (tmp_path / "absent.db").exists()


@pytest.mark.parametrize(
    "content", [b"not a database, but long enough to be looked at as one" * 40, b"SQLite format 3\0x"]
)
def test_a_file_that_is_no_database_is_an_error_of_the_store(content: bytes, tmp_path: Path) -> None:
    """The caller handles one kind of error, which names the file and keeps it as it is."""
    path = tmp_path / "storage.db"
    path.write_bytes(content)

    with pytest.raises(StorageError, match=r"storage\.db"):
        SQLiteStorage(path).load()

    assert path.read_bytes() == content


def test_a_folder_that_does_not_exist_is_an_error_of_the_store(tmp_path: Path) -> None:
    """A misspelt path is found out without a folder being made."""
    with pytest.raises(StorageError, match="No such file"):
        SQLiteStorage(tmp_path / "absent" / "storage.db").load()


def test_a_file_of_the_first_version_goes_on(tmp_path: Path) -> None:
    """Conversations are kept for years; those from before messages had keys read as they did."""
    path = tmp_path / "storage.db"
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        CREATE TABLE protolink_versions (name TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT;
        INSERT INTO protolink_versions VALUES ('storage storage', 1);
        CREATE TABLE storage (namespace TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT;
        CREATE TABLE storage_messages (namespace TEXT NOT NULL, session_id TEXT NOT NULL, number INTEGER NOT NULL,
            message TEXT NOT NULL, PRIMARY KEY (namespace, session_id, number)) STRICT, WITHOUT ROWID;
        INSERT INTO storage_messages VALUES ('default', 'alice', 1, '{"content":"old"}');
        """
    )
    connection.close()
    storage = SQLiteStorage(path)
    for _ in range(2):
        storage.append_session("alice", [{"content": "new"}], key="run")

    assert storage.load_session("alice") == ({"content": "old"}, {"content": "new"})


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    """An older release must not guess at what it does not know."""
    path = tmp_path / "storage.db"
    SQLiteStorage(path).save({"a": 1})
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE protolink_versions SET version = 99 WHERE name = 'storage storage'")
    connection.close()

    with pytest.raises(StorageError, match="version 99"):
        SQLiteStorage(path).load()


@pytest.mark.parametrize("stored", ["{", "[1]", '{"a": NaN}', '{"a": 1, "a": 2}'])
def test_a_value_that_cannot_be_restored_is_an_error(stored: str, tmp_path: Path) -> None:
    """A silent None would be taken for an empty namespace and overwritten."""
    path = tmp_path / "storage.db"
    storage = SQLiteStorage(path)
    storage.save({"a": 1})
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE storage SET data = ?", (stored,))
    connection.close()

    with pytest.raises(StorageError, match="cannot be read back"):
        storage.load()


FORKING = """
import os
from pathlib import Path
from protolink.storage import SQLiteStorage

def times_open():
    descriptors = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
    return sum(descriptor.exists() and descriptor.samefile("storage.db") for descriptor in descriptors)

storage = SQLiteStorage("storage.db")
storage.append_session("alice", [{"content": "parent"}])
before = times_open()
child = os.fork()
if child == 0:
    storage.append_session("alice", [{"content": "child"}])
    os._exit(0 if times_open() > before else 1)
_, status = os.waitpid(child, 0)
storage.append_session("alice", [{"content": "parent again"}])
print(os.waitstatus_to_exitcode(status), *(message["content"] for message in storage.load_session("alice")), sep=",")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks at the process's open files")
def test_a_forked_process_opens_a_connection_of_its_own(interpreter: Callable[[str], str]) -> None:
    """A connection that two processes use corrupts the file; servers fork their workers after they were built."""
    assert interpreter(FORKING) == "0,parent,child,parent again\n"


RACER = """
import sys
from protolink.storage import SQLiteRunStore, SQLiteStorage
from protolink.task import Task

path, number = sys.argv[1], sys.argv[2]
print("ready", flush=True)
sys.stdin.read()
SQLiteStorage(path).append_session("alice", [{"content": f"{number}.{part}"} for part in range(3)])
SQLiteRunStore(path).save_task(Task.create_infer("Go.", session_id=number))
"""


def test_eight_processes_race_to_create_one_file(tmp_path: Path) -> None:
    """Workers of a server start together on an empty disk: none fails and nothing is lost."""
    path = tmp_path / "app.db"
    command = [sys.executable, "-W", "error", "-c", RACER, str(path)]
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for number in range(8)
        ]
        pipes = [(racer.stdin, racer.stdout) for racer in racers]
        assert all(out is not None and out.readline() == b"ready\n" for _, out in pipes)
        for into, _ in pipes:
            if into is not None:
                into.close()

        assert [racer.wait(timeout=60) for racer in racers] == [0] * 8

    said = [message["content"] for message in SQLiteStorage(path).load_session("alice")]
    runs = [said[start : start + 3] for start in range(0, len(said), 3)]
    assert sorted(runs) == [[f"{number}.{part}" for part in range(3)] for number in range(8)]
    assert len(SQLiteRunStore(path).list_task_records()) == 8


def test_a_second_store_of_one_file_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """Closing any descriptor of a file ends a process's locks on it, and another could then remove the log in use."""
    path = tmp_path / "application.sqlite"
    first = SQLiteStorage(db_path=str(path))
    first.save({"kept": 1})
    removing = f"import sqlite3; print(sqlite3.connect({str(path)!r}).execute('PRAGMA journal_mode=DELETE').fetchone())"

    def other_process() -> str:
        done = subprocess.run([sys.executable, "-c", removing], capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    assert "database is locked" in other_process()
    SQLiteRunStore(path).get_task("unknown")
    assert "database is locked" in other_process()
    assert first.load() == {"kept": 1}
