"""How a run stands: what somebody who asks about it is told, read off its state without going through its list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protolink._core.records import AttemptEnded, ErrorInfo, RunPaused
from protolink._core.state import RunState, TreeState
from protolink._json import thaw
from protolink._record import command
from protolink.task import TaskState

if TYPE_CHECKING:
    from protolink.redaction import RedactionPolicy

__all__ = ["Standing", "standing_of", "status_of"]


@command
class Standing:
    """A root run at one moment, as JSON values."""

    agent_name: str
    principal: str
    session_id: str | None
    created_at: str | None
    status: str
    """A `TaskState` value."""

    output: Any
    """The last answer or tool result of a completed run; None otherwise."""

    error: dict[str, Any] | None
    """`code` and `message`, where the run or its attempt failed."""

    usage: dict[str, Any]
    """A `BudgetUsage` of the whole tree; the time is that of the attempts that have ended."""

    interruptions: list[dict[str, Any]]
    """What a paused run waits for: `RunInterruption`s."""

    uncertain_actions: list[dict[str, Any]]
    """Operations whose effect nobody knows: `run_id`, `action_id` and `name`."""

    can_be_resumed: bool
    """Whether the run goes on without an answer once somebody takes it up."""


def standing_of(tree: TreeState, policy: RedactionPolicy | None) -> Standing:
    """How the root of a tree stands, without what `policy` withholds from errors and requests."""
    run = tree.runs[tree.root_id]
    started, finished, rest = run.started, run.finished, run.rest
    ended = finished or (rest if isinstance(rest, AttemptEnded) else None)
    uncertain = _uncertain(tree)
    interruptions: Any = thaw(list(rest.interruptions)) if finished is None and isinstance(rest, RunPaused) else []
    return Standing(
        agent_name=started.agent_name,
        principal=started.principal,
        session_id=started.context.get("session_id"),
        created_at=started.context.get("created_at"),
        status=status_of(run),
        output=thaw(run.outputs[-1]) if status_of(run) == "completed" and run.outputs else None,
        error=None if ended is None or ended.error is None else _error(ended.error, policy),
        usage=tree.counters.usage(tree.seconds).to_dict(),
        interruptions=interruptions if policy is None else policy.value(interruptions),  # type: ignore[arg-type]
        uncertain_actions=uncertain,
        can_be_resumed=finished is None
        and not uncertain
        and (isinstance(rest, AttemptEnded) or (isinstance(rest, RunPaused) and rest.kind == "yield")),
    )


def status_of(run: RunState) -> str:
    """A `TaskState` value."""
    if run.finished is not None:
        return run.finished.status
    if isinstance(run.rest, RunPaused):
        return TaskState.INPUT_REQUIRED.value
    return TaskState.WORKING.value if run.rest is None else TaskState.FAILED.value


def _error(error: ErrorInfo, policy: RedactionPolicy | None) -> dict[str, Any]:
    message = error.message if policy is None else policy.text(error.message)
    return {"code": error.code, "message": message}


def _uncertain(tree: TreeState) -> list[dict[str, Any]]:
    return [
        {"run_id": run.run_id, "action_id": action_id, "name": action.proposal.name}
        for run in tree.runs.values()
        for action_id, action in run.uncertain.items()
    ]
