from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from benchmarks.compare.environments import LIBRARIES, interpreter


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the environments of the chosen programs, which can take longer than a test may hang."""
    parameters = [vars(item).get("callspec") for item in session.items]
    programs = [getattr(known, "params", {}).get("program") for known in parameters]
    names = {name for program in programs if (name := getattr(program, "environment", None))}
    if session.config.option.collectonly or not names:
        return
    with ThreadPoolExecutor() as pool, suppress(RuntimeError):  # the programs themselves say that it did not work
        list(pool.map(lambda name: interpreter(LIBRARIES[name]), sorted(names)))
