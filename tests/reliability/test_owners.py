"""F18: owners that are stopped, blocked, in another container, or gone while somebody else has their process ID."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.reliability.facts import assert_sound
from tests.reliability.host import Host, Process
from tests.reliability.scale import scaled
from tests.reliability.sites import Site
from tests.reliability.tally import Tally
from tests.reliability.teams import ROOT

ONE_SECOND = 1.0
ROUNDS = scaled(commit=1, short=3, full=25)
"""Of each kind of run."""
KINDS_OF_RUN = ["tool", "worker"]

pytestmark = pytest.mark.fault(name="F18")

CONTAINER = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
"""What starts a command in process and user namespaces of its own, which takes no privilege."""


@pytest.fixture(scope="module")
def _containers() -> Iterator[tuple[Host, Host]]:
    if shutil.which("unshare") is None or subprocess.run([*CONTAINER, "true"], check=False).returncode != 0:
        pytest.skip("this machine does not let its users make process namespaces")
    with Host(prefix=CONTAINER) as one, Host(prefix=CONTAINER) as other:
        yield one, other


@pytest.fixture
def containers(_containers: tuple[Host, Host]) -> Iterator[tuple[Host, Host]]:
    """Two hosts whose processes do not see each other. As long as both start as many, these have the same IDs."""
    yield _containers
    for host in _containers:
        host.clear()


def folders(parent: Path) -> Iterator[Path]:
    """One for each round."""
    for number in range(ROUNDS):
        folder = parent / str(number)
        folder.mkdir()
        yield folder


async def ends_alone(site: Site, owner: Process, kind: str) -> None:
    """Let the owner go on: it comes to its end, and everything has happened once."""
    owner.tell()
    assert owner.end()["state"] == "completed"
    assert max(Counter(site.world.effects).values()) == 1
    assert len(site.world.effects) == {"tool": 2, "worker": 3}[kind]
    assert_sound(await site.rows())
    await site.log().close()


@pytest.mark.parametrize("state", ["stopped", "blocked"])
@pytest.mark.parametrize("kind", KINDS_OF_RUN)
async def test_an_owner_that_does_nothing_for_a_while_keeps_its_run(
    kind: str, state: str, tmp_path: Path, host: Host, tally: Tally
) -> None:
    """Its process is stopped by a signal, or its event loop by an action; no clock says that it is dead."""
    for folder in folders(tmp_path):
        site = Site(folder, host)
        owner = site.process("start", kind, "acted")
        owner.until("acted")  # until it is answered, the action keeps the event loop from its turn
        if state == "stopped":
            owner.signal(signal.SIGSTOP)
        for _ in range(3):
            told = site.process("resume", kind).end()
            assert told["error"] == "RunBusyError"
            assert str(owner.pid) in told["owner"]
            assert told["seconds"] - told["kept_waiting"] < ONE_SECOND
        tally.add(f"{state} owners")
        owner.signal(signal.SIGCONT)

        await ends_alone(site, owner, kind)


@pytest.mark.parametrize("kind", KINDS_OF_RUN)
async def test_an_owner_in_another_container_is_seen_although_its_process_is_not(
    kind: str, tmp_path: Path, containers: tuple[Host, Host], tally: Tally
) -> None:
    """The one who asks has the very ID that the owner's name tells, and is not taken for the owner."""
    one, other = containers
    for folder in folders(tmp_path):
        site = Site(folder, one)
        owner = site.process("start", kind, "acted")
        owner.until("acted")
        rival = Site(folder, other).process("resume", kind)
        assert rival.pid == owner.pid
        tally.add("owners in another container")

        told = rival.end()

        assert told["error"] == "RunBusyError"
        assert str(rival.pid) in told["owner"]
        await ends_alone(site, owner, kind)


@pytest.mark.parametrize("kind", KINDS_OF_RUN)
async def test_a_dead_owners_run_is_taken_up_at_once_by_a_process_of_the_same_id(
    kind: str, tmp_path: Path, containers: tuple[Host, Host], tally: Tally
) -> None:
    """As after the restart of a container, in which everybody has the ID that they had before."""
    one, other = containers
    for folder in folders(tmp_path):
        site = Site(folder, one)
        owner = site.process("start", kind, "acted")
        owner.until("acted")
        owner.kill()
        heir = Site(folder, other).process("resume", kind)
        assert heir.pid == owner.pid
        tally.add("heirs of the same process ID")

        told = heir.end()

        assert (told["error"], told["root_run_id"]) == ("UncertainExecutionError", ROOT)
        assert told["seconds"] - told["kept_waiting"] < ONE_SECOND
        tally.see("s of the slowest heir", told["seconds"])
        assert site.world.effects == [told["action_id"]]
        await site.log().close()
