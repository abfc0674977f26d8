"""Processes to kill, and a place for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability.host import Host
from tests.reliability.sites import Site


@pytest.fixture(scope="session")
def _host() -> Iterator[Host]:
    with Host() as host:
        yield host


@pytest.fixture
def host(_host: Host) -> Iterator[Host]:
    """Forks processes; none of them outlives the test."""
    yield _host
    _host.clear()


@pytest.fixture
def site(tmp_path: Path, host: Host) -> Site:
    """An empty site."""
    return Site(tmp_path, host)
