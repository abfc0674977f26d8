"""Reading along with a stored run that somebody else drives: what they append is looked up now and then."""

from __future__ import annotations

from typing import Final

from protolink._environment import current_environment, pause
from protolink._runtime.journal import Journal
from protolink._runtime.resume import restore
from protolink.durable.port import RecordLog
from protolink.errors import DurableExecutionError

__all__ = ["Tail"]

_SECONDS: Final = 0.2


class Tail:
    """Brings a list up to date until its run is at rest or nobody drives it any more."""

    __slots__ = ("_journal", "_log")

    def __init__(self, log: RecordLog, journal: Journal) -> None:
        self._log = log
        self._journal = journal
        journal.closed = False

    async def follow(self) -> None:
        """Read what comes; readers are told when nothing more will, or that the store failed."""
        journal = self._journal
        try:
            await self._read_along()
        except DurableExecutionError as error:
            journal.broken = error
            journal.wake()
        else:
            journal.close()

    async def _read_along(self) -> None:
        journal, root_id = self._journal, self._journal.tree.root_id
        while not journal.tree.runs[root_id].at_rest:
            info = await self._log.get(root_id)
            if info is not None and info.records > journal.records:
                await restore(journal, await self._log.read(root_id, journal.records))
                journal.wake()
            elif info is None or info.owner is None:
                return
            else:
                await pause(current_environment(), _SECONDS)
