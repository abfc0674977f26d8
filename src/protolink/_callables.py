"""Telling plain and asynchronous callables apart."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

__all__ = ["is_async"]


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: coroutine functions, partials of them, objects with such a `__call__`.

    A plain function that returns an awaitable is not recognised; whoever calls it has to look at the result.
    """
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
