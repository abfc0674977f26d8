"""F16: a process that dies in the action of a worker, three levels deep, or of one of two workers at work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from protolink import TaskState
from tests.reliability.facts import assert_sound, left_open
from tests.reliability.host import Host
from tests.reliability.sites import Site
from tests.reliability.teams import KINDS, ROOT, Operator


@pytest.mark.parametrize("point", ["entered", "acted"])
@pytest.mark.parametrize("number", [1, 2, 3])
@pytest.mark.parametrize("kind", ["worker", "worker's worker", "three levels", "two workers"])
async def test_a_death_in_a_workers_action_is_settled_through_the_root(
    kind: str, number: int, point: str, tmp_path: Path, host: Host
) -> None:
    """Exactly that action is uncertain, named with its own run; the tree then comes to the same end."""
    clean = tmp_path / "clean"
    clean.mkdir()
    undisturbed = Site(clean, host)
    answer = undisturbed.process("attend", kind).end()["output"]
    site = Site(tmp_path, host)

    site.killed("start", kind, point, number=number)

    open_actions = left_open(await site.rows())
    assert open_actions
    assert len(open_actions) == 1 or kind == "two workers"
    seen = site.world.effects
    assert len(seen) == number - (point == "entered")
    told = site.process("resume", kind).end()
    assert (told["error"], told["root_run_id"]) == ("UncertainExecutionError", ROOT)
    assert told["action_id"] in open_actions
    assert told["action_id"].startswith(f"{told['run_id']}.")
    listed = (await site.info()).summary["uncertain"]
    assert {one["action_id"] for one in cast("list[dict[str, str]]", listed)} == open_actions

    operator = Operator(KINDS[kind], site.world)
    outcome = await operator.attend(site.agent(kind))

    assert outcome.task.state is TaskState.COMPLETED
    assert outcome.answer == answer
    assert set(operator.settled) == open_actions
    assert max(Counter(site.world.effects).values()) == 1
    assert len(site.world.effects) == len(undisturbed.world.effects)
    assert_sound(await site.rows())
