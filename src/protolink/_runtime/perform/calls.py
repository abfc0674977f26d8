"""Calling the application: hooks, preparation, handlers, factories, sync or async."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from protolink._callables import is_async
from protolink._runtime.scopes import enter
from protolink.errors import ConfigurationError

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["call", "call_hooks"]


async def call(driver: Driver, function: Callable[..., Any], /, *args: Any, in_thread: bool) -> Any:
    """The result of a callable of the application, awaited where it is awaitable.

    A plain function runs on the event loop, or in one of the agent's worker threads with `in_thread`.
    """
    if in_thread and not is_async(function):
        value = await driver.scope.call_in_thread(driver.configuration.workers.call(function, *args))
    else:
        value = enter(function, *args)
    return await driver.scope.call(value) if inspect.isawaitable(value) else value


async def call_hooks(driver: Driver, hooks: Iterable[Callable[..., Any]], subject: object, what: str) -> None:
    """Show `subject` to each hook in turn. Raises what a hook raises, and `ConfigurationError` for a result."""
    for hook in hooks:
        result = await call(driver, hook, subject, in_thread=False)
        if result is not None:
            raise ConfigurationError(
                f"a {what} hook changes its {type(subject).__name__} in place and returns None, "
                f"not {type(result).__name__}"
            )
