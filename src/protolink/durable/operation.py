"""One thing to do with a store's file: asked for on an event loop, done in a thread of the store's."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar

from protolink.durable.faults import translated

__all__ = ["Operation", "tell"]

T = TypeVar("T")

_logger: Final = logging.getLogger("protolink")


class Operation(Generic[T]):
    """Something to do with the file, for one awaiting caller or, without a loop, for nobody.

    A caller that is canceled leaves it at once: what has not begun is not done, and the value of what was
    done is undone, whichever of the two comes to know of the other first.
    """

    __slots__ = (
        "_commit",
        "_given",
        "_is_left",
        "_lock",
        "_loop",
        "_prepare",
        "_undo",
        "_work",
        "deadline",
        "future",
        "patience",
        "size",
        "undone",
    )

    def __init__(
        self,
        undone: str,
        work: Callable[[sqlite3.Connection], T],
        *,
        patience: float,
        prepare: Callable[[], int] | None = None,
        commit: Callable[[T], object] | None = None,
        undo: Callable[[T], object] | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.undone: str = undone
        """What an error says that was not done."""
        self.patience: float = patience
        self.deadline: float = 0.0
        self.size: int = 0
        self._work = work
        self._prepare = prepare
        self._commit = commit
        self._undo = undo
        self._loop = loop
        self._lock = threading.Lock()
        self._is_left = False
        self._given: list[T] = []
        self.future: asyncio.Future[None] | None = None if loop is None else loop.create_future()

    @property
    def is_left(self) -> bool:
        """Whether its caller waits no more."""
        return self._is_left

    def start(self, now: float) -> bool:
        """Do what needs no transaction. False for one that nobody waits for any more, or that was refused."""
        if self._is_left:
            return False
        self.deadline = now + self.patience
        if self._prepare is not None:
            try:
                self.size = self._prepare()
            except Exception as error:
                self.fail(error)
                return False
        return True

    def run(self, connection: sqlite3.Connection) -> T:
        """Do it, inside a transaction."""
        return self._work(connection)

    def undo(self, value: T) -> None:
        """What it gave is of no use: the commit failed, or nobody waits."""
        if self._undo is not None:
            self._undo(value)

    def give(self, value: T) -> asyncio.AbstractEventLoop | None:
        """It is committed: leave the value for the caller, from any thread. The loop to be told of that, if any is."""
        if self._commit is not None:
            self._commit(value)
        if self._loop is None:
            return None
        with self._lock:
            if not self._is_left:
                self._given.append(value)
        if not self._given:
            self.undo(value)
            return None
        return self._loop

    def fail(self, error: BaseException) -> None:
        """Tell the caller why it was not done, from any thread."""
        told = translated(error, self.undone)
        if self._loop is None:
            _logger.debug("%s", told)
            return
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._refuse, told)

    def settle(self) -> None:
        """On its loop: wake the caller."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def abandon(self) -> None:
        """Its loop was closed before it could be told: nobody waits any more."""
        for value in self._given:
            self.undo(value)

    def _refuse(self, error: BaseException) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_exception(error)

    async def result(self) -> T:
        """What it gave, once it is committed."""
        if self.future is None:
            raise RuntimeError("nobody can wait for an operation without a loop")
        try:
            await self.future
        except BaseException:  # canceled, or its loop was closed and its task thrown away
            with self._lock:
                self._is_left = True
            for value in self._given:
                self.undo(value)
            raise
        return self._given[0]


def tell(done: Iterable[tuple[Operation[Any], Any]]) -> None:
    """Give operations what they gave, and wake each event loop once for all of its callers."""
    loops: dict[asyncio.AbstractEventLoop, list[Operation[Any]]] = {}
    for operation, value in done:
        loop = operation.give(value)
        if loop is not None:
            loops.setdefault(loop, []).append(operation)
    for loop, operations in loops.items():
        try:
            loop.call_soon_threadsafe(_settle, operations)
        except RuntimeError:  # the loop is closed
            for operation in operations:
                operation.abandon()


def _settle(operations: list[Operation[Any]]) -> None:
    for operation in operations:
        operation.settle()
