"""Ending a stored run that nobody drives: what is open gets an ending, and nothing is executed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from protolink._core.machine import Finish, decide
from protolink._core.records import (
    ActionCanceled,
    ActionUncertain,
    AttemptStarted,
    CancelRequested,
    Record,
    RunFinished,
)
from protolink._core.state import ActionState, RunState, TreeState
from protolink._runtime.journal import Journal
from protolink._runtime.principal import current_principal
from protolink._text import encodable

__all__ = ["call_off"]


async def call_off(journal: Journal, reason: str, *, first: Callable[[], Awaitable[None]] | None = None) -> bool:
    """Record the end of every run of a tree in one commit, children first. False for a tree that had ended before.

    The first stopping fact of a run still says how it ends: one that had failed ends failed. An operation that
    was entered stays uncertain, for its effect may have happened. `first` is awaited before the end is stored.
    """
    tree = journal.tree
    if tree.runs[tree.root_id].finished is not None:
        return False
    await journal.append_together(_endings(tree, encodable(reason), current_principal()), first=first)
    return True


def _endings(tree: TreeState, reason: str, principal: str) -> Iterator[tuple[str, Record]]:
    """What ends the runs, one record after the other: each is in the state before the next one is asked for."""
    attempt = tree.runs[tree.root_id].attempt + 1
    unfinished = [run for run in tree.runs.values() if run.finished is None]
    for run in unfinished:
        yield run.run_id, AttemptStarted(attempt=attempt, principal=principal)
    for run in reversed(unfinished):
        yield run.run_id, CancelRequested(reason=reason, principal=principal)
        for action_id, action in tuple(run.actions.items()):
            if _was_entered(action):
                yield run.run_id, _lost(action_id, action)
        for action_id, action in (*run.actions.items(), *run.background.items()):
            if action.is_open:
                yield run.run_id, ActionCanceled(action_id=action_id, unsettled=_is_unsettled(tree, run, action_id))
        command = decide(tree, run)
        canceled = RunFinished(status="canceled", reason=reason)
        yield run.run_id, command.record if isinstance(command, Finish) else canceled


def _was_entered(action: ActionState) -> bool:
    return action.stage == "started" and not action.has_child_run


def _lost(action_id: str, action: ActionState) -> ActionUncertain:
    name = action.proposal.name
    reason = f"the process ended while {name!r} was running, and nobody knows whether its effect happened"
    return ActionUncertain(action_id=action_id, reason=reason)


def _is_unsettled(tree: TreeState, run: RunState, action_id: str) -> bool:
    """Whether a delegation is given up whose child holds an effect that nobody knows."""
    child = tree.runs.get(run.child_runs.get(action_id, ""))
    return child is not None and bool(child.uncertain)
