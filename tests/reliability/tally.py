"""What the tests of the faults have caused, counted while they cause it, and kept for a table.

A test belongs to a fault by its marker, `fault(name="F3")`, and counts in its fixture `tally`. Where `PROTOLINK_TALLY`
names a file, each test that ends adds a line to it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reliability.scale import SIZE

__all__ = ["Tally", "pytest_runtest_makereport", "tally"]


class Tally:
    """How often one test has caused what, and the worst that it has seen."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.worst: dict[str, float] = {}

    def add(self, what: str, number: int = 1) -> None:
        """It has happened, so many times."""
        self.counts[what] += number

    def see(self, what: str, value: float) -> None:
        """Keep the largest of the values."""
        self.worst[what] = max(value, self.worst.get(what, value))

    def __getitem__(self, what: str) -> int:
        return self.counts[what]


TALLY = pytest.StashKey[Tally]()
REPORTS = pytest.StashKey[list[pytest.TestReport]]()


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """Counts what the test causes; a test that has caused nothing fails."""
    counted = request.node.stash.setdefault(TALLY, Tally())
    yield counted
    if not any(report.failed for report in request.node.stash.get(REPORTS, [])):
        assert counted.counts.total() > 0, "the fault was not reached"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write down what a test has caused, once it is over."""
    report = yield
    reports = item.stash.setdefault(REPORTS, [])
    reports.append(report)
    marker, path = item.get_closest_marker("fault"), os.environ.get("PROTOLINK_TALLY")
    if report.when == "teardown" and marker is not None and path is not None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(_line(item, marker.kwargs["name"], reports)) + "\n")
    return report


def _line(item: pytest.Item, fault: str, reports: list[pytest.TestReport]) -> dict[str, Any]:
    counted = item.stash.get(TALLY, Tally())
    skipped = any(report.skipped for report in reports)
    # A test that counts nothing itself causes its fault once.
    counts = counted.counts or Counter({} if skipped else {"cases": 1})
    return {
        "fault": fault,
        "test": item.nodeid,
        "size": SIZE,
        "counts": dict(counts),
        "worst": counted.worst,
        "violations": int(any(report.failed for report in reports)),
        "skipped": skipped,
        "seconds": round(sum(report.duration for report in reports), 3),
    }
