"""The library's own error for each way in which SQLite or the operating system can fail."""

from __future__ import annotations

import errno
import sqlite3

from protolink.errors import (
    ProtolinkError,
    StoreBusyError,
    StoreDamagedError,
    StoreError,
    StoreFullError,
    StoreReadOnlyError,
)

__all__ = ["is_busy", "primary_code", "translated"]

_FAULTS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreBusyError, "somebody else holds the store's write lock"),
    sqlite3.SQLITE_LOCKED: (StoreBusyError, "somebody else holds the store's write lock"),
    sqlite3.SQLITE_PROTOCOL: (StoreBusyError, "somebody else holds the store's locks"),
    sqlite3.SQLITE_FULL: (StoreFullError, "there is no room left"),
    sqlite3.SQLITE_TOOBIG: (StoreFullError, "it is larger than SQLite's own limit"),
    sqlite3.SQLITE_READONLY: (StoreReadOnlyError, "the store, or its folder, cannot be written"),
    sqlite3.SQLITE_CANTOPEN: (StoreReadOnlyError, "the store, or a file beside it, cannot be opened"),
    sqlite3.SQLITE_PERM: (StoreReadOnlyError, "the store cannot be written"),
    sqlite3.SQLITE_CORRUPT: (StoreDamagedError, "the file is damaged"),
    sqlite3.SQLITE_NOTADB: (StoreDamagedError, "the file is no SQLite database"),
    # The statements are constants: if one cannot be carried out, the tables are not the ones they were made for.
    sqlite3.SQLITE_ERROR: (StoreDamagedError, "the tables are not as they were made"),
    sqlite3.SQLITE_CONSTRAINT: (StoreDamagedError, "what is there contradicts itself"),
    sqlite3.SQLITE_MISMATCH: (StoreDamagedError, "what is there contradicts itself"),
    sqlite3.SQLITE_IOERR: (StoreError, "the device failed to read or write"),
    sqlite3.SQLITE_NOMEM: (StoreError, "there is no memory left"),
}

_SYSTEM: dict[int, type[StoreError]] = {
    errno.ENOSPC: StoreFullError,
    errno.EDQUOT: StoreFullError,
    errno.EFBIG: StoreFullError,
    errno.EACCES: StoreReadOnlyError,
    errno.EPERM: StoreReadOnlyError,
    errno.EROFS: StoreReadOnlyError,
}


def primary_code(error: BaseException) -> int | None:
    """SQLite's result code without its extension; None for what the binding itself complains about."""
    code = getattr(error, "sqlite_errorcode", None)
    return code & 0xFF if isinstance(code, int) else None


def is_busy(error: BaseException) -> bool:
    """Whether it may go away by itself."""
    return primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def translated(error: BaseException, undone: str) -> BaseException:
    """The error to raise for one that happened, saying what was not done; `__cause__` is the original."""
    if isinstance(error, StoreError):
        # One fault may be told to several callers, and each raises an exception of its own.
        return type(error)(*error.args).with_traceback(error.__traceback__)
    if isinstance(error, ProtolinkError | TypeError | ValueError) and not isinstance(error, UnicodeError):
        return error
    kind: type[StoreError]
    if isinstance(error, sqlite3.Error | UnicodeError):
        kind, why = _FAULTS.get(primary_code(error) or -1, (StoreDamagedError, "what is there cannot be read"))
        name = getattr(error, "sqlite_errorname", None)
        why = f"{why} ({name})" if name else why
    elif isinstance(error, OSError):
        kind = _SYSTEM.get(error.errno or 0, StoreError)
        why = error.strerror or type(error).__name__
    elif isinstance(error, MemoryError):
        kind, why = StoreError, "there is no memory left"
    else:
        return error
    told = kind(f"{undone}: {why}")
    told.__cause__ = error
    return told
