"""F27: copies of a store's file, with and without what its write-ahead log holds, and what two of them come to."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from protolink import TaskState
from protolink.durable import Row
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import UnknownRunError
from tests.reliability.facts import assert_sound
from tests.reliability.host import Host
from tests.reliability.programs import STORE
from tests.reliability.sites import Site, new_folder
from tests.reliability.teams import KINDS, ROOT, FileWorld, Operator

pytestmark = pytest.mark.fault(name="F27")


async def rows_of(path: Path) -> list[Row]:
    """The run in a file; nothing where the file knows none."""
    log = SQLiteRecordLog(path)
    try:
        return await log.read(ROOT)
    except UnknownRunError:
        return []
    finally:
        await log.close()


async def paused(site: Site) -> list[Row]:
    """A run that has yielded once, in a store that is still open: all that was told of it is in the log."""
    ended = await KINDS["yield"].start(site.agent("yield"))
    assert ended.state is TaskState.INPUT_REQUIRED
    assert site.path.with_name(f"{STORE}-wal").stat().st_size > 0
    return await site.rows()


async def test_a_copy_of_the_file_alone_is_an_older_store_and_no_mixture(site: Site, tmp_path: Path) -> None:
    """What the log holds is not in it. That is no error that anybody could see, so a backup takes the log along."""
    rows = await paused(site)
    copy = tmp_path / "copy.sqlite"
    shutil.copy(site.path, copy)

    assert await rows_of(copy) == []

    await site.log().close()  # moves the log into the file
    shutil.copy(site.path, copy)
    assert await rows_of(copy) == rows


async def test_a_copy_that_takes_the_log_along_and_a_backup_are_whole(site: Site, tmp_path: Path) -> None:
    """The first while nobody writes, the second at any time."""
    rows = await paused(site)
    copy, backup = tmp_path / "copy.sqlite", tmp_path / "backup.sqlite"
    shutil.copy(site.path, copy)
    shutil.copy(f"{site.path}-wal", f"{copy}-wal")
    with closing(sqlite3.connect(site.path)) as source, closing(sqlite3.connect(backup)) as target:
        source.backup(target)

    assert await rows_of(copy) == rows
    assert await rows_of(backup) == rows


async def test_two_copies_that_are_resumed_in_two_places_act_in_both(tmp_path: Path, host: Host) -> None:
    """Each is a store of its own and is sound in itself; that nobody does this is for whoever copies to see to."""
    original = Site(new_folder(tmp_path, "original"), host)
    rows = await paused(original)
    await original.log().close()
    sites: list[Site] = []
    for name in ("one", "other"):
        shutil.copytree(original.folder, tmp_path / name)
        sites.append(Site(tmp_path / name, host))

    for site in sites:
        outcome = await Operator(KINDS["yield"], FileWorld(site.folder)).attend(site.agent("yield"))
        assert outcome.task.state is TaskState.COMPLETED
        assert (await site.rows())[: len(rows)] == rows
        assert_sound(await site.rows())
        await site.log().close()

    one, other = (site.world.effects for site in sites)
    assert one == other
    assert len(one) == len(set(one)) == 3


async def test_a_copy_that_is_resumed_on_another_machine_is_warned_about(
    tmp_path: Path, host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, and with the name of the file; here the copy says that it was made elsewhere."""
    site = Site(new_folder(tmp_path, "original"), host)
    await paused(site)
    await site.log().close()
    with closing(sqlite3.connect(site.path)) as connection:
        connection.execute("UPDATE meta SET value = 'another' WHERE key = 'machine'")
        connection.commit()

    with caplog.at_level(logging.WARNING, logger="protolink"):
        agent = KINDS["yield"].build(SQLiteRecordLog(site.path), FileWorld(site.folder))
        for _ in range(2):
            await agent.resume_task(ROOT)

    (warning,) = caplog.messages
    assert STORE in warning
    assert "both may carry out the same action" in warning
