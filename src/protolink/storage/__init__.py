"""Where conversations, tasks and reports are kept. What needs the database module is loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from protolink.storage.memory import InMemoryRunStore, InMemoryStorage
from protolink.storage.port import RunStore, Storage, StorageError
from protolink.storage.records import StoredRun

if TYPE_CHECKING:
    from protolink.durable.store import DurableStore, SQLiteDurableStore
    from protolink.storage.runs import SQLiteRunStore
    from protolink.storage.sqlite import SQLiteStorage

__all__ = [
    "DurableStore",
    "InMemoryRunStore",
    "InMemoryStorage",
    "RunStore",
    "SQLiteDurableStore",
    "SQLiteRunStore",
    "SQLiteStorage",
    "Storage",
    "StorageError",
    "StoredRun",
]

_HOME = {
    "DurableStore": "protolink.durable.store",
    "SQLiteDurableStore": "protolink.durable.store",
    "SQLiteRunStore": "protolink.storage.runs",
    "SQLiteStorage": "protolink.storage.sqlite",
}


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'protolink.storage' has no attribute {name!r}")
    return getattr(import_module(home), name)
