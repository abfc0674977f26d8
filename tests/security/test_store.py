"""Attacks on what is stored, with the numbers of the threat model."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from protolink import (
    Agent,
    CapabilityPolicy,
    CheckpointMismatchError,
    RunContext,
    RunManager,
    Task,
    Tool,
)
from protolink._environment import Environment
from protolink._runtime.principal import acting_as
from protolink.durable import Row, RunInfo
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import DurableExecutionError, StoreError, StoreVersionError, UnknownRunError
from protolink.storage import SQLiteRunStore, SQLiteStorage, StorageError
from protolink.testing import call
from tests.support import model


def act() -> str:
    """Act."""
    return "acted"


def paused(path: Path, **options: Any) -> Agent:
    """An agent whose run waits for an approval."""
    asking = CapabilityPolicy(default_effect="require_approval")
    settings: dict[str, Any] = {"policy": asking, "tools": [act], "llm": model(call("act")), **options}
    return Agent(name="a", durability=path, **settings)


async def a_paused_run(path: Path) -> tuple[str, str]:
    """A stored run that waits for an approval: its id and that of the request."""
    task = await paused(path).run_task(Task.create_infer("go", context=RunContext()))
    return task.metadata["interruption"]["run_id"], task.metadata["interruption"]["request_id"]


def sql(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


FORGERIES: dict[str, str] = {
    "an argument": """UPDATE records SET body = replace(body, '"act"', '"pay"') WHERE kind = 'ActionPrepared'""",
    "a verdict": "UPDATE records SET body = replace(body, 'require_approval', 'allow') WHERE kind = 'ActionJudged'",
    "a record that is gone": "DELETE FROM records WHERE kind = 'ActionJudged'",
    "the last record gone": "DELETE FROM records WHERE number = (SELECT max(number) FROM records)",
    "another kind": "UPDATE records SET kind = 'ActionStarted' WHERE kind = 'ActionJudged'",
    "another run": "UPDATE records SET run_id = 'other' WHERE number = 2",
}


@pytest.mark.parametrize("forgery", FORGERIES)
async def test_b01_a_record_that_was_changed_is_noticed(forgery: str, tmp_path: Path) -> None:
    """Before anything is done with the run."""
    path = tmp_path / "runs.sqlite"
    run_id, request_id = await a_paused_run(path)
    sql(path, FORGERIES[forgery])

    with pytest.raises(DurableExecutionError):
        await paused(path).resume_task(run_id, request_id=request_id, approved=True)


async def test_b01_a_record_of_another_run_does_not_fit(tmp_path: Path) -> None:
    """Each list is chained to its own root and store."""
    path = tmp_path / "runs.sqlite"
    first, _ = await a_paused_run(path)
    second, request_id = await a_paused_run(path)
    sql(
        path,
        f"DELETE FROM records WHERE run = (SELECT id FROM runs WHERE root_id = '{second}')",
        f"UPDATE records SET run = (SELECT id FROM runs WHERE root_id = '{second}')",
    )

    with pytest.raises(DurableExecutionError):
        await paused(path).resume_task(second, request_id=request_id, approved=True)
    assert first != second


QUOTES = ["", "'", '"', "`", "]", ")", "')", '")', "''", "\\'", "\0'", "\u02bc", "%27", "--", "/*"]
CLAUSES = [
    "; DROP TABLE runs; --",
    " OR '1'='1",
    " OR 1=1 --",
    " UNION SELECT sql FROM sqlite_master --",
    " UNION ALL SELECT 1, 2, 3 --",
    "; ATTACH DATABASE '/tmp/x' AS x; --",
    "; PRAGMA writable_schema = 1; --",
    " || randomblob(1000000000) || ",
    " LIKE '%",
    "; UPDATE runs SET principal = 'x'; --",
    " AND (SELECT load_extension('x'))",
    " ORDER BY 99 --",
    " LIMIT -1 --",
    " GLOB '*",
    " COLLATE NOCASE --",
    " IS NOT NULL --",
    "\n; DELETE FROM records; --",
    "$.a') OR json_extract(1, '$') --",
]
INJECTIONS = [
    *(f"x{quote}{clause}" for quote in QUOTES for clause in CLAUSES),
    "%", "_", "*", "?", "?1", ":a", "@a", "$a", "\\", "a;b", "a\nb", "a\0b", "a'b\"c`d", "😀" * 50, "x" * 1000, "NULL",
    "null", "rowid", "../../etc/passwd", "$(id)", "{0.__class__}", "%s%n", "{}", "[]", "0", "-1", "1e999", "X'00'",
    "a\u202eb", "\ufeff",
]  # fmt: skip
"""Three hundred."""


def schema(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()


@pytest.mark.parametrize("text", INJECTIONS[:: len(INJECTIONS) // 15], ids=lambda text: str(INJECTIONS.index(text)))
async def test_b02_names_and_ids_are_values_and_never_statements(text: str, tmp_path: Path) -> None:
    """In every public parameter: what goes in comes out for exactly that key, and the tables stay as they were."""
    durable, runs, kept = (tmp_path / f"{name}.sqlite" for name in ("durable", "runs", "storage"))
    store = SQLiteRunStore(str(runs))
    agent = Agent(name=f"n{text}", llm=model("answer"), durability=durable, run_store=store, state=["conversation"],
                  storage=SQLiteStorage(str(kept), namespace=text))  # fmt: skip
    await agent.invoke("first")
    before = [schema(path) for path in (durable, runs)]

    await agent.invoke(text, session_id=text, context=RunContext(run_id=f"{text} "))
    manager = RunManager([agent])
    assert [info.agent_name for info in await manager.list(agent_name=f"n{text}")] == [f"n{text}"] * 2
    assert await manager.list(agent_name=f"{text}?") == []
    assert store.get_report(f"{text} ") is not None
    assert len(store.list_task_records()) == 2
    assert [schema(path) for path in (durable, runs)] == before


async def test_b02_three_hundred_payloads_in_each_parameter_of_a_durable_store(tmp_path: Path) -> None:
    """As a root's id, an agent, a principal and a session; as a run, a kind and a field's name; and as filters."""
    path = tmp_path / "runs.sqlite"
    log = SQLiteRecordLog(path)
    before: list[Any] = []
    for number, text in enumerate(INJECTIONS):
        info = RunInfo(root_id=text, agent_name=text, principal=text, session_id=text, status="running", attempts=1,
                       records=0, created_at=float(number), updated_at=0.0)  # fmt: skip
        lease = await log.create(text, info)
        before = before or schema(path)
        row = Row(number=1, sequence=1, run_id=text, at=0.0, kind=text, version=1, body="{}", bodies={text: "1"})
        await log.append(lease, 0, [row], status="paused", summary={text: text})
        await log.release(lease)

    assert len(INJECTIONS) == 300
    for text in INJECTIONS:
        assert [row.kind for row in await log.read(text)] == [text]
        for filters in ({"agent_name": text}, {"principal": text}):
            assert [info.root_id for info in await log.list(**filters, limit=400)] == [text]
        assert await log.list(status=text) == []
        assert await log.get(f"{text}'") is None
    assert await log.delete(INJECTIONS[0])
    assert len(await log.list(limit=400)) == 299
    assert schema(path) == before


def test_b02_three_hundred_payloads_in_each_parameter_of_the_other_stores(tmp_path: Path) -> None:
    """As a namespace, a session, a task and a run; and as filters and orders."""
    runs, kept = (tmp_path / f"{name}.sqlite" for name in ("runs", "storage"))
    store = SQLiteRunStore(str(runs))
    store.save_task(Task.create_infer("go"))
    SQLiteStorage(str(kept)).save({"a": 1})
    before = [schema(runs), schema(kept)]
    for text in INJECTIONS:
        storage, task = (
            SQLiteStorage(str(kept), namespace=text),
            Task.create_infer("go", context=RunContext(run_id=text)),
        )
        task.id = text
        storage.save({text: text})
        storage.append_session(text, [{"role": "user", "content": text}], key=text)
        store.save_task(task)
        assert storage.load() == {text: text}
        assert [message["content"] for message in storage.load_session(text)] == [text]
        assert list(storage.load_session(f"{text}'")) == []
        found = store.get_task(text)
        assert found is not None
        assert found.id == text
        assert store.get_task(f"{text}'") is None

    assert len(store.list_task_records(limit=1000)) == 301
    assert [schema(runs), schema(kept)] == before


@pytest.mark.parametrize("prefix", ["", "a b", "a;", "A", "1a'", "x" * 33, "sqlite_", "é", 'a"'])
def test_b02_a_prefix_of_tables_is_a_plain_word(prefix: str, tmp_path: Path) -> None:
    """It is the one thing that becomes part of a statement."""
    with pytest.raises(ValueError, match="prefix"):
        SQLiteRunStore(str(tmp_path / "runs.sqlite"), table_prefix=prefix)


async def test_b03_only_the_owner_can_read_a_store(tmp_path: Path) -> None:
    """Whatever the umask, with every side file."""
    before = os.umask(0)
    try:
        agent = Agent(name="a", llm=model("answer"), durability=tmp_path / "durable.sqlite", state=["conversation"],
                      storage=SQLiteStorage(str(tmp_path / "storage.sqlite")),
                      run_store=SQLiteRunStore(str(tmp_path / "runs.sqlite")))  # fmt: skip
        await agent.invoke("go", session_id="s")
        modes = {file.name: file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    finally:
        os.umask(before)

    stores, beside = ("durable.sqlite", "storage.sqlite", "runs.sqlite"), ("", "-wal", "-shm")
    locks = {"durable.sqlite.lock", "durable.sqlite.open.lock"}
    assert set(modes) == {f"{name}{suffix}" for name in stores for suffix in beside} | locks
    assert set(modes.values()) == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_b03_another_user_cannot_open_one() -> None:
    """In a folder that everybody may enter, as a process of that user."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    before = os.umask(0)
    try:
        await Agent(name="a", llm=model("answer"), durability=folder / "runs.sqlite",
                    run_store=SQLiteRunStore(str(folder / "kept.sqlite"))).invoke("go")  # fmt: skip
        stranger = {"cwd": folder, "user": 65534, "stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        files = sorted(folder.iterdir())
        process = await asyncio.create_subprocess_exec("/bin/cat", *files, **stranger)  # type: ignore[arg-type]
        read, refusals = await process.communicate()
    finally:
        os.umask(before)
        shutil.rmtree(folder)

    assert read == b""
    assert refusals.count(b"Permission denied") == len(files) >= 5


@pytest.mark.parametrize("kind", ["durable", "reports", "storage"])
async def test_b03_a_store_that_others_can_write_is_told_of(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It may be meant, so it is no refusal."""
    path = tmp_path / "store.sqlite"
    path.touch()
    path.chmod(0o666)
    options: dict[str, dict[str, Any]] = {
        "durable": {"durability": path},
        "reports": {"run_store": SQLiteRunStore(str(path))},
        "storage": {"state": ["conversation"], "storage": SQLiteStorage(str(path))},
    }
    await Agent(name="a", llm=model("answer"), **options[kind]).invoke("go", session_id="s")

    assert "'store.sqlite' can be written by other users" in caplog.text


PLANTS: dict[str, Callable[[Path, Path], None]] = {
    "a link": lambda place, victim: place.symlink_to(victim),
    "a link to nowhere": lambda place, victim: place.symlink_to(victim.with_name("nowhere")),
    "a second name": lambda place, victim: place.hardlink_to(victim),
    "a pipe": lambda place, victim: os.mkfifo(place),
    "a folder": lambda place, victim: place.mkdir(),
}


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", ".lock", ".open.lock"])
@pytest.mark.parametrize("plant", PLANTS)
async def test_b04_what_was_planted_beside_a_durable_store_is_not_used(plant: str, suffix: str, tmp_path: Path) -> None:
    """Nothing is written to where somebody else's link leads."""
    path, victim = tmp_path / "runs.sqlite", tmp_path / "victim"
    victim.write_text("mine")
    PLANTS[plant](Path(f"{path}{suffix}"), victim)

    with pytest.raises(StoreError):
        await Agent(name="a", llm=model("answer"), durability=path).invoke("go")
    assert victim.read_text() == "mine"
    assert not victim.with_name("nowhere").exists()


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal"])
@pytest.mark.parametrize("plant", PLANTS)
def test_b04_what_was_planted_beside_another_store_is_not_used(plant: str, suffix: str, tmp_path: Path) -> None:
    """Conversations, states and reports are kept in files of the same kind."""
    path, victim = tmp_path / "storage.sqlite", tmp_path / "victim"
    victim.write_text("mine")
    PLANTS[plant](Path(f"{path}{suffix}"), victim)

    with pytest.raises(StorageError, match="beside it"):
        SQLiteStorage(str(path)).save({"a": 1})
    with pytest.raises(StorageError, match="beside it"):
        SQLiteRunStore(str(path)).save_task(Task.create_infer("go"))
    assert victim.read_text() == "mine"
    assert not victim.with_name("nowhere").exists()


@pytest.mark.parametrize("place", ["pipe", "folder", "device", "second name"])
async def test_b04_a_store_is_a_plain_file(place: str, tmp_path: Path) -> None:
    """And not a pipe on which opening would wait for ever, nor a device, nor a file with a second name elsewhere."""
    path = tmp_path / "runs.sqlite"
    match place:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "device":
            path = Path("/dev/null")
        case _:
            (tmp_path / "victim").touch()
            path.hardlink_to(tmp_path / "victim")

    with pytest.raises(StoreError):
        await Agent(name="a", llm=model("answer"), durability=path).invoke("go")


async def test_b04_a_lock_that_was_replaced_is_nobodys(tmp_path: Path) -> None:
    """Whoever would lock the new file shares it with nobody who has the old one."""
    path = tmp_path / "runs.sqlite"
    await a_paused_run(path)
    log = SQLiteRecordLog(path)
    await log.list()
    Path(f"{path}.open.lock").unlink()
    Path(f"{path}.open.lock").touch()

    with pytest.raises(StoreError, match="removed or replaced"):
        await log.create("new", RunInfo(root_id="new", agent_name="a", principal="p", status="running", attempts=1,
                                        records=0, created_at=0.0, updated_at=0.0))  # fmt: skip


def test_b05_ids_are_128_random_bits() -> None:
    """Nobody guesses one, and a million are different."""
    environment = Environment()
    ids = {environment.new_id() for _ in range(1_000_000)}

    assert len(ids) == 1_000_000
    assert {len(made) for made in ids} == {32}
    sample = [int(made, 16).bit_count() for made in list(ids)[:100_000]]
    bits = sum(sample) / len(sample)
    assert 63.5 < bits < 64.5


async def test_b06_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    """An older parser reads nothing that it does not know."""
    path = tmp_path / "runs.sqlite"
    run_id, _ = await a_paused_run(path)
    newer = tmp_path / "newer.sqlite"
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(newer)) as target:
        source.backup(target)
    sql(newer, "PRAGMA user_version = 99")

    with pytest.raises(StoreVersionError):
        await paused(newer).resume_task(run_id)


WEAKER: dict[str, Callable[[Path], Agent]] = {
    "policies": lambda path: paused(path, policy=CapabilityPolicy(default_effect="allow")),
    "execution_version": lambda path: paused(path, execution_version="2"),
    "system_prompt": lambda path: paused(path, system_prompt="Obey."),
    "tool act": lambda path: paused(path, tools=[Tool(act, capabilities=["harmless"])]),
    "child b": lambda path: paused(path, subagents=[Agent(name="b", llm=model("x"))]),
}


@pytest.mark.parametrize("part", WEAKER)
async def test_b07_a_run_is_not_resumed_under_weaker_rules(part: str, tmp_path: Path) -> None:
    """The part that differs is named, and nothing is executed."""
    path = tmp_path / "runs.sqlite"
    run_id, _ = await a_paused_run(path)

    with pytest.raises(CheckpointMismatchError, match=part):
        await WEAKER[part](path).resume_task(run_id)


async def test_b08_a_strangers_run_is_not_there(tmp_path: Path) -> None:
    """It is neither listed nor resumed, approved, reconciled or called off; the refusal is that for no run at all."""
    path = tmp_path / "runs.sqlite"
    with acting_as("alice"):
        run_id, request_id = await a_paused_run(path)
    agent = paused(path)
    manager = RunManager([agent])
    with acting_as("bob"):
        assert await manager.list() == []
        for known in (run_id, "no-such-run"):
            attempts: list[Callable[[], Any]] = [
                partial(agent.resume_task, known),
                partial(agent.resume_task, known, request_id=request_id, approved=True),
                partial(agent.reconcile, known, f"{known}.1", result="done"),
                partial(agent.cancel_stored, known),
            ]
            for attempt in attempts:
                with pytest.raises(UnknownRunError, match=f"^there is no root '{known}'$"):
                    await attempt()
    with acting_as("alice"):
        assert [info.run_id for info in await manager.list()] == [run_id]


async def test_b08_a_strangers_run_at_work_is_not_there_either(tmp_path: Path) -> None:
    """Neither busy for the one who guesses its id, nor to be canceled."""
    entered, go = asyncio.Event(), asyncio.Event()

    async def hold() -> str:
        """Wait to be let go."""
        entered.set()
        await go.wait()
        return "held"

    agent = Agent(name="a", llm=model(call("hold")), tools=[hold], durability=tmp_path / "runs.sqlite")
    with acting_as("alice"):
        handle = agent.start_run("go")
    await entered.wait()
    with acting_as("bob"):
        with pytest.raises(UnknownRunError, match=r"^there is no root"):
            await agent.resume_task(handle.run_id)
        assert not await agent.cancel_task(handle.run_id, "mine now")
    go.set()

    assert (await handle.result()).status == "completed"


async def test_b09_a_run_that_ends_its_attempts_is_charged_for_each(tmp_path: Path) -> None:
    """Nothing resumes by itself, and a run that is resumed for ever ends with its steps."""
    path = tmp_path / "runs.sqlite"

    def agent() -> Agent:
        return Agent(name="a", llm=model(*[OSError("down")] * 30), durability=path)

    task = await agent().run_task(Task.create_infer("go", context=RunContext()))
    run_id = RunContext.from_task(task).run_id
    states = [(await agent().resume_task(run_id)).metadata for _ in range(11)]

    assert "resumable" in states[0]
    assert states[-1]["error"]["code"] == "budget_exceeded"
    assert "resumable" not in states[-1]
