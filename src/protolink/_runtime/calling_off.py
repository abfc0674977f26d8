"""Ending a stored run that nobody drives: what is open gets an ending, and nothing is executed."""

from __future__ import annotations

from protolink._core.machine import Finish, decide
from protolink._core.records import (
    ActionCanceled,
    ActionUncertain,
    AttemptStarted,
    CancelRequested,
    RunFinished,
)
from protolink._core.state import ActionState, RunState, TreeState
from protolink._runtime.journal import Journal
from protolink._runtime.principal import current_principal

__all__ = ["call_off"]


async def call_off(journal: Journal, reason: str) -> bool:
    """Record the end of every run of a tree, children first. False for a tree that had ended before.

    The first stopping fact of a run still says how it ends: one that had failed ends failed. An operation that
    was entered stays uncertain, for its effect may have happened. Dying on the way leaves a run that can be
    called off, or resumed, again.
    """
    tree = journal.tree
    root = tree.runs[tree.root_id]
    if root.finished is not None:
        return False
    principal = current_principal()
    unfinished = [run for run in tree.runs.values() if run.finished is None]
    for run in unfinished:
        await journal.append(run.run_id, AttemptStarted(attempt=root.attempt + 1, principal=principal))
    for run in reversed(unfinished):
        await journal.append(
            run.run_id,
            CancelRequested(reason=reason, principal=principal),
            *(_lost(action_id, action) for action_id, action in run.actions.items() if _was_entered(action)),
        )
        still_open = [key for key, action in (*run.actions.items(), *run.background.items()) if action.is_open]
        endings = [ActionCanceled(action_id=key, unsettled=_is_unsettled(tree, run, key)) for key in still_open]
        await journal.append(run.run_id, *endings)
        command = decide(tree, run)
        canceled = RunFinished(status="canceled", reason=reason)
        await journal.append(run.run_id, command.record if isinstance(command, Finish) else canceled)
    return True


def _was_entered(action: ActionState) -> bool:
    return action.stage == "started" and action.proposal.kind == "tool.call"


def _lost(action_id: str, action: ActionState) -> ActionUncertain:
    name = action.proposal.name
    reason = f"the process ended while {name!r} was running, and nobody knows whether its effect happened"
    return ActionUncertain(action_id=action_id, reason=reason)


def _is_unsettled(tree: TreeState, run: RunState, action_id: str) -> bool:
    """Whether a delegation is given up whose child holds an effect that nobody knows."""
    child = tree.runs.get(run.child_runs.get(action_id, ""))
    return child is not None and bool(child.uncertain)
