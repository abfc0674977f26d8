"""Locks that the kernel gives back when their process ends, and the private files that they are put on.

A lock belongs to an open file description and not to a process, so that a second lock in the same process
is refused like one from outside, and closing some other descriptor of the file gives nothing back. Lock files
are never removed: whoever would lock a removed one shares it with nobody.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import threading
import weakref
from typing import Any, Final

from protolink._text import visible
from protolink.errors import StoreDamagedError, StoreError

fcntl: Any
try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None

__all__ = ["FileLock", "HeldRun", "RunLocks", "check_side_file", "forget_after_fork", "open_private"]

_FLOCK: Final = "hhqqi4x"
"""Linux's `struct flock` with 64-bit offsets: type, whence, start, length, process."""

_BUSY: Final = frozenset({errno.EAGAIN, errno.EACCES})


def check_side_file(path: str) -> None:
    """Refuse a side file that SQLite would open and that is no plain file of its own, such as a planted link."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise StoreDamagedError(f"{_name(path)} is a link or no plain file; the store was not opened")


def open_private(path: str, owners: frozenset[int]) -> int:
    """A descriptor of a lock file, made with mode 0600 where it is missing. Links and other people's are refused."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        try:
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
            os.fchmod(descriptor, 0o600)
        except FileExistsError:
            descriptor = os.open(path, flags)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO):
            raise StoreDamagedError(f"{_name(path)} is a link or no plain file; the store was not opened") from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1 or found.st_uid not in owners:
        os.close(descriptor)
        raise StoreDamagedError(f"{_name(path)} is a link, no plain file or somebody else's; the store was not opened")
    return descriptor


def is_still(opened: os.stat_result, path: str) -> bool:
    """Whether a path still leads to the file that was opened, so that a lock on it is everybody's."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(opened, there)


class FileLock:
    """One exclusive lock on a whole file, which one thread at a time asks for."""

    def __init__(self, path: str, owners: frozenset[int]) -> None:
        _require_locks()
        self._path = path
        self._descriptor = open_private(path, owners)
        self._opened = os.fstat(self._descriptor)

    def take(self) -> bool:
        """Take it if it is free now."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        if not is_still(self._opened, self._path):
            self.give_back()
            raise StoreDamagedError(f"{_name(self._path)} was removed or replaced; nothing was written")
        return True

    def give_back(self) -> None:
        """Let others have it."""
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, and with it the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class HeldRun:
    """The lock of one root. It ends with `drop`, with this object and with the process."""

    __slots__ = ("__weakref__", "_descriptor", "_lock", "fence", "known", "process", "run", "store")

    def __init__(self, descriptor: int, store: object, run: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self.process: int = os.getpid()
        self.store: object = store
        """What the lock's database is recognised by."""
        self.run: int = run
        self.fence: int = 0
        """What was committed together with the taking of the lock."""
        self.known: Any = None
        """What the store last committed of the root; nobody else can change it while the lock is held."""

    @property
    def is_held(self) -> bool:
        """Whether the lock is still this process's."""
        return self._descriptor >= 0 and self.process == os.getpid()

    def drop(self) -> None:
        """Give the lock back; harmless when it is gone."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def forget(self) -> None:
        """In a forked child: let go of the parent's descriptor, so that the lock ends with the parent."""
        self._lock = threading.Lock()
        self.drop()

    def __del__(self) -> None:
        self.drop()


# Looked through by a forked child alone.
_held: weakref.WeakSet[HeldRun] = weakref.WeakSet()
_held_lock = threading.Lock()


def forget_after_fork() -> None:
    """What a forked child does with the locks of its parent."""
    global _held_lock
    _held_lock = threading.Lock()
    for held in list(_held):
        held.forget()
    _held.clear()


class RunLocks:
    """The locks of the roots of one database, each a byte of its lock file at the root's number.

    Where byte-range locks of open file descriptions do not exist, each root has a file of its own.
    """

    def __init__(self, path: str, owners: frozenset[int], store: object) -> None:
        _require_locks()
        self._path = path
        self._owners = owners
        self._store = store

    def take(self, run: int) -> HeldRun | None:
        """The lock of a root, or None while somebody has it."""
        if not _has_byte_locks():
            return self._take_file(run)
        descriptor = open_private(self._path, self._owners)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, run, 1, 0))
        except OSError as error:
            os.close(descriptor)
            if error.errno in _BUSY:
                return None
            raise
        return self._kept(descriptor, self._path, run)

    @property
    def can_be_seen(self) -> bool:
        """Whether `is_taken` knows."""
        return _has_byte_locks()

    def is_taken(self, run: int) -> bool | None:
        """Whether somebody has the lock of a root; None where that cannot be told without taking it."""
        if not _has_byte_locks():
            return None
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError:
            return None
        try:
            question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, run, 1, 0)
            answer: bytes = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    def _take_file(self, run: int) -> HeldRun | None:
        path = f"{self._path}.{run}"
        descriptor = open_private(path, self._owners)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in _BUSY:
                return None
            raise
        return self._kept(descriptor, path, run)

    def _kept(self, descriptor: int, path: str, run: int) -> HeldRun:
        if not is_still(os.fstat(descriptor), path):
            os.close(descriptor)
            raise StoreDamagedError(f"{_name(path)} was removed or replaced; no lease was taken")
        held = HeldRun(descriptor, self._store, run)
        with _held_lock:
            _held.add(held)
        return held


def _has_byte_locks() -> bool:
    return sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")


def _require_locks() -> None:
    if fcntl is None:
        raise StoreError("a durable store needs the file locks of a POSIX system; the store was not opened")


def _name(path: str) -> str:
    return f"{visible(os.path.basename(path), limit=100)!r}"
