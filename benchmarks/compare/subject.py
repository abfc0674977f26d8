"""What an adapter offers: the least that every library can do, in the form in which it is measured.

This module and what it imports run in the environment of any library, so it needs nothing but Python.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import ClassVar, Protocol

__all__ = ["STORED_AS_IT_COMES", "STORED_FIRST", "Run", "Stream", "Subject", "Tool", "load"]

Tool = Callable[[int], Awaitable[str]]
"""A coroutine function with one parameter, `number`, which a model can call as `lookup`."""

Run = Callable[[], Awaitable[str]]
"""One whole run of an agent that exists already; gives its answer."""

Stream = Callable[[], AsyncIterator[str]]
"""One whole run, as the pieces of text that its reader sees."""

STORED_AS_IT_COMES = "as it comes"
"""A run whose steps are stored the way that the library stores them when nothing is said."""

STORED_FIRST = "before going on"
"""A run that goes on with nothing before the step is stored."""


class Subject(Protocol):
    """A library at work.

    Its model is a coroutine without any input or output that makes one call of the tool for each turn, in the form
    that the library's own providers use, and says `ANSWER` of `benchmarks.floors` after so many calls.
    """

    packages: ClassVar[Sequence[str]]
    """The distributions whose versions are shown."""

    configuration: ClassVar[str]
    """What was chosen, where there was something to choose."""

    start: ClassVar[str]
    """A program that imports the library and makes an agent with the one tool `lookup`, which is defined before it."""

    def agent(self, tool: Tool, calls: int, seconds: float | None = None) -> Run:
        """Runs of so many calls of the tool. Each reply of the model takes so many seconds; None is at once."""
        ...

    def streaming(self, fragments: Sequence[str]) -> Stream:
        """Runs without a tool whose model streams these fragments, each in a turn of the event loop of its own."""
        ...

    def durable(self, tool: Tool, calls: int, folder: Path) -> AbstractAsyncContextManager[Mapping[str, Run]]:
        """Runs of so many calls that are stored in SQLite files in that folder, by how they are stored.

        Empty for a library that stores no runs.
        """
        ...


def load(library: str) -> Subject:
    """The adapter for this library, which is in `benchmarks.compare.adapters`."""
    module = f"{library.replace('-', '_')}_adapter"
    subject: Subject = importlib.import_module(f"benchmarks.compare.adapters.{module}").Adapter()
    return subject
