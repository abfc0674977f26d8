"""Returning control: a used-up slice, a child that waits, an attempt that ends before its run does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protolink._core.machine import Continue, EndAttempt, Pause, Suspect
from protolink._core.records import ActionUncertain, AttemptEnded, RunPaused, Yielded
from protolink._runtime.perform.delegate import attend, start_child
from protolink.handoff import RunHandoff
from protolink.interruption import RunInterruption

if TYPE_CHECKING:
    from protolink._runtime.driver import Driver

__all__ = ["continue_children", "end_attempt", "pause", "suspect"]


async def pause(driver: Driver, command: Pause) -> None:
    """Record that the run waits: for another slice, or for what a child waits for."""
    if command.kind == "yield":
        handoff = RunHandoff(
            run_id=driver.run_id,
            reason="step_slice",
            steps=driver.run.steps,
            usage=driver.journal.tree.counters.usage(driver.tree_seconds),
            completed_action_ids=tuple(driver.run.completed_ids),
        ).to_dict()
        waiting = RunInterruption(run_id=driver.run_id, request_id=None, kind="yield", request=handoff)
        paused = RunPaused(kind="yield", interruptions=(waiting.to_dict(),), seconds=driver.elapsed_seconds)
        await driver.append(Yielded(handoff=handoff), paused)
        return
    interruptions: list[dict[str, Any]] = []
    kinds: list[str] = []
    for action_id, action in driver.run.actions.items():
        child = driver.journal.tree.runs.get(driver.run.child_runs.get(action_id, ""))
        if action.stage == "started" and child is not None and isinstance(child.rest, RunPaused):
            interruptions.extend(child.rest.interruptions)
            kinds.append(child.rest.kind)
    # An answer comes before another slice: nobody should grant one while somebody else is being asked.
    asked = [kind for kind in kinds if kind != "yield"]
    await driver.append(
        RunPaused(
            kind="approval" if "approval" in asked else "input" if asked else "yield",
            interruptions=tuple(sorted(interruptions, key=lambda item: item["kind"] == "yield")),
            seconds=driver.elapsed_seconds,
        )
    )


async def end_attempt(driver: Driver, command: EndAttempt) -> None:
    """Record that this attempt is over and the run is not."""
    await driver.append(AttemptEnded(error=command.error, seconds=driver.elapsed_seconds))


async def suspect(driver: Driver, command: Suspect) -> None:
    """Record that actions of an earlier attempt were entered and that nothing more is known of them."""
    for action_id in command.action_ids:
        name = driver.run.actions[action_id].proposal.name
        reason = f"the process ended while {name!r} was running, and nobody knows whether its effect happened"
        await driver.append(ActionUncertain(action_id=action_id, reason=reason))


async def continue_children(driver: Driver, command: Continue) -> None:
    """Drive the children of an earlier attempt on, one after the other."""
    for action_id in command.action_ids:
        action = driver.run.actions[action_id]
        run_id = driver.run.child_runs.get(action_id)
        child = start_child(driver, action) if run_id is None else driver.revive(action, run_id)
        await attend(driver, action, child)
