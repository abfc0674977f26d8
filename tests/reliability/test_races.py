"""F17: processes that want the same run at the same moment."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from protolink.errors import RunBusyError
from tests.reliability.facts import assert_sound, fold
from tests.reliability.host import Host, Process
from tests.reliability.scale import scaled
from tests.reliability.sites import Site
from tests.reliability.tally import Tally
from tests.reliability.teams import KINDS, ROOT

RACES = scaled(commit=20, short=30, full=167)
"""Of each number of racers, for one run and for one new id."""

RACERS = [2, 4, 8]
ONE_SECOND = 1.0

pytestmark = pytest.mark.fault(name="F17")


@pytest.fixture(params=RACERS)
def racers(request: pytest.FixtureRequest, host: Host) -> list[Process]:
    """Processes that wait for the same word."""
    return [host.start("race") for _ in range(request.param)]


def raced(racers: list[Process], site: Site, verb: str, kind: str) -> list[dict[str, Any]]:
    """Let all of them try, and hear how each of them fared."""
    for racer in racers:
        racer.tell({"folder": str(site.folder), "verb": verb, "kind": kind})
    for racer in racers:
        assert racer.hear() == "ready"
    for racer in racers:
        racer.tell()
    return [racer.hear() for racer in racers]


async def test_of_several_processes_that_resume_one_run_the_losers_are_told_that_it_is_busy(
    racers: list[Process], tmp_path: Path, host: Host, tally: Tally
) -> None:
    """Each slice is worked once, by whoever has it, and a loser has lost nothing but its time."""
    outcomes: Counter[str] = Counter()
    for number in range(RACES):
        folder = tmp_path / str(number)
        folder.mkdir()
        site = Site(folder, host)
        await KINDS["yield"].start(site.agent("yield"))

        tally.add("races for a run")
        for told in raced(racers, site, "resume", "yield"):
            outcomes[told.get("error", "resumed")] += 1
            assert told.get("error") in (None, "RunBusyError")
            if "error" in told:
                assert told["owner"] is not None
                tally.add("losers")
                tally.see("s of the slowest loser", told["seconds"])
                assert told["seconds"] - told["kept_waiting"] < ONE_SECOND, told

        rows = await site.rows()
        assert_sound(rows)
        assert max(Counter(site.world.effects).values()) == 1
        assert site.world.calls == fold(rows).counters.llm_calls
        await site.log().close()

    assert outcomes["RunBusyError"] > 0, "nobody was in anybody's way"
    assert outcomes["resumed"] >= RACES


async def test_of_several_processes_that_start_one_id_on_a_new_file_one_executes_it(
    racers: list[Process], tmp_path: Path, host: Host, tally: Tally
) -> None:
    """The file itself is made by one of them, too."""
    outcomes: Counter[str] = Counter()
    for number in range(RACES):
        folder = tmp_path / str(number)
        folder.mkdir()
        site = Site(folder, host)

        tally.add("races for a new id")
        told = raced(racers, site, "start", "tool")

        outcomes.update(one.get("error", "executed") for one in told)
        assert [one["output"] for one in told if "error" not in one] == ["seen ['1', '2']"]
        assert Counter(site.world.effects) == {f"{ROOT}.1": 1, f"{ROOT}.2": 1}

    assert set(outcomes) <= {"executed", "RunBusyError", "RunExistsError"}
    assert outcomes["executed"] == RACES


async def test_a_run_is_busy_for_another_agent_of_the_same_process_too(site: Site, tally: Tally) -> None:
    """The lock belongs to the attempt and not to the process."""
    await KINDS["yield"].start(site.agent("yield"))

    outcomes = await asyncio.gather(*(site.agent("yield").resume_task(ROOT) for _ in range(3)), return_exceptions=True)

    busy = [one for one in outcomes if isinstance(one, RunBusyError)]
    assert len(busy) == 2
    tally.add("losers in one process", len(busy))
    assert site.world.calls == 2
