"""F1 to F3: processes that the kernel ends at every write, and at moments that nobody chose."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.reliability.host import Host
from tests.reliability.scale import scaled
from tests.reliability.sites import Site, new_folder
from tests.reliability.tally import Tally
from tests.reliability.teams import KINDS
from tests.reliability.trials import Trial, last_word

RANDOM_KINDS = ["tool", "worker's worker", "approval", "yield", "parallel read-only tools", "worker"]
FUSED_KINDS = ["tool", "prepared tool", "worker", "yield"]

STATEMENT_KINDS = [
    "tool",
    "prepared tool",
    "approval",
    "question",
    "worker",
    "worker's worker",
    "yield",
    "typed answer",
    "parallel read-only tools",
    "reconcile",
][: scaled(commit=1, short=2, full=10)]

KILLS = scaled(commit=50, short=70, full=1_670)
"""Of each kind of run, at moments that nobody chose."""

RUNS = scaled(commit=34, short=47, full=1_084)
"""Of each kind of run, at least, that these kills are spread over."""

FUSES = scaled(commit=25, short=75, full=750)
"""Of each kind of run, between an effect and its receipt."""

SEED = 20_260
FEWEST_STATEMENTS = 60
"""Of any run: those that make the file, and a transaction for each write."""

FEWEST_WRITES = 6
"""Any run here reserves its root, asks its model twice, enters a tool, and ends."""


@pytest.mark.fault(name="F1")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("explicit tool task", "reconcile")])
async def test_a_process_that_is_killed_at_any_write_is_followed_by_one_that_ends_the_run(
    kind: str, memory: Path, host: Host, tally: Tally
) -> None:
    """The real thing: SIGKILL behind each write that was committed, and before each that was not."""
    clean = Site(new_folder(memory, "clean"), host)
    told = clean.process("attend", kind).end()
    place = 0

    # How many writes share a commit depends on the moment, so the last place is where no process dies any more.
    while True:
        place += 1
        trial = Trial(Site(new_folder(memory, str(place)), host), kind)
        process = trial.site.process("attend", kind, dies_at=place, applied=place % 2 == 0)
        ended = last_word(process)
        if ended is not None:
            break
        assert process.wait() == -signal.SIGKILL
        tally.add("kills at commits")
        await trial.look()
        await trial.conclude(trial.site.process("attend", kind).end(), told["output"], len(set(clean.world.effects)))

    await trial.conclude(ended, told["output"], len(set(clean.world.effects)))
    assert place > FEWEST_WRITES


@pytest.mark.fault(name="F1")
@pytest.mark.parametrize("kind", STATEMENT_KINDS)
async def test_a_process_that_is_killed_before_any_statement_is_followed_by_one_that_ends_the_run(
    kind: str, memory: Path, host: Host, tally: Tally
) -> None:
    """From the making of the file to the last record; what was written so far is in the file, and nothing else."""
    answer, effects, _ = await _measured(kind, Site(new_folder(memory, "clean"), host))

    while True:
        place = tally["kills at statements"] + 1
        trial = Trial(Site(new_folder(memory, str(place)), host), kind)
        told = last_word(process := trial.site.process("attend", kind, statement=place))
        if told is None:
            assert process.wait() == -signal.SIGKILL
            tally.add("kills at statements")
            await trial.look()
            await trial.conclude(trial.site.process("attend", kind).end(), answer, effects)
            await trial.removed()
            continue
        await trial.conclude(told, answer, effects)
        await trial.removed()
        break

    assert place > FEWEST_STATEMENTS


@pytest.mark.fault(name="F3")
@pytest.mark.parametrize("kind", RANDOM_KINDS)
async def test_kills_at_moments_that_nobody_chose(kind: str, memory: Path, host: Host, tally: Tally) -> None:
    """Each process lives for a random number of microseconds, in starts, resumes and settlements alike."""
    chance = random.Random(f"{SEED} {kind}")
    answer, effects, seconds = await _measured(kind, Site(new_folder(memory, "clean"), host))

    while tally["kills"] < KILLS or tally["runs"] < RUNS:
        trial = Trial(Site(new_folder(memory, str(chance.random())), host), kind)
        await _killed_until_it_ends(trial, chance, answer, effects, seconds, tally)
        await trial.removed()


@pytest.mark.fault(name="F2")
@pytest.mark.parametrize("kind", FUSED_KINDS)
async def test_kills_between_an_effect_and_its_receipt(kind: str, memory: Path, host: Host, tally: Tally) -> None:
    """From a microsecond to five milliseconds behind the entry of an action, or behind its effect."""
    chance = random.Random(f"{SEED} {kind} fused")
    answer, effects, _ = await _measured(kind, Site(new_folder(memory, "clean"), host))

    while tally["kills"] < FUSES:
        trial = Trial(Site(new_folder(memory, str(chance.random())), host), kind)
        point, number, seconds = chance.choice(["entered", "acted"]), chance.randint(1, effects), chance.random()
        process = host.start(
            "fused",
            folder=str(trial.site.folder),
            kind=kind,
            point=point,
            number=number,
            seconds=5e-3 * seconds**4 + 1e-6,
        )
        told = last_word(process)
        if told is None:
            assert process.wait() == -signal.SIGALRM
            tally.add("kills")
            await trial.look()
            tally.add("with the effect and no receipt", bool(trial.unsettled))
            told = trial.site.process("attend", kind).end()
        await trial.conclude(told, answer, effects)
        await trial.removed()

    assert tally["with the effect and no receipt"] > FUSES // 4, "the kills came before the entry or behind the receipt"


async def _measured(kind: str, site: Site) -> tuple[object, int, float]:
    """A run that nothing happens to: its answer, its effects and how long its process takes."""
    told = site.process("attend", kind).end()
    return told["output"], len(set(site.world.effects)), told["seconds"]


async def _killed_until_it_ends(
    trial: Trial, chance: random.Random, answer: object, effects: int, seconds: float, tally: Tally
) -> None:
    """Start process after process, and count those that were killed."""
    tally.add("runs")
    while True:
        process = trial.site.process("attend", trial.kind, timer=chance.uniform(1e-6, 2 * seconds))
        told = last_word(process)
        if told is not None:
            break
        assert process.wait() == -signal.SIGALRM
        tally.add("kills")
        await trial.look()
    await trial.conclude(told, answer, effects)
