"""F24: a process that gets no more memory, or no more descriptors, from the kernel."""

from __future__ import annotations

import random
import resource
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from tests.reliability.host import Host
from tests.reliability.scale import TIMES
from tests.reliability.sites import Site, new_folder
from tests.reliability.trials import Trial, last_word

ROOMS = 12 * TIMES
"""Of each limit and kind of run."""

SEED = 20_263

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what a process has already is read from /proc")


@pytest.mark.parametrize("kind", ["tool", "worker"])
@pytest.mark.parametrize(
    ("limit", "most"), [(resource.RLIMIT_NOFILE, 14), (resource.RLIMIT_AS, 60_000_000)], ids=["descriptors", "memory"]
)
async def test_a_process_that_gets_no_more_of_the_kernel_enters_nothing_twice(
    limit: int, most: int, kind: str, memory: Path, host: Host
) -> None:
    """It says so, and goes on when it may have more; where it ends, the next process takes the run to its end."""
    chance = random.Random(f"{SEED} {limit} {kind}")
    undisturbed = Site(new_folder(memory, "clean"), host)
    answer, effects = undisturbed.process("attend", kind).end()["output"], len(set(undisturbed.world.effects))
    reached: Counter[str] = Counter()

    for number in range(ROOMS):
        trial = Trial(Site(new_folder(memory, str(number)), host), kind)
        room = number % most if limit == resource.RLIMIT_NOFILE else chance.randrange(most)
        process = host.start("confined", folder=str(trial.site.folder), kind=kind, limit=limit, room=room)
        told = last_word(process)
        if told is None:
            reached["ended"] += 1
            process.wait()
            await trial.look()
            told = trial.site.process("attend", kind).end()
        else:
            reached["said" if told["errors"] else "had enough"] += 1
            trial.unsettled.update(cast("list[str]", told["settled"]))
        await trial.conclude(told, answer, effects)
        await trial.site.log().close()
        shutil.rmtree(trial.site.folder)

    assert reached["said"] > ROOMS // 4, reached
    assert reached["had enough"] > 0, reached
