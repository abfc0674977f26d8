"""What every test runs under: bounded time, reproducible examples, and a clean interpreter on request."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import settings

from tests.reliability.scale import scaled
from tests.reliability.tally import pytest_runtest_makereport, tally

__all__ = ["pytest_runtest_makereport", "tally"]

TIME_LIMIT_SECONDS = scaled(commit=30, short=900, full=6 * 3600)

# A shared machine of two cores makes single examples slow now and then, which is no finding. On a server
# the same commit must have the same outcome; at a desk each run may look somewhere else.
settings.register_profile("protolink", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("protolink")


def _bounded(function: Callable[..., Awaitable[object]], seconds: float) -> Callable[..., Awaitable[object]]:
    @functools.wraps(function)
    async def run(*args: object, **kwargs: object) -> object:
        return await asyncio.wait_for(function(*args, **kwargs), seconds)

    return run


def pytest_configure(config: pytest.Config) -> None:
    """Faults are numbered as in `docs/reliability.md`."""
    config.addinivalue_line("markers", "fault(name): the fault that the test causes")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """A run that never ends must fail its test instead of stopping the suite."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            marker = item.get_closest_marker("time_limit")
            item.obj = _bounded(item.obj, TIME_LIMIT_SECONDS if marker is None else marker.args[0])


Interpreter = Callable[[str], str]


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """Runs a program in a fresh interpreter, where warnings are errors, and returns what it printed."""

    def run(program: str) -> str:
        command = [sys.executable, "-W", "error", "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    return run
