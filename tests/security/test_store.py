"""Attacks on what is stored, with the numbers of the threat model."""

from __future__ import annotations

import asyncio
import os
import sqlite3
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
)
from protolink._environment import Environment
from protolink._runtime.principal import acting_as
from protolink.errors import DurableExecutionError, StoreError, StoreVersionError, UnknownRunError
from protolink.storage import SQLiteRunStore, SQLiteStorage
from protolink.testing import call
from tests.support import model


def act() -> str:
    """Act."""
    return "acted"


def paused(path: Path, **options: Any) -> Agent:
    """An agent whose run waits for an approval."""
    settings: dict[str, Any] = {"policy": CapabilityPolicy(default_effect="require_approval"), **options}
    return Agent(name="a", llm=model(call("act")), tools=[act], durability=path, **settings)


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


INJECTIONS = [
    "'; DROP TABLE runs; --",
    '"; DROP TABLE records; --',
    "x' OR '1'='1",
    "x') UNION SELECT sql FROM sqlite_master --",
    "$.a') OR 1=1 --",
    "%",
    "_",
    "\\",
    "a;b",
    "a\nb",
    "a'b\"c`d",
    "😀" * 50,
    "x" * 1000,
    "../../etc/passwd",
    "$(id)",
    "{0.__class__}",
    "%s%n",
    "' || randomblob(1000000000) || '",
]


def schema(path: Path) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name").fetchall()


@pytest.mark.parametrize("text", INJECTIONS, ids=range(len(INJECTIONS)))
async def test_b02_names_and_ids_are_values_and_never_statements(text: str, tmp_path: Path) -> None:
    """In every public parameter: what goes in comes out for exactly that key, and the tables stay as they were."""
    durable, runs, kept = (tmp_path / f"{name}.sqlite" for name in ("durable", "runs", "storage"))
    store = SQLiteRunStore(str(runs))
    agent = Agent(name=text, llm=model("answer"), durability=durable, run_store=store, state=["conversation"],
                  storage=SQLiteStorage(str(kept), namespace=text))  # fmt: skip
    await agent.invoke("first")
    before = [schema(path) for path in (durable, runs)]

    await agent.invoke(text, session_id=text, context=RunContext(run_id=f"{text} "))
    manager = RunManager([agent])
    assert [info.agent_name for info in await manager.list(agent_name=text)] == [text, text]
    assert await manager.list(agent_name=f"{text}?") == []
    assert store.get_report(f"{text} ") is not None
    assert len(store.list_task_records()) == 2
    assert [schema(path) for path in (durable, runs)] == before


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

    assert len(modes) >= 3
    assert set(modes.values()) == {0o600}


@pytest.mark.parametrize("suffix", ["-wal", "-shm", ".lock"])
async def test_b04_a_link_that_was_planted_is_not_followed(suffix: str, tmp_path: Path) -> None:
    """Nothing is written to where somebody else's link leads."""
    path, victim = tmp_path / "runs.sqlite", tmp_path / "victim"
    victim.write_text("mine")
    Path(f"{path}{suffix}").symlink_to(victim)

    with pytest.raises(StoreError):
        await Agent(name="a", llm=model("answer"), durability=path).invoke("go")
    assert victim.read_text() == "mine"


def test_b05_ids_are_128_random_bits() -> None:
    """Nobody guesses one, and a hundred thousand are different."""
    environment = Environment()
    ids = {environment.new_id() for _ in range(100_000)}

    assert len(ids) == 100_000
    assert {len(made) for made in ids} == {32}
    bits = sum(int(made, 16).bit_count() for made in ids) / len(ids)
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
