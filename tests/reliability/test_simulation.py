"""F29: thousands of small worlds in which everything that may happen does, in an order that a seed decides."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
from collections import Counter
from dataclasses import astuple
from functools import cache
from typing import Any

import pytest

from protolink import TaskState
from protolink.durable.memory import MemoryRecordLog
from tests.reliability.host import ROOT as REPOSITORY
from tests.reliability.scale import scaled
from tests.reliability.simulation import Simulation, at_once
from tests.reliability.tally import Tally
from tests.reliability.teams import KINDS, ROOT, Operator, World

GROUPS = 10
SEEDS = scaled(commit=200, short=250, full=5_000)
"""Of one group. `PROTOLINK_SEED=1234 pytest -k simulated` repeats one alone."""

REACHED: Counter[str] = Counter()

TOLD = {
    "kill": "kills",
    "stop": "stops",
    "cancel": "cancellations",
    "jump": "clock jumps",
    "complained before": "writes refused",
    "complained after": "writes done and denied",
}


@cache
def undisturbed(kind: str) -> tuple[Any, int]:
    """The answer and the effects of a run that nothing happens to."""
    world = World()
    outcome = asyncio.run(Operator(KINDS[kind], world).attend(KINDS[kind].build(MemoryRecordLog(), world)))
    return outcome.answer, len(set(world.effects))


def simulated(seed: int) -> Simulation:
    """Let a seed's world happen, and check its end."""
    simulation = Simulation(seed)
    try:
        simulation.run()
        _check(simulation)
    except BaseException as error:
        error.add_note(f"in a simulated run of {simulation.kind!r}; PROTOLINK_SEED={seed} repeats it")
        raise
    return simulation


def _check(simulation: Simulation) -> None:
    """Where nobody has canceled the run, it has come to the end that it comes to in peace."""
    answer, effects = undisturbed(simulation.kind)
    for outcome in simulation.outcomes:
        if simulation.reached["cancel"] and outcome.task.state is TaskState.CANCELED:
            continue
        if simulation.kind == "explicit tool task" and not simulation.effects:
            assert outcome.task.metadata["error"]["code"] == "not_executed"
            continue
        assert outcome.task.state is TaskState.COMPLETED
        assert outcome.answer == answer
        assert len(set(simulation.effects)) == effects


def chosen(group: int) -> list[int]:
    """The seeds of a group, or the one that was asked for."""
    wanted = os.environ.get("PROTOLINK_SEED")
    return list(range(group * SEEDS, (group + 1) * SEEDS)) if wanted is None else [int(wanted)]


@pytest.mark.fault(name="F29")
@pytest.mark.parametrize("group", range(GROUPS))
def test_no_simulated_world_breaks_an_invariant(group: int, tally: Tally) -> None:
    """Up to three processes: kills, stops and cancellations at any await, clocks that jump, a store that complains."""
    for seed in chosen(group):
        simulation = simulated(seed)
        REACHED.update(simulation.reached)
        REACHED[simulation.kind] += 1
        tally.add("seeds")
        for what, told in TOLD.items():
            tally.add(told, simulation.reached[what])

    assert "PROTOLINK_SEED" in os.environ or min(tally[told] for told in TOLD.values()) > 0


def test_the_simulated_worlds_have_led_everywhere() -> None:
    """To each kind of run and to each thing that may befall it; enough seeds for that are run here alone."""
    for seed in range(150):
        simulation = simulated(seed)
        REACHED.update(simulation.reached)
        REACHED[simulation.kind] += 1

    wanted = {
        "kill",
        "stop",
        "jump",
        "cancel",
        "complained before",
        "complained after",
        "RunBusyError",
        "RunExistsError",
    }
    assert wanted | set(KINDS) <= set(REACHED)
    assert min(REACHED[what] for what in wanted) > 5


DIGEST = """
from tests.reliability.test_simulation import digest
print(digest(range(40)))
"""


def digest(seeds: Any) -> str:
    """Everything that was stored, and when, in some worlds."""
    text = hashlib.sha256()
    for seed in seeds:
        simulation = simulated(seed)
        rows = at_once(simulation.store.read(ROOT))
        text.update(repr((simulation.now, simulation.effects, [astuple(row) for row in rows])).encode())
    return text.hexdigest()


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_simulated_world_is_the_same_whenever_its_seed_is_used(hash_seed: str) -> None:
    """In another interpreter, which orders its sets otherwise; or else a failure could not be repeated."""
    path = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}

    other = subprocess.run(
        [sys.executable, "-c", DIGEST], env=environment, cwd=REPOSITORY, capture_output=True, text=True, check=True
    )

    assert other.stdout.strip() == digest(range(40))
