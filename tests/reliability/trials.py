"""One run that is killed, or that its disk fails, again and again, and what has to hold in between."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

from protolink._core.records import ActionReconciled
from protolink.durable import Row
from protolink.errors import UnknownRunError
from tests.reliability.facts import assert_sound, fold, left_open, of_kind
from tests.reliability.host import Process
from tests.reliability.sites import Site


@dataclass
class Trial:
    """One run that is killed again and again."""

    site: Site
    kind: str
    before: list[Row] = field(default_factory=list[Row])
    unsettled: set[str] = field(default_factory=set[str])

    async def look(self) -> None:
        """What the process that died has left: nothing that was there is gone, and what is open is known."""
        try:
            rows = await self.site.rows()
        except UnknownRunError:
            rows = []
        assert rows[: len(self.before)] == self.before, "something that was stored is gone"
        self.before = rows
        if rows:
            self.unsettled |= left_open(rows)
        self.check_effects()

    def check_effects(self) -> None:
        if self.kind != "parallel read-only tools":
            assert max(Counter(self.site.world.effects).values(), default=0) <= 1, "an effect happened twice"

    async def conclude(self, told: dict[str, object], answer: object, effects: int) -> None:
        """The run has come to its end: the same answer, each effect once, each unknown one settled once."""
        await self.look()
        rows = self.before
        assert_sound(rows)
        assert (told["state"], told["output"]) == ("completed", answer)
        settled = [record.action_id for record in cast("list[ActionReconciled]", of_kind(rows, ActionReconciled))]
        assert len(settled) == len(set(settled))
        surplus = set(settled) - self.unsettled
        assert self.unsettled <= set(settled), "an action that was entered was not called uncertain"
        # There a tool itself says once that nobody knows.
        assert len(surplus) <= (self.kind == "reconcile"), "an action was called uncertain for no reason"
        assert len(set(self.site.world.effects)) == effects
        assert self.site.world.calls <= fold(rows).counters.llm_calls

    async def removed(self) -> None:
        """Its files are of no use any more; thousands of trials would fill the disk."""
        await self.site.log().close()
        shutil.rmtree(self.site.folder)


def last_word(process: Process) -> dict[str, object] | None:
    """What it says at its end; None for a process that was killed."""
    try:
        return cast("dict[str, object]", process.end())
    except EOFError:
        return None
