"""F24: a process that gets no more memory, or no more descriptors, from the kernel."""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path
from typing import cast

import pytest

from tests.reliability.host import Host
from tests.reliability.scale import scaled
from tests.reliability.sites import Site, new_folder
from tests.reliability.tally import Tally
from tests.reliability.trials import Trial, last_word

ROOMS = scaled(commit=12, short=24, full=200)
"""Of each limit and kind of run."""

SEED = 20_263

pytestmark = [
    pytest.mark.fault(name="F24"),
    pytest.mark.skipif(sys.platform != "linux", reason="what a process has already is read from /proc"),
]


@pytest.mark.parametrize("kind", ["tool", "worker"])
@pytest.mark.parametrize(
    ("limit", "most"), [(resource.RLIMIT_NOFILE, 14), (resource.RLIMIT_AS, 60_000_000)], ids=["descriptors", "memory"]
)
async def test_a_process_that_gets_no_more_of_the_kernel_enters_nothing_twice(
    limit: int, most: int, kind: str, memory: Path, host: Host, tally: Tally
) -> None:
    """It says so, and goes on when it may have more; where it ends, the next process takes the run to its end."""
    chance = random.Random(f"{SEED} {limit} {kind}")
    undisturbed = Site(new_folder(memory, "clean"), host)
    answer, effects = undisturbed.process("attend", kind).end()["output"], len(set(undisturbed.world.effects))

    for number in range(ROOMS):
        trial = Trial(Site(new_folder(memory, str(number)), host), kind)
        room = number % most if limit == resource.RLIMIT_NOFILE else chance.randrange(most)
        process = host.start("confined", folder=str(trial.site.folder), kind=kind, limit=limit, room=room)
        told = last_word(process)
        if told is None:
            tally.add("ended by it")
            process.wait()
            await trial.look()
            told = trial.site.process("attend", kind).end()
        else:
            tally.add("said so" if told["errors"] else "had enough")
            trial.unsettled.update(cast("list[str]", told["settled"]))
        await trial.conclude(told, answer, effects)
        await trial.removed()

    assert tally["said so"] > ROOMS // 4, tally.counts
    assert tally["had enough"] > 0, tally.counts
