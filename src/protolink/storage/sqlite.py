"""Conversations and application data in a SQLite file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from protolink._json import dumps, parse
from protolink.storage.database import Database, check_table_name, named
from protolink.storage.port import StorageError, check_text, plain_object

__all__ = ["SQLiteStorage"]

_MIGRATIONS: Final = (
    (
        "CREATE TABLE <name> (namespace TEXT PRIMARY KEY, data TEXT NOT NULL) STRICT",
        "CREATE TABLE <name>_messages (namespace TEXT NOT NULL, session_id TEXT NOT NULL, "
        "number INTEGER NOT NULL, message TEXT NOT NULL, "
        "PRIMARY KEY (namespace, session_id, number)) STRICT, WITHOUT ROWID",
    ),
    ("ALTER TABLE <name>_messages ADD COLUMN key TEXT",),
)
_SAVE: Final = "INSERT OR REPLACE INTO <name> (namespace, data) VALUES (?, ?)"
_LOAD: Final = "SELECT data FROM <name> WHERE namespace = ?"
_DELETE: Final = "DELETE FROM <name> WHERE namespace = ?"
_MESSAGES: Final = "SELECT message FROM <name>_messages WHERE namespace = ? AND session_id = ? ORDER BY number"
_LAST: Final = "SELECT coalesce(max(number), 0) FROM <name>_messages WHERE namespace = ? AND session_id = ?"
_APPEND: Final = "INSERT INTO <name>_messages (namespace, session_id, number, message, key) VALUES (?, ?, ?, ?, ?)"
_ADDED: Final = "SELECT 1 FROM <name>_messages WHERE namespace = ? AND session_id = ? AND key = ? LIMIT 1"
_FORGET: Final = "DELETE FROM <name>_messages WHERE namespace = ? AND session_id = ?"


class SQLiteStorage:
    """A `Storage` in a file that several namespaces, tables and processes may share.

    The file is made readable for its owner only. Raises `ValueError` for a table name that is none.
    """

    def __init__(
        self,
        db_path: str | os.PathLike[str] = "storage.db",
        table_name: str = "storage",
        namespace: str = "default",
    ) -> None:
        self.namespace: str = check_text(namespace, "namespace")
        name = check_table_name(table_name, "table_name")
        self._database = Database(db_path, "storage", name, _MIGRATIONS)
        self._save = named(_SAVE, name)
        self._load = named(_LOAD, name)
        self._delete = named(_DELETE, name)
        self._messages = named(_MESSAGES, name)
        self._last = named(_LAST, name)
        self._append = named(_APPEND, name)
        self._added = named(_ADDED, name)
        self._forget = named(_FORGET, name)

    def save(self, data: Mapping[str, Any]) -> None:
        """Replace the namespace's object. Raises `TypeError` for what JSON cannot carry."""
        text = dumps(plain_object(data))
        with self._database.transaction() as db:
            db.execute(self._save, (self.namespace, text))

    def load(self) -> dict[str, Any] | None:
        """The namespace's object, or None where nothing was saved."""
        rows = self._database.read(self._load, (self.namespace,))
        return _read_object(rows[0][0], "the saved object") if rows else None

    def update(self, data: Mapping[str, Any]) -> None:
        """Set some members of the object and keep the others."""
        changes = plain_object(data)
        with self._database.transaction() as db:
            row = db.execute(self._load, (self.namespace,)).fetchone()
            present = {} if row is None else _read_object(row[0], "the saved object")
            db.execute(self._save, (self.namespace, dumps({**present, **changes})))

    def delete(self) -> None:
        """Remove the namespace's object. Its conversations stay."""
        with self._database.transaction() as db:
            db.execute(self._delete, (self.namespace,))

    def load_session(self, session_id: str) -> tuple[dict[str, Any], ...]:
        """The messages of a session, oldest first."""
        rows = self._database.read(self._messages, (self.namespace, check_text(session_id, "session_id")))
        return tuple(_read_object(text, "a stored message") for (text,) in rows)

    def append_session(self, session_id: str, messages: Sequence[Mapping[str, Any]], *, key: str | None = None) -> None:
        """Add messages behind those of the session, all or none; those of one `key` once."""
        session = (self.namespace, check_text(session_id, "session_id"))
        texts = [dumps(plain_object(message)) for message in messages]
        if not texts:
            return
        with self._database.transaction() as db:
            if key is not None and db.execute(self._added, (*session, key)).fetchone() is not None:
                return
            last: int = db.execute(self._last, session).fetchone()[0]
            db.executemany(self._append, [(*session, number, text, key) for number, text in enumerate(texts, last + 1)])

    def delete_session(self, session_id: str) -> None:
        """Forget a conversation."""
        with self._database.transaction() as db:
            db.execute(self._forget, (self.namespace, check_text(session_id, "session_id")))

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        self._database.close()

    def __repr__(self) -> str:
        return f"SQLiteStorage(db_path={self._database.path!r}, namespace={self.namespace!r})"


def _read_object(text: str, what: str) -> dict[str, Any]:
    try:
        value = parse(text)
    except ValueError as error:
        raise StorageError(f"{what} cannot be read back: {error}") from error
    if not isinstance(value, dict):
        raise StorageError(f"{what} cannot be read back: it is no object")
    return value
