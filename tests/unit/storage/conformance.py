"""What every storage and every run store promises, as test classes to be subclassed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from protolink.context import RunContext
from protolink.events import RunEvent
from protolink.redaction import RedactionPolicy
from protolink.report import RunReport
from protolink.storage import RunStore, Storage
from protolink.task import Task

SAID = ({"role": "user", "content": "Grüße 🥛"}, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]})


class StorageConformance(ABC):
    """Subclass it and say how a storage that holds nothing is made."""

    @pytest.fixture
    @abstractmethod
    def storage(self, tmp_path: Any) -> Storage:
        """An empty storage."""

    def test_it_is_a_storage(self, storage: Storage) -> None:
        """An agent refuses what lacks one of the port's methods."""
        assert isinstance(storage, Storage)

    def test_an_empty_namespace_loads_as_none(self, storage: Storage) -> None:
        """Nothing saved is not the same as an empty object."""
        assert storage.load() is None

    def test_saving_replaces_the_object(self, storage: Storage) -> None:
        """The second save does not remember members of the first."""
        storage.save({"first": 1})
        storage.save({"second": [None, 1.5, "Grüße 🥛"]})

        assert storage.load() == {"second": [None, 1.5, "Grüße 🥛"]}

    def test_updating_keeps_other_members(self, storage: Storage) -> None:
        """Two parts of an application can share the object; the first update makes it."""
        storage.update({"a": 1, "b": 1})
        storage.update({"b": 2})

        assert storage.load() == {"a": 1, "b": 2}

    def test_deleting_the_object_leaves_conversations(self, storage: Storage) -> None:
        """The object is the application's, the conversations are the agent's."""
        storage.save({"a": 1})
        storage.append_session("alice", SAID)
        storage.delete()

        assert storage.load() is None
        assert storage.load_session("alice") == SAID

    @pytest.mark.parametrize("data", [{"when": object()}, {"ratio": float("nan")}, {"name": "\ud800"}, {1: "key"}])
    def test_what_json_cannot_carry_is_refused(self, storage: Storage, data: Any) -> None:
        """Nothing is stored that would come back as something else, and what was there stays."""
        storage.save({"kept": True})

        with pytest.raises(TypeError):
            storage.save(data)
        with pytest.raises(TypeError):
            storage.append_session("alice", [data])

        assert (storage.load(), storage.load_session("alice")) == ({"kept": True}, ())

    def test_only_objects_are_stored(self, storage: Storage) -> None:
        """A list that was saved could not be updated."""
        with pytest.raises(TypeError, match="dictionary"):
            storage.save(["a"])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    def test_an_unknown_session_has_no_messages(self, storage: Storage) -> None:
        """A first run is like any other."""
        assert storage.load_session("alice") == ()

    def test_messages_are_appended_in_order(self, storage: Storage) -> None:
        """A conversation reads as it was said."""
        storage.append_session("alice", SAID[:1])
        storage.append_session("alice", SAID[1:])
        storage.append_session("alice", [])
        storage.append_session("bob", [{"content": "other"}])

        assert storage.load_session("alice") == SAID
        assert storage.load_session("bob") == ({"content": "other"},)

    def test_messages_of_one_key_are_added_once(self, storage: Storage) -> None:
        """Whoever takes a run over from a process that died cannot know whether it had saved them."""
        storage.append_session("alice", SAID[:1], key="run 1")
        storage.append_session("alice", SAID[:1], key="run 1")
        storage.append_session("alice", SAID[1:], key="run 2")
        storage.append_session("alice", SAID[1:])
        storage.append_session("alice", SAID[1:])
        storage.append_session("bob", SAID[:1], key="run 1")

        assert storage.load_session("alice") == (SAID[0], SAID[1], SAID[1], SAID[1])
        assert storage.load_session("bob") == SAID[:1]

    def test_a_forgotten_session_knows_no_keys(self, storage: Storage) -> None:
        """It begins anew, as if nothing had ever been said."""
        storage.append_session("alice", SAID, key="run")
        storage.delete_session("alice")
        storage.append_session("alice", SAID[:1], key="run")

        assert storage.load_session("alice") == SAID[:1]

    def test_a_session_can_be_forgotten(self, storage: Storage) -> None:
        """A user may ask for it; the others keep theirs."""
        storage.append_session("alice", SAID)
        storage.append_session("bob", SAID)
        storage.delete_session("alice")
        storage.delete_session("nobody")

        assert (storage.load_session("alice"), storage.load_session("bob")) == ((), SAID)

    @pytest.mark.parametrize("session_id", ["", " ", "\ud800", None, 7])
    def test_a_session_needs_a_usable_name(self, storage: Storage, session_id: Any) -> None:
        """Two users without a name must not share a conversation."""
        with pytest.raises(ValueError, match="session_id"):
            storage.append_session(session_id, SAID)
        with pytest.raises(ValueError, match="session_id"):
            storage.load_session(session_id)

    def test_changing_a_loaded_value_changes_nothing_stored(self, storage: Storage) -> None:
        """What a store gives away is the caller's own."""
        storage.save({"list": [1]})
        storage.append_session("alice", SAID)
        (storage.load() or {})["list"].append(2)
        storage.load_session("alice")[0]["content"] = "changed"

        assert (storage.load(), storage.load_session("alice")) == ({"list": [1]}, SAID)

    def test_threads_append_side_by_side(self, storage: Storage) -> None:
        """Each of several runs that end together keeps its messages, unmixed."""
        turns = [[{"content": f"{run}.{part}"} for part in range(3)] for run in range(16)]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda turn: storage.append_session("alice", turn), turns))

        stored = [message["content"] for message in storage.load_session("alice")]
        runs = [stored[start : start + 3] for start in range(0, len(stored), 3)]
        assert sorted(runs) == sorted([message["content"] for message in turn] for turn in turns)


def ended(name: str = "reader", session_id: str | None = None, answer: str = "done") -> Task:
    """A completed task, as a run of `name` leaves it."""
    task = Task.create_infer("Go.", session_id=session_id).complete(answer)
    task.metadata["agent_name"] = name
    return task


def report_of(task: Task) -> RunReport:
    """A report with one event."""
    context = RunContext.from_task(task)
    event = RunEvent(type="task.status", run_id=context.run_id, task_id=task.id, agent_name="reader", sequence=1)
    return RunReport.from_events([event], context=context, task=task)


class RunStoreConformance(ABC):
    """Subclass it and say how a run store that holds nothing is made."""

    @abstractmethod
    def make(self, tmp_path: Any, policy: RedactionPolicy | None = None) -> RunStore:
        """An empty store that withholds what `policy` says."""

    @pytest.fixture
    def store(self, tmp_path: Any) -> RunStore:
        return self.make(tmp_path)

    def test_it_is_a_run_store(self, store: RunStore) -> None:
        """An agent refuses what lacks one of the port's methods."""
        assert isinstance(store, RunStore)

    def test_a_task_comes_back_as_it_was(self, store: RunStore) -> None:
        """A snapshot is a value."""
        task = ended(answer="Grüße 🥛")
        store.save_task(task)

        assert store.get_task(task.id) == task

    def test_a_report_comes_back_as_it_was(self, store: RunStore) -> None:
        """It is found by its run, with its events."""
        report = report_of(ended())
        store.save_report(report)

        assert store.get_report(report.context.run_id) == report

    def test_unknown_entries_are_absent(self, store: RunStore) -> None:
        """Asking is no error, and deleting says whether there was something."""
        assert (store.get_task("no"), store.get_report("no")) == (None, None)
        assert (store.get_task_record("no"), store.get_report_record("no")) == (None, None)
        assert (store.delete_task("no"), store.delete_report("no")) == (False, False)

    def test_saving_again_replaces(self, store: RunStore) -> None:
        """A resumed run saves its task a second time."""
        task = ended(answer="first")
        store.save_task(task)
        task.messages[-1].parts[0].content = "second"
        store.save_task(task)

        found = store.get_task(task.id)
        assert found is not None
        assert (found.get_output(), len(store.list_task_records())) == ("second", 1)

    def test_records_say_whose_entries_they_are(self, store: RunStore) -> None:
        """Lists show who ran for which session and how it ended, without the bodies."""
        task = ended("reader", "alice")
        store.save_task(task)
        store.save_report(report_of(task))

        for listed, found in (
            (store.list_task_records(), store.get_task_record(task.id)),
            (store.list_report_records(), store.get_report_record(RunContext.from_task(task).run_id)),
        ):
            assert found is not None
            assert found.data is not None
            (record,) = listed
            assert record.data is None
            assert (record.task_id, record.run_id) == (found.task_id, found.run_id)
            assert (record.agent_name, record.session_id, record.status) == ("reader", "alice", "completed")

    def test_lists_begin_with_the_last_saved_and_end_at_the_limit(self, store: RunStore) -> None:
        """The newest entries are what an operator looks for."""
        tasks = [ended() for _ in range(4)]
        for task in (*tasks, tasks[0]):
            store.save_task(task)

        assert [record.task_id for record in store.list_task_records(limit=2)] == [tasks[0].id, tasks[3].id]

    @pytest.mark.parametrize("limit", [0, -1, True, 1.5, None])
    def test_a_limit_is_a_positive_number(self, store: RunStore, limit: Any) -> None:
        """A negative limit would mean everything to some databases."""
        with pytest.raises(ValueError, match="limit"):
            store.list_task_records(limit=limit)

    def test_lists_can_be_filtered(self, store: RunStore) -> None:
        """All given conditions have to hold."""
        mine, other = ended("reader", "alice"), ended("reader", "bob")
        failed = Task.create_infer("Go.", session_id="alice").fail("broken")
        for task in (mine, other, failed):
            store.save_task(task)
            store.save_report(report_of(task))

        found = store.list_report_records(session_id="alice", status="completed", agent_name="reader")
        assert [record.task_id for record in found] == [mine.id]
        assert [record.task_id for record in store.list_task_records(status="failed")] == [failed.id]
        assert store.list_task_records(agent_name="nobody") == []

    def test_entries_can_be_deleted(self, store: RunStore) -> None:
        """Task and report are separate entries."""
        task = ended()
        store.save_task(task)
        store.save_report(report_of(task))

        assert store.delete_task(task.id)
        assert store.get_task(task.id) is None
        assert store.delete_report(RunContext.from_task(task).run_id)
        assert store.get_report(RunContext.from_task(task).run_id) is None

    def test_what_the_policy_withholds_is_not_stored(self, tmp_path: Any) -> None:
        """The store is the last place where a secret could be kept out of a file."""
        store = self.make(tmp_path, RedactionPolicy(sensitive_values=["hunter2-secret"]))
        task = ended(answer="it is hunter2-secret")
        store.save_task(task)
        store.save_report(report_of(task))

        records = (store.get_task_record(task.id), store.get_report_record(RunContext.from_task(task).run_id))
        assert all(record is not None and "[redacted]" in str(record.data) for record in records)
        assert "hunter2" not in str(records)

    def test_threads_save_side_by_side(self, store: RunStore) -> None:
        """Several agents may share one store."""
        tasks = [ended() for _ in range(16)]

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(store.save_task, tasks))

        assert {record.task_id for record in store.list_task_records()} == {task.id for task in tasks}
