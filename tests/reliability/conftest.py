"""Processes to kill, and a place for them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability.disks import build
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


@pytest.fixture(scope="session")
def _watching_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    library = build(tmp_path_factory.mktemp("preload"))
    if library is None:
        pytest.skip("the disk is watched by a library for Linux, which has to be compiled, and there is no `cc`")
    with Host(preload=library) as host:
        yield host


@pytest.fixture
def watching_host(_watching_host: Host) -> Iterator[Host]:
    """Forks processes that can watch their disk, and let it fail."""
    yield _watching_host
    _watching_host.clear()


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder for files of which nobody needs to be sure that they outlive the machine."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        yield Path(folder)
