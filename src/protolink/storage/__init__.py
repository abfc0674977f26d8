"""Where conversations, tasks and reports are kept."""

from protolink.storage.memory import InMemoryRunStore, InMemoryStorage
from protolink.storage.port import RunStore, Storage, StorageError
from protolink.storage.records import StoredRun
from protolink.storage.runs import SQLiteRunStore
from protolink.storage.sqlite import SQLiteStorage

__all__ = [
    "InMemoryRunStore",
    "InMemoryStorage",
    "RunStore",
    "SQLiteRunStore",
    "SQLiteStorage",
    "Storage",
    "StorageError",
    "StoredRun",
]
