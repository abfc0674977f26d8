"""What happens next: one pure function over the state.

The order of the `if`s is the policy. Finished, then the first stopping fact, then mistakes beyond the
allowance, then open actions, then the answer, then hard limits, then the next turn.
"""

from __future__ import annotations

from typing import Literal

from protolink._core.budget import execution_warning, model_call_limit, tool_calls_left, turn_warning
from protolink._core.records import (
    BudgetExceeded,
    BudgetWarned,
    ErrorInfo,
    Inference,
    RunFinished,
)
from protolink._core.state import ActionState, RunState, TreeState
from protolink._record import command

__all__ = [
    "Answer",
    "Ask",
    "AskModel",
    "CloseActions",
    "Command",
    "Continue",
    "Deny",
    "Drain",
    "EndAttempt",
    "Execute",
    "Fail",
    "Finish",
    "Judge",
    "Observe",
    "Pause",
    "Prepare",
    "Repeat",
    "Suspect",
    "Warn",
    "decide",
]


@command
class AskModel:
    """Make one model turn."""

    step: int


@command
class Prepare:
    """Turn a proposal into an exact operation, or reject it."""

    action_id: str


@command
class Judge:
    """Let the policies speak about an exact operation."""

    action_id: str


@command
class Ask:
    """Get decisions about actions that need approval, and answers to questions; they can wait side by side."""

    action_ids: tuple[str, ...]


@command
class Deny:
    """Record that an action was refused."""

    action_id: str


@command
class Execute:
    """Run authorized actions: one, or several that only read."""

    action_ids: tuple[str, ...]


@command
class Repeat:
    """Give the recorded observation of an identical call that has succeeded."""

    action_id: str
    repeat_of: str


@command
class Observe:
    """Let the hooks see a result on its way to the model."""

    action_id: str


@command
class Drain:
    """Stop the workers in the background and await them, because the run is ending."""


@command
class CloseActions:
    """End the actions that will never start, because the run is stopping."""

    action_ids: tuple[str, ...]


@command
class Suspect:
    """Record that actions which an earlier attempt had entered are uncertain."""

    action_ids: tuple[str, ...]


@command
class Continue:
    """Drive on the children of delegations that an earlier attempt had started."""

    action_ids: tuple[str, ...]


@command
class Pause:
    """Return control: the slice is used up, or a child waits for somebody."""

    kind: Literal["yield", "child"]


@command
class EndAttempt:
    """End the attempt and leave the run to be taken up again."""

    error: ErrorInfo


@command
class Answer:
    """Give the final reply as the answer."""


@command
class Warn:
    """Say that most of a limit is used, before more of it is."""

    record: BudgetWarned


@command
class Fail:
    """Record why the run cannot go on."""

    reason: BudgetExceeded | ErrorInfo


@command
class Finish:
    """End the run."""

    record: RunFinished


Command = (
    AskModel
    | Prepare
    | Judge
    | Ask
    | Deny
    | Execute
    | Repeat
    | Observe
    | Suspect
    | Continue
    | Drain
    | CloseActions
    | Answer
    | Warn
    | Fail
    | Pause
    | EndAttempt
    | Finish
)


def decide(tree: TreeState, run: RunState) -> Command | None:
    """The next command of one run, or None when nothing is left to do. No I/O, no clock, no ids."""
    if run.at_rest:
        return None
    if run.stop is not None:
        return _stopping(run)
    work = run.work
    if isinstance(work, Inference) and run.corrections > run.corrections_allowed:
        return Fail(_too_many_mistakes(run))
    if run.actions:
        command = _next_of_actions(tree, run)
        if command is not None:
            return command
        if any(action.is_open for action in run.actions.values()):
            return None  # what was entered has an outcome to come
    if run.has_pending_answer:
        return Answer()
    if work is None:
        return Drain() if _has_background(run) else Finish(RunFinished(status="completed"))
    exceeded = model_call_limit(tree.counters, run.budget, run.steps, run.estimated_history_tokens)
    if exceeded is not None:
        return Fail(exceeded)
    if run.started.slice_steps is not None and run.slice_used >= run.started.slice_steps:
        return Pause("yield")
    warning = turn_warning(tree.counters, run.budget, tree.warned)
    return AskModel(step=run.steps + 1) if warning is None else Warn(warning)


def _stopping(run: RunState) -> Command:
    stop = run.stop
    if stop is not None and stop.error is not None and run.stops_attempt_only:
        return EndAttempt(stop.error)
    open_ids = tuple(key for key, action in run.actions.items() if action.is_open)
    if open_ids:
        return CloseActions(open_ids)
    if _has_background(run):
        return Drain()
    if stop is None or stop.status == "failed":
        return Finish(RunFinished(status="failed", error=stop.error if stop else None))
    return Finish(RunFinished(status="canceled", reason=stop.reason))


def _has_background(run: RunState) -> bool:
    return any(action.is_open for action in run.background.values())


def _too_many_mistakes(run: RunState) -> ErrorInfo:
    concerned, message = run.last_mistake
    return ErrorInfo(
        code="tool_correction_limit",
        message=f"{run.corrections} proposals were rejected and {run.corrections_allowed} corrections are allowed; "
        f"the last one concerned {concerned!r}: {message}",
    )


def _next_of_actions(tree: TreeState, run: RunState) -> Command | None:
    """All proposals are prepared and judged before the first one runs; then they run in order."""
    asking: list[str] = []
    ready: list[str] = []
    started: list[str] = []
    declined: str | None = None
    prepared: str | None = None
    for action_id, action in run.actions.items():
        match action.stage:
            case "proposed":
                return Prepare(action_id)
            case "prepared":
                prepared = prepared or action_id
            case "asking" | "questioned":
                asking.append(action_id)
            case "authorized":
                (asking if action.lacks_reply else ready).append(action_id)
            case "completed":
                return Observe(action_id)
            case "declined":
                # A policy's denial stops the run before anything else is entered.
                if action.answer is None:
                    return Deny(action_id)
                declined = declined or action_id
            case "started":
                started.append(action_id)
            case "ended" | "uncertain":
                pass
    if prepared is not None:
        return Judge(prepared)
    if started:
        return _left_open(tree, run, started)
    if asking and declined is None:
        return _too_late_to_ask(tree, run, asking) or Ask(tuple(asking))
    if ready:
        return _next_execution(tree, run, ready)
    return None if declined is None else Deny(declined)


def _too_late_to_ask(tree: TreeState, run: RunState, asking: list[str]) -> Fail | None:
    """Nobody is asked a question whose answer the hard budget already forbids to use."""
    for action_id in asking:
        action = run.actions[action_id]
        if action.stage == "authorized" and action.prepared is not None:
            _, exceeded = tool_calls_left(tree.counters, run.budget, action.prepared.tool)
            if exceeded is not None:
                return Fail(exceeded)
    return None


def _left_open(tree: TreeState, run: RunState, started: list[str]) -> Command | None:
    """What an earlier attempt had entered: child runs go on, everything else is uncertain now."""
    suspects = [action_id for action_id in started if not run.actions[action_id].has_child_run]
    if suspects:
        return Suspect(tuple(suspects))
    waiting = tuple(action_id for action_id in started if not _child_at_rest(tree, run, action_id))
    if waiting:
        return Continue(waiting)
    return Pause("child")


def _child_at_rest(tree: TreeState, run: RunState, action_id: str) -> bool:
    child = tree.runs.get(run.child_runs.get(action_id, ""))
    return child is not None and child.rest is not None


def _next_execution(tree: TreeState, run: RunState, ready: list[str]) -> Command:
    first = run.actions[ready[0]]
    repeated = _success_of(run, first)
    if repeated is not None:
        return Repeat(ready[0], repeated)
    prepared = first.prepared
    if prepared is None or first.proposal.kind != "tool.call":
        return Execute(tuple(_delegations(run, ready)))
    left, exceeded = tool_calls_left(tree.counters, run.budget, prepared.tool)
    if exceeded is not None:
        return Fail(exceeded)
    warning = execution_warning(tree.counters, run.budget, tree.warned)
    if warning is not None:
        return Warn(warning)
    if not prepared.read_only or len(ready) == 1:
        return Execute((ready[0],))
    together: list[str] = []
    for action_id in ready:
        candidate = run.actions[action_id]
        other = candidate.prepared
        if candidate.proposal.kind != "tool.call" or len(together) == left:
            break
        if other is None or not other.read_only:
            break
        if other.tool != prepared.tool and run.budget.max_calls:
            break  # limits by name are counted one tool at a time
        together.append(action_id)
    return Execute(tuple(together))


def _delegations(run: RunState, ready: list[str]) -> list[str]:
    """The delegations at the front, which run side by side; one that repeats another waits for its success."""
    together: list[str] = []
    keys: set[str] = set()
    for action_id in ready:
        action = run.actions[action_id]
        if action.proposal.kind != "agent.call" or _success_of(run, action) is not None:
            break
        if action.call_key is not None:
            if action.call_key in keys:
                break
            keys.add(action.call_key)
        together.append(action_id)
    return together


def _success_of(run: RunState, action: ActionState) -> str | None:
    """The completed call that `action` would repeat, or None where it may run."""
    found = None if action.call_key is None else run.succeeded.get(action.call_key)
    return None if found is None else found[0]
