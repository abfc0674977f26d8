"""Handoffs in the store: a number for the ids, and the ids again."""

from __future__ import annotations

from typing import Any

import pytest

from protolink._core.codec import CodecError
from protolink._core.evolve import evolve
from protolink._core.handoffs import complete, shorten, shorten_all
from protolink._core.records import RunStarted, ToolRequest
from protolink._core.state import TreeState

HANDOFF = {"run_id": "r", "reason": "step_slice", "steps": 3, "usage": {}, "completed_action_ids": ["r.1", "r.2"]}


def tree() -> TreeState:
    """A run that has completed three actions."""
    state = TreeState(root_id="r")
    work = (ToolRequest(call_id="c", tool="look", args={}),)
    evolve(state, "r", RunStarted(agent_name="a", task={}, context={}, work=work, principal="local"))
    state.runs["r"].completed_ids += ["r.1", "r.2", "r.3"]
    return state


def interruption(kind: str, request: Any) -> dict[str, Any]:
    return {"run_id": "r", "request_id": None, "kind": kind, "request": request}


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        ("Yielded", {"handoff": HANDOFF}),
        ("RunPaused", {"kind": "yield", "interruptions": [interruption("yield", HANDOFF)], "seconds": 1.5}),
        ("RunPaused", {"kind": "approval", "interruptions": [interruption("approval", {"completed_action_ids": []})]}),
        ("RunPaused", {"kind": "yield", "interruptions": [interruption("yield", None)]}),
        ("ModelAsked", {"handoff": HANDOFF}),
        ("Yielded", {}),
    ],
)
def test_what_was_shortened_is_complete_again(kind: str, plain: dict[str, Any]) -> None:
    """Whatever happened since, a handoff names what was completed when it was made."""
    assert complete(kind, shorten(kind, plain), tree()) == plain


def test_the_ids_are_not_stored() -> None:
    """Neither in the record nor in what lists of runs show."""
    (listed,) = shorten_all([interruption("yield", HANDOFF)])

    assert shorten("Yielded", {"handoff": HANDOFF})["handoff"]["completed_action_ids"] == 2
    assert listed["request"]["completed_action_ids"] == 2


@pytest.mark.parametrize("count", [4, -1])
def test_a_number_that_the_list_does_not_bear_out_is_damage(count: int) -> None:
    """Rather than a handoff that leaves something out."""
    with pytest.raises(CodecError, match="and the list has 3"):
        complete("Yielded", {"handoff": {**HANDOFF, "completed_action_ids": count}}, tree())
