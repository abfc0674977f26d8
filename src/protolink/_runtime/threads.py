"""Blocking functions in bounded worker threads.

A slot is taken before a function starts and comes back when its thread has really ended, not when whoever
waited for it gives up: Python cannot stop a running thread, and a bound that pretends otherwise is none.
The threads are daemons, so a function that never returns does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

__all__ = ["ThreadCall", "Workers"]

IDLE_SECONDS: Final = 10.0
"""How long a thread waits for more work before it ends."""

_Job = Callable[[], None]


class _Pool:
    """Threads of the whole process, reused while there is work."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[_Job]] = []

    def start(self, job: _Job) -> None:
        """Run `job` at once in a thread that has nothing to do, or in a new one."""
        with self._lock:
            inbox = self._idle.pop() if self._idle else None
        if inbox is not None:
            inbox.put(job)
            return
        fresh: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        fresh.put(job)
        threading.Thread(target=self._serve, args=(fresh,), name="protolink-worker", daemon=True).start()

    def _serve(self, inbox: queue.SimpleQueue[_Job]) -> None:
        while True:
            try:
                job = inbox.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                continue  # a job was handed over just now
            job()
            del job  # an idle thread keeps nothing of its last call alive
            with self._lock:
                self._idle.append(inbox)


_pool = _Pool()


class ThreadCall:
    """One blocking call. `future` belongs to the event loop that asked; canceling it gives up waiting."""

    __slots__ = ("_function", "_loop", "_workers", "ended", "entered", "future")

    def __init__(self, workers: Workers, loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
        self._workers = workers
        self._loop = loop
        self._function = function
        self.entered: bool = False
        self.ended: bool = False
        self.future: asyncio.Future[tuple[bool, Any]] = loop.create_future()

    @property
    def still_running(self) -> bool:
        """Whether the function was entered and has not come back."""
        return self.entered and not self.ended

    def start(self) -> bool:
        """Have a thread run it. False where there is none to be had; it has failed then, and was never entered."""
        self.entered = True
        try:
            _pool.start(self.run)
        except (RuntimeError, MemoryError) as error:  # how an exhausted system refuses a thread
            self.entered = False
            self._tell((False, error))
            return False
        return True

    def run(self) -> None:
        """Run the function in this thread, give the slot back, then tell the loop."""
        outcome: tuple[bool, Any]
        try:
            outcome = (True, self._function())
        except BaseException as error:  # the application's code, in a thread that has nobody above it
            outcome = (False, _own_failure(error))
        self.ended = True
        self._workers.release()
        self._tell(outcome)

    def _tell(self, outcome: tuple[bool, Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._settle, outcome)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    def _settle(self, outcome: tuple[bool, Any]) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


def _own_failure(error: BaseException) -> BaseException:
    """The exception as one that may pass an event loop. A real Ctrl-C reaches the main thread and no other."""
    if not isinstance(error, KeyboardInterrupt):
        return error
    failure = RuntimeError("KeyboardInterrupt was raised in a worker thread")
    failure.__cause__ = error
    return failure


class Workers:
    """The worker threads of one agent: at most `limit` functions at a time, over all event loops."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._busy = 0
        self._waiting: deque[ThreadCall] = deque()

    @property
    def busy(self) -> int:
        """How many slots are taken."""
        return self._busy

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> ThreadCall:
        """Run a function in a worker thread, now or when a slot is free, with a copy of the context.

        The call's future gives `(True, result)` or `(False, exception)`. A call whose future is canceled
        while it waits for a slot is never entered.
        """
        context = contextvars.copy_context()
        call = ThreadCall(self, asyncio.get_running_loop(), lambda: context.run(function, *args, **kwargs))
        with self._lock:
            if self._busy >= self.limit:
                self._waiting.append(call)
                return call
            self._busy += 1
        if not call.start():
            self.release()
        return call

    async def run(self, function: Callable[..., Any], /, *args: Any) -> Any:
        """Await a blocking function; what it raises is raised here."""
        returned, value = await self.call(function, *args).future
        if returned:
            return value
        raise value

    def release(self) -> None:
        """Give a slot back: to the longest waiting call that is still wanted, or to nobody."""
        while (call := self._next()) is not None:
            if call.start():
                return

    def _next(self) -> ThreadCall | None:
        with self._lock:
            while self._waiting:
                call = self._waiting.popleft()
                if not call.future.cancelled():
                    return call
            self._busy -= 1
            return None
