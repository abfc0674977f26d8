"""Waiting for the application's code in a way that can be broken off, and told apart from other endings.

Three things look alike in asyncio and are not: the run was told to stop, whoever drives the run was
canceled from outside, and the awaited code canceled something of its own. `Scope.call` runs the code in a
task of its own, so that each has its own exception here: `Interrupted`, `CancelledError`, and
`InnerCancellation`, which is a failure of that code like any other.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Final

from protolink._environment import Environment, Timer
from protolink._runtime.threads import ThreadCall

__all__ = [
    "CANCEL_GRACE_SECONDS",
    "PASSING",
    "InnerCancellation",
    "Interrupted",
    "Scope",
    "TimedOut",
    "enter",
    "in_spite_of_cancellation",
]

CANCEL_GRACE_SECONDS: Final = 0.5
"""How long code that was told to stop may take to clean up before the run goes on without it."""


class Interrupted(Exception):  # noqa: N818 - it is an instruction, not a fault
    """The run was told to stop while it waited. `unsettled` says that the code may still be running."""

    def __init__(self, *, unsettled: bool) -> None:
        super().__init__("the run was told to stop")
        self.unsettled = unsettled


class TimedOut(Interrupted):
    """The awaited code used up its own time."""


class InnerCancellation(Exception):  # noqa: N818 - it stands in for asyncio's CancelledError
    """The awaited code was canceled by something of its own; nobody canceled the run."""

    def __init__(self) -> None:
        super().__init__("it was canceled by something that it started itself")


PASSING: Final = (Interrupted, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)
"""What is no failure of the application's code, so that whoever handles its exceptions lets it pass.

Everything else is, `SystemExit` included: it ends the run and not the process."""


def enter(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the application's code here and now. Raises what it raises, but for what asyncio would misread."""
    try:
        return function(*args, **kwargs)
    except (asyncio.CancelledError, GeneratorExit) as error:
        raise _own_failure(error) from error


class _Wait:
    """One place where the run waits: for the end of `target`, or for its grace to be over."""

    __slots__ = ("abandoned", "grace", "target", "told", "waker")

    target: asyncio.Future[tuple[bool, Any]]

    def __init__(self) -> None:
        self.told = False
        self.abandoned = False
        self.grace: Timer | None = None
        self.waker: asyncio.Future[None] | None = None

    def abandon(self) -> None:
        """Go on without the code."""
        if not self.target.done():
            self.abandoned = True
            self.wake()

    def wake(self, _target: object = None) -> None:
        """Let the run look again."""
        if self.waker is not None and not self.waker.done():
            self.waker.set_result(None)


class Scope:
    """The waits of one run. After `interrupt` each of them ends, at the latest when its grace is over."""

    __slots__ = ("_environment", "_waits", "stopped")

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._waits: set[_Wait] = set()
        self.stopped: bool = False

    def interrupt(self) -> None:
        """Tell everything that the run waits for to stop."""
        self.stopped = True
        for wait in tuple(self._waits):
            self._tell(wait)

    def _tell(self, wait: _Wait) -> None:
        if wait.told:
            return
        wait.told = True
        wait.target.cancel()
        wait.grace = self._environment.call_later(CANCEL_GRACE_SECONDS, wait.abandon)

    async def call(self, awaitable: Awaitable[Any], timeout: float | None = None) -> Any:
        """Await the application's code. Raises what it raises, or one of the endings above."""
        if self.stopped:
            _discard(awaitable)
            raise Interrupted(unsettled=False)
        wait = _Wait()
        target = asyncio.get_running_loop().create_task(_contained(awaitable, wait))
        try:
            returned, value = await self._wait(wait, target, timeout)
        finally:
            if not target.done() or target.cancelled():
                _close_unstarted(awaitable)  # its task was canceled before it had a turn
        return _unpack(returned, value)

    async def call_in_thread(self, call: ThreadCall, timeout: float | None = None) -> Any:
        """Await a blocking call. A thread that was entered cannot be stopped, so it may stay unsettled."""
        if self.stopped:
            call.future.cancel()
            raise Interrupted(unsettled=call.still_running)
        try:
            returned, value = await self._wait(_Wait(), call.future, timeout)
        except Interrupted as interrupted:
            interrupted.unsettled = call.still_running
            raise
        return _unpack(returned, value)

    async def _wait(
        self, wait: _Wait, target: asyncio.Future[tuple[bool, Any]], timeout: float | None
    ) -> tuple[bool, Any]:
        wait.target = target
        target.add_done_callback(wait.wake)
        timer = None if timeout is None else self._environment.call_later(timeout, lambda: self._tell(wait))
        canceled: asyncio.CancelledError | None = None
        self._waits.add(wait)
        try:
            while not (wait.abandoned or target.done()):
                # A future of its own: a cancellation of whoever waits arrives here at once and leaves the target alone.
                wait.waker = asyncio.get_running_loop().create_future()
                try:
                    await wait.waker
                except asyncio.CancelledError as error:  # whoever drives the run: the code gets its grace as well
                    canceled = error
                    self._tell(wait)
        finally:
            self._waits.discard(wait)
            if timer is not None:
                timer.cancel()
            if wait.grace is not None:
                wait.grace.cancel()
        if canceled is not None:
            raise canceled
        if not wait.told:
            return (False, asyncio.CancelledError()) if target.cancelled() else target.result()
        kind = Interrupted if self.stopped else TimedOut
        raise kind(unsettled=wait.abandoned)


def _unpack(returned: bool, value: Any) -> Any:
    if returned:
        return value
    if isinstance(value, asyncio.CancelledError | GeneratorExit):
        raise _own_failure(value) from value
    raise value


def _own_failure(error: BaseException) -> Exception:
    if isinstance(error, asyncio.CancelledError):
        return InnerCancellation()
    return RuntimeError(f"{type(error).__name__} was raised")


async def _contained(awaitable: Awaitable[Any], wait: _Wait) -> tuple[bool, Any]:
    """The outcome as a value: nothing that the code raises, SystemExit included, may reach the event loop."""
    try:
        return True, await awaitable
    except BaseException as error:
        return False, error
    finally:
        wait.wake()  # one round of the event loop before the task's own callback would


def _close_unstarted(awaitable: Awaitable[Any]) -> None:
    if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == inspect.CORO_CREATED:
        awaitable.close()


def _discard(awaitable: Awaitable[Any]) -> None:
    """Close a coroutine that will never be awaited, so that it does not warn."""
    close = getattr(awaitable, "close", None)
    if close is not None:
        close()


async def in_spite_of_cancellation(work: Awaitable[None]) -> None:
    """Await work to its end. Whoever cancels the wait is obeyed afterwards."""
    task = asyncio.ensure_future(work)
    canceled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if not task.cancelled():
                canceled = error
        except BaseException:  # the work's own, which is raised below
            break
    if canceled is not None:
        if not task.cancelled():
            task.exception()  # seen, so that it is not reported as forgotten
        raise canceled
    await task
