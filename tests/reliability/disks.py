"""A disk that is watched, fails on request and loses its power: what `preload.c` records, and what may be left of it.

A process that was started with the library in `LD_PRELOAD` watches a folder with `Disk`. Its trace has every
change of a file in the order in which it happened, and the process's own marks between them. `after_power_loss`
makes of the beginning of a trace a folder as a power cut may leave it.
"""

from __future__ import annotations

import ctypes
import errno
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("preload.c")

SECTOR: Final = 512
"""What a disk writes wholly or not at all."""

PAGE: Final = 4096
"""What the kernel writes together. A page whose write has failed counts as written until it is changed again."""

_HEAD: Final = struct.Struct("=IIQQQ")
_IS_NEW: Final = 1
_HAS_FAILED: Final = 2


class Change(IntEnum):
    """What a record of a trace is about."""

    MARK = 1
    OPEN = 2
    WRITE = 3
    TRUNCATE = 4
    SYNC = 5
    UNLINK = 6
    RENAME = 7


class Mode(IntEnum):
    """How a fault goes on."""

    ONCE = 0
    FOR_GOOD = 1
    HALF_THEN_DIE = 2
    """Half of the write is done, and then the process is killed."""


def build(folder: Path) -> Path | None:
    """The library, compiled into a folder; None where that cannot be done."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        return None
    library = folder / "preload.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-lpthread"], check=True)
    return library


class Disk:
    """The library, in a process that has it."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)
        self._library.disk_faults.restype = ctypes.c_long

    def watch(self, folder: Path, trace: Path) -> None:
        """Trace what happens below a folder from now on, behind what the trace has already."""
        if self._library.disk_watch(str(folder).encode(), str(trace).encode()) < 0:
            raise OSError(f"no trace can be written to {trace}")

    def fail(self, kinds: Sequence[int], place: int, *, mode: int, number: int = errno.EIO) -> None:
        """Let the n-th change of some kinds, counted from now, fail with an error number."""
        mask = sum(1 << kind for kind in kinds)
        self._library.disk_fail(ctypes.c_uint(mask), ctypes.c_long(place), number, mode)

    @property
    def faults(self) -> int:
        """How often something failed."""
        return int(self._library.disk_faults())

    def mark(self, text: str) -> None:
        """Put a mark between the changes."""
        self._library.disk_mark(text.encode())

    def shift_clock(self, seconds: int) -> None:
        """Let the wall clock be so much ahead of the machine's, or behind it."""
        self._library.clock_shift_by(ctypes.c_long(seconds))


@dataclass(frozen=True, slots=True)
class Step:
    """One record of a trace."""

    change: Change
    flags: int
    file: int
    offset: int
    data: bytes

    @property
    def is_new(self) -> bool:
        """Whether an opened file was made by that."""
        return bool(self.flags & _IS_NEW)

    @property
    def has_failed(self) -> bool:
        """Whether it is a sync, or a truncation, that the disk refused."""
        return bool(self.flags & _HAS_FAILED)

    @property
    def text(self) -> str:
        """A path, or a mark."""
        return self.data.decode()


def read_trace(path: Path) -> list[Step]:
    """A trace's records. Half a record at the end, of a process that was killed, is none."""
    content, steps, place = path.read_bytes(), list[Step](), 0
    while place + _HEAD.size <= len(content):
        change, flags, file, offset, length = _HEAD.unpack_from(content, place)
        place += _HEAD.size + length
        if place <= len(content):
            steps.append(Step(Change(change), flags, file, offset, content[place - length : place]))
    return steps


@dataclass(slots=True)
class _Piece:
    """A part of a write, of one sector at most; without bytes, a new length of the file."""

    offset: int
    data: bytes | None
    is_doubtful: bool = False
    """A sync of it failed: it may be on the disk or not, and a later sync writes it only with a page that changed."""


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    pending: list[_Piece] = field(default_factory=list[_Piece])

    def write(self, offset: int, data: bytes) -> None:
        place = 0
        while place < len(data):
            size = min(len(data) - place, SECTOR - (offset + place) % SECTOR)
            self.pending.append(_Piece(offset + place, data[place : place + size]))
            place += size

    def sync(self) -> None:
        changed = {piece.offset // PAGE for piece in self.pending if piece.data is not None and not piece.is_doubtful}
        written, doubtful = list[_Piece](), list[_Piece]()
        for piece in self.pending:
            if piece.data is None:
                doubtful = [one for one in doubtful if one.offset < piece.offset]
                written.append(piece)
            elif piece.is_doubtful and piece.offset // PAGE not in changed:
                doubtful.append(piece)
            else:
                written.append(piece)
        _apply(self.content, written)
        self.pending = doubtful

    def fail_to_sync(self) -> None:
        for piece in self.pending:
            piece.is_doubtful = piece.data is not None

    def torn(self, chance: random.Random) -> bytes:
        """What was synced, and any part of the rest."""
        content = bytearray(self.content)
        _apply(content, list(_some(self.pending, chance)))
        return bytes(content)


def _apply(content: bytearray, pieces: Sequence[_Piece]) -> None:
    for piece in pieces:
        if piece.data is None:
            del content[piece.offset :]
            content.extend(bytes(piece.offset - len(content)))
        else:
            content.extend(bytes(max(0, piece.offset - len(content))))
            content[piece.offset : piece.offset + len(piece.data)] = piece.data


def _some(pieces: Sequence[_Piece], chance: random.Random) -> Iterator[_Piece]:
    match chance.randrange(5):
        case 0:
            return
        case 1:
            yield from pieces
        case 2:
            yield from pieces[: chance.randint(0, len(pieces))]
        case 3:
            yield from pieces[chance.randint(0, len(pieces)) :]
        case _:
            yield from (piece for piece in pieces if chance.random() < 0.5)


class State:
    """What a disk has been told, up to a place in a trace, and what of it is certain to be there."""

    def __init__(self, steps: Sequence[Step], folder: Path, *, ignored: frozenset[str] = frozenset()) -> None:
        """`ignored` tells the kinds of sync that this disk does not carry out: of `files`, of `folders`."""
        self._folder = str(folder)
        self._ignored = ignored
        self._files: dict[int, _File] = {}
        self._folders: set[int] = set()
        self._names: dict[str, _File] = {}
        self._certain: dict[str, _File] = {}
        self._renamed: list[tuple[str, _File | None]] = []
        self.marks: list[str] = []
        for step in steps:
            self._take(step)

    def _take(self, step: Step) -> None:
        match step.change:
            case Change.MARK:
                self.marks.append(step.text)
            case Change.OPEN:
                self._open(step)
            case Change.WRITE:
                self._files[step.file].write(step.offset, step.data)
            case Change.TRUNCATE:
                if not step.has_failed:
                    self._files[step.file].pending.append(_Piece(step.offset, None))
            case Change.SYNC:
                self._sync(step)
            case Change.UNLINK:
                self._name(self._relative(step.text), None)
            case Change.RENAME:
                source, target = step.text.split("\0")
                moved = self._names[self._relative(source)]
                self._name(self._relative(source), None)
                self._name(self._relative(target), moved)

    def _open(self, step: Step) -> None:
        if step.text == self._folder:
            self._folders.add(step.file)
        elif step.is_new or step.file not in self._files:
            self._files[step.file] = _File()
            self._name(self._relative(step.text), self._files[step.file])

    def _name(self, name: str, file: _File | None) -> None:
        if file is None:
            self._names.pop(name, None)
        else:
            self._names[name] = file
        self._renamed.append((name, file))

    def _sync(self, step: Step) -> None:
        if step.file in self._folders:
            if "folders" not in self._ignored and not step.has_failed:
                self._certain = dict(self._names)
                self._renamed.clear()
        elif step.has_failed:
            self._files[step.file].fail_to_sync()
        elif "files" not in self._ignored:
            self._files[step.file].sync()

    def _relative(self, path: str) -> str:
        return str(Path(path).relative_to(self._folder))

    @property
    def uncertain(self) -> set[str]:
        """The names of which something is not synced: their content, that they exist, or that they do not."""
        return self.unnamed | {name for name, file in self._names.items() if file.pending}

    @property
    def unnamed(self) -> set[str]:
        """The names of which it is not certain whether they are there."""
        return {name for name, _ in self._renamed}

    def is_folder(self, step: Step) -> bool:
        """Whether something was done to the folder, rather than to a file in it."""
        return step.file in self._folders

    def after_power_loss(self, target: Path, chance: random.Random) -> None:
        """Make a folder as the disk may have it when the power comes back."""
        names: dict[str, _File | None] = dict(self._certain)
        for name in sorted({name for name, _ in self._renamed}):
            changes = [file for changed, file in self._renamed if changed == name]
            kept = chance.randint(0, len(changes))
            if kept:
                names[name] = changes[kept - 1]
        target.mkdir()
        for name, file in names.items():
            if file is not None:
                (target / name).write_bytes(file.torn(chance))
