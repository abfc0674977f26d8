"""What others have asked an agent for: one run for each task, found again by whoever asked for it.

A task that is sent again joins its run. A stream that broke can be taken up again at the event behind the last one
that arrived: the run goes on for a while without anybody who reads it, and what has ended is remembered for a while.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from protolink._environment import Timer, current_environment
from protolink._runtime.principal import current_principal
from protolink.errors import RunExistsError
from protolink.events import RunEvent
from protolink.task import Task
from protolink.transport.errors import PeerNotFoundError

__all__ = ["Ended", "Submissions", "Work"]

RECONNECT_SECONDS: Final = 10.0
"""How long a run goes on when the stream of whoever asked for it has broken."""

REMEMBERED_SECONDS: Final = 60.0
"""How long an ended run can still be read by whoever asked for it."""

MAX_REMEMBERED: Final = 64
"""Runs of one principal that nobody reads any more; the oldest is forgotten for a further one."""

_GONE: Final = "whoever asked for it has gone"


class Work(Protocol):
    """A run that somebody else asked for."""

    @property
    def task(self) -> Task:
        """The task as it stands."""
        ...

    def events(self, after: int = 0) -> AsyncIterator[RunEvent]:
        """What can be seen of it behind a place of its list, until it ends."""
        ...

    async def result(self) -> Ended:
        """Await its end."""
        ...

    async def cancel(self, reason: str) -> None:
        """End it, and await that it has ended. One that has ended stays as it is."""
        ...


class Ended(Protocol):
    """How a run ended."""

    @property
    def task(self) -> Task:
        """The task with its outputs and receipts."""
        ...


@dataclass(eq=False, slots=True)
class _Submission:
    key: tuple[str, str]
    """Whom it belongs to, and the id of the task: somebody else's is not there."""

    sent: Task
    work: asyncio.Task[Work | Task]
    readers: int = 0
    ended: bool = False
    timer: Timer | None = None

    def wait_no_longer(self) -> None:
        """Call the timer off."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Submissions:
    """The work of one agent for others. `submit` starts the run of a task, or gives its stored state."""

    def __init__(self, submit: Callable[[Task], Awaitable[Work | Task]]) -> None:
        self._submit = submit
        self._known: dict[tuple[str, str], _Submission] = {}
        self._unread: defaultdict[str, dict[_Submission, None]] = defaultdict(dict)
        """Those that nobody reads, by principal, the one that was left first in front."""

        self._ending: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def begun(self, task: Task, *, streamed: bool) -> AsyncGenerator[Work | Task]:
        """The run of a task, for a reader. One that was sent before is not started again.

        When a reader leaves by an error and nobody else reads, the run is canceled: at once, or where it was
        streamed, unless somebody comes back for it. Raises `RunExistsError` for another task under an id that
        was sent before.
        """
        key = (current_principal(), task.id)
        submission = self._known.get(key)
        if submission is None:
            submission = _Submission(key, task, asyncio.ensure_future(self._started(task)))
            self._known[key] = submission
        elif submission.sent.to_dict() != task.to_dict():
            raise RunExistsError("a task of that id was sent before, with another content")
        async with self._read(submission, streamed=streamed) as work:
            yield work

    async def _started(self, task: Task) -> Work | Task:
        return await self._submit(task)

    @asynccontextmanager
    async def again(self, task_id: str) -> AsyncGenerator[Work | Task]:
        """The run of a task that was sent before. Raises `PeerNotFoundError` where the caller has none."""
        async with self._read(self._of(task_id), streamed=True) as work:
            yield work

    def _of(self, task_id: str) -> _Submission:
        submission = self._known.get((current_principal(), task_id))
        if submission is None:
            raise PeerNotFoundError("there is no such task")
        return submission

    async def status(self, task_id: str) -> Task:
        """A task as it stands. Raises `PeerNotFoundError` where the caller has sent none, or long ago."""
        work = await asyncio.shield(self._of(task_id).work)
        return work if isinstance(work, Task) else work.task

    async def cancel(self, task_id: str, reason: str) -> Task:
        """End a run. Raises `PeerNotFoundError` where the caller has none of that task at work."""
        submission = self._of(task_id)
        work = await asyncio.shield(submission.work)
        if submission.ended or isinstance(work, Task):
            raise PeerNotFoundError("there is no such task")
        await work.cancel(reason)
        submission.ended = True
        return work.task

    async def close(self) -> None:
        """End every run, and await that it has ended."""
        known = tuple(self._known.values())
        self._known.clear()
        self._unread.clear()
        for submission in known:
            submission.wait_no_longer()
        await asyncio.gather(*(_end(submission) for submission in known), *self._ending, return_exceptions=True)

    @asynccontextmanager
    async def _read(self, submission: _Submission, *, streamed: bool) -> AsyncGenerator[Work | Task]:
        submission.wait_no_longer()
        self._unread[submission.key[0]].pop(submission, None)
        submission.readers += 1
        try:
            yield await asyncio.shield(submission.work)
        except BaseException:
            submission.readers -= 1
            if submission.readers == 0:
                await self._left(submission, streamed=streamed)
            raise
        submission.readers -= 1
        submission.ended = True
        if submission.readers == 0:
            self._remember(submission, REMEMBERED_SECONDS)

    async def _left(self, submission: _Submission, *, streamed: bool) -> None:
        """Its last reader has gone without its end."""
        if submission.work.done() and (submission.work.cancelled() or submission.work.exception() is not None):
            self._forget(submission)  # it was refused
        elif submission.ended:
            self._remember(submission, REMEMBERED_SECONDS)
        elif streamed:
            self._remember(submission, RECONNECT_SECONDS)
        else:
            self._forget(submission)
            await _end(submission)

    def _remember(self, submission: _Submission, seconds: float) -> None:
        if submission.work.done() and isinstance(submission.work.result(), Task):
            self._forget(submission)  # a store remembers it
            return
        if self._known.get(submission.key) is not submission:
            return
        unread = self._unread[submission.key[0]]
        unread[submission] = None
        if len(unread) > MAX_REMEMBERED:
            self._expire(next(iter(unread)))
        submission.timer = current_environment().call_later(seconds, lambda: self._expire(submission))

    def _expire(self, submission: _Submission) -> None:
        self._forget(submission)
        if not submission.ended:
            ending = asyncio.get_running_loop().create_task(_end(submission))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _forget(self, submission: _Submission) -> None:
        submission.wait_no_longer()
        unread = self._unread[submission.key[0]]
        unread.pop(submission, None)
        if not unread:
            del self._unread[submission.key[0]]
        if self._known.get(submission.key) is submission:
            del self._known[submission.key]


async def _end(submission: _Submission) -> None:
    try:
        work = await submission.work
    except Exception:  # it was refused, and whoever asked has been told or has gone
        return
    if not isinstance(work, Task):
        await work.cancel(_GONE)
