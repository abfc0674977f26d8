"""Things that are started and stopped: in order, once, and never by half."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final

from protolink._environment import current_environment
from protolink._runtime.scopes import in_spite_of_cancellation
from protolink._text import describe_error, visible
from protolink.transport.errors import TransportStartError

__all__ = ["Lifecycle", "starting", "within"]

_logger: Final = logging.getLogger("protolink")


class Lifecycle:
    """One start and one stop of something, however often and from wherever they are asked for.

    `enter` puts everything that it starts on the stack that it is given. When it fails or is canceled, what
    is on the stack is stopped again, in reverse, and the next start begins anew.
    """

    def __init__(self, enter: Callable[[AsyncExitStack], Awaitable[None]]) -> None:
        self._enter = enter
        self._turn = asyncio.Lock()
        self._stack: AsyncExitStack | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        """Whether it was started, and neither stopped nor left behind by an event loop that is closed."""
        return self._stack is not None and self._loop is not None and not self._loop.is_closed()

    async def start(self) -> None:
        """Start; nothing happens where that is done already."""
        async with self._turn:
            if self.running:
                return
            stack = AsyncExitStack()
            try:
                await self._enter(stack)
            except BaseException:
                await in_spite_of_cancellation(_rolled_back(stack))
                raise
            self._stack, self._loop = stack, asyncio.get_running_loop()

    async def stop(self) -> None:
        """Stop in reverse order; nothing happens where that is done already.

        A cancellation meanwhile is honoured when everything has stopped.
        """
        async with self._turn:
            stack, self._stack = self._stack, None
            if stack is not None:
                await in_spite_of_cancellation(stack.aclose())


async def _rolled_back(stack: AsyncExitStack) -> None:
    try:
        await stack.aclose()
    except Exception as error:  # whatever is stopped is somebody else's; why it was stopped is what counts
        _logger.error("stopping again after a failed start: %s", visible(describe_error(error)))


@contextlib.asynccontextmanager
async def starting(what: str) -> AsyncGenerator[None]:
    """Let whatever keeps `what` from starting be one `TransportStartError`, but for a cancellation of the caller.

    A server that calls `sys.exit` because its port is taken must not end the application.
    """
    try:
        yield
    except TransportStartError:
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TransportStartError(f"{what} was canceled while it started") from error
    except (Exception, SystemExit) as error:
        raise TransportStartError(f"{what} could not be started: {describe_error(error, 500)}") from error


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncGenerator[None]:
    """Cancel the block after `seconds`, as a `TransportStartError`."""
    limit = asyncio.timeout(None)
    try:
        async with limit:
            timer = current_environment().call_later(seconds, lambda: limit.reschedule(0))
            try:
                yield
            finally:
                timer.cancel()
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise TransportStartError(f"{what} was not ready within {seconds:g} seconds") from error
