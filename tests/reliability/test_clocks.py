"""F10: somebody sets the machine's clock, by up to a month and back, between attempts and inside of them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.reliability.facts import fold
from tests.reliability.host import Host
from tests.reliability.scale import scaled
from tests.reliability.sites import Site, new_folder
from tests.reliability.tally import Tally
from tests.reliability.trials import Trial, last_word

HOUR = 3600
MONTH = 30 * 24 * HOUR

JUMPS = {
    "an hour forward": [0, HOUR],
    "an hour back": [0, -HOUR],
    "a day forward": [0, 24 * HOUR],
    "a day back": [0, -24 * HOUR],
    "a month forward": [0, MONTH],
    "a month back": [0, -MONTH],
    "to and fro": [MONTH, -MONTH],
    "always further back": [-number * 24 * HOUR for number in range(100)],
}

SEED = 20_264

RUNS = scaled(commit=1, short=3, full=13)
"""Of each way in which the clock jumps."""


@pytest.mark.fault(name="F10")
@pytest.mark.parametrize("name", JUMPS)
async def test_a_run_whose_clock_jumps_and_whose_processes_die_comes_to_the_same_end(
    name: str, memory: Path, watching_host: Host, tally: Tally
) -> None:
    """No lease runs out, nothing is taken for older than it is, and no time is charged that did not pass."""
    chance = random.Random(f"{SEED} {name}")
    for number in range(RUNS):
        kind = chance.choice(["tool", "worker", "yield", "approval"])
        clean = Site(new_folder(memory, f"clean {number}"), watching_host)
        answer = clean.process("attend", kind).end()["output"]
        trial = Trial(Site(new_folder(memory, str(number)), watching_host), kind)

        def life(trial: Trial = trial, **options: int) -> dict[str, object] | None:
            folder, kind = str(trial.site.folder), trial.kind
            return last_word(watching_host.start("jumping", folder=folder, kind=kind, jumps=JUMPS[name], **options))

        for _ in range(2):
            assert life(dies_at=chance.randint(2, 5)) is None
            tally.add("kills")
            await trial.look()
        told = life()

        assert told is not None
        await trial.conclude(told, answer, len(set(clean.world.effects)))
        times = [row.at for row in trial.before]
        assert max(times) - min(times) > 0.99 * HOUR, "the clock did not jump"
        assert times != sorted(times)
        tally.add("runs")
        assert fold(trial.before).seconds < HOUR / 2
        await trial.removed()
