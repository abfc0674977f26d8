"""Taking a stored run up again: what is checked before anything happens, and what an answer settles."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from protolink._core.records import (
    ActionReconciled,
    ActionUncertain,
    ApprovalAnswered,
    AttemptStarted,
    QuestionAnswered,
    RunPaused,
)
from protolink._core.state import ActionState, RunState, TreeState
from protolink._core.views.snapshot import task_snapshot
from protolink._environment import Environment, current_environment
from protolink._json import canonical, render, require_json
from protolink._record import command
from protolink._runtime.fingerprint import differences, fingerprint_of
from protolink._runtime.journal import Journal
from protolink._runtime.principal import LOCAL, current_principal
from protolink._text import visible
from protolink.errors import (
    CheckpointMismatchError,
    ConfigurationError,
    DurableExecutionError,
    UncertainExecutionError,
    UnknownRunError,
)

if TYPE_CHECKING:
    from protolink._runtime.configuration import Configuration
    from protolink.durable.port import RecordLog, Row
    from protolink.task import Task

__all__ = ["UNSET", "Response", "open_run", "read_run", "reconcile_run", "restore", "take_up"]

_ROWS_AT_ONCE: Final = 50
"""About a millisecond of folding."""

UNSET: Final[Any] = object()
"""A parameter that was not given, where None is an answer."""


@command
class Response:
    """What whoever resumes a run says to it."""

    request_id: str | None = None
    approved: bool | None = None
    answer: Any = UNSET
    fingerprint: str | None = None

    @property
    def is_silent(self) -> bool:
        """Whether nothing was said."""
        return self.request_id is None and self.approved is None and self.answer is UNSET and self.fingerprint is None


async def read_run(log: RecordLog, run_id: str, environment: Environment) -> Journal:
    """The stored list of a root, folded; nothing is taken and nothing changes. Raises `UnknownRunError`."""
    journal = Journal(run_id, environment)
    await restore(journal, await log.read(run_id))
    _require_principal(journal, run_id)
    journal.close()
    return journal


async def open_run(log: RecordLog, run_id: str, environment: Environment) -> Journal:
    """The list of a root, held by this process. Raises `UnknownRunError` and `RunBusyError`."""
    if current_principal() != LOCAL:
        # Before the lease is asked for: that a run is busy is nothing for whom it does not belong to.
        info = await log.get(run_id)
        _require_own(info.principal if info is not None else None, run_id)
    lease, rows = await log.acquire(run_id)
    journal = Journal(run_id, environment, log)
    journal.lease = lease
    try:
        await restore(journal, rows)
        _require_principal(journal, run_id)
    except BaseException:
        await log.release(lease)
        raise
    return journal


async def restore(journal: Journal, rows: Sequence[Row]) -> None:
    """Fold a list of any length, and let the event loop do something else now and then."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        journal.restore(rows[start : start + _ROWS_AT_ONCE])
        await asyncio.sleep(0)


def _require_principal(journal: Journal, run_id: str) -> None:
    root = journal.tree.runs.get(run_id)
    _require_own(None if root is None else root.started.principal, run_id)


def _require_own(principal: str | None, run_id: str) -> None:
    """Somebody else's run is answered as one that is not there, in the store's own words."""
    if principal is None or current_principal() not in (principal, LOCAL):
        raise UnknownRunError(f"there is no root {visible(run_id, limit=100)!r}")


async def take_up(journal: Journal, configuration: Configuration, response: Response, *, accept_changes: bool) -> bool:
    """Check everything, record the answer, and begin an attempt. False where the run stays as it is.

    Raises `CheckpointMismatchError` for another configuration, `UncertainExecutionError` while an effect is
    unknown, and `DurableExecutionError` for an answer that does not fit what the run waits for.
    """
    tree = journal.tree
    root = tree.runs[tree.root_id]
    if root.finished is not None:
        _was_given_before(tree, response)
        return False
    present = fingerprint_of(configuration)
    changed = differences(_stored_fingerprint(journal), present)
    if changed and not accept_changes:
        raise CheckpointMismatchError(
            f"run {tree.root_id!r} was started under another configuration; what differs: {', '.join(changed)}. "
            "Resume it with the matching agent, or with accept_changes=True to go on under this one on purpose",
            differences=changed,
        )
    _raise_for_uncertain(tree)
    settled = _settle(tree, root, response)
    if settled is None:
        return False
    owner, answer = settled
    principal = current_principal()
    attempt = AttemptStarted(attempt=root.attempt + 1, principal=principal, fingerprint=present if changed else None)
    records = [(run.run_id, attempt) for run in tree.runs.values() if run.finished is None]
    # In one commit: an answer without its attempt would leave a run that waits for what was said already.
    await journal.append_together(records if answer is None else [(owner.run_id, answer), *records])
    return True


def _stored_fingerprint(journal: Journal) -> dict[str, str]:
    """The configuration of the latest attempt."""
    root_id = journal.tree.root_id
    found = journal.tree.runs[root_id].started.fingerprint
    for entry in journal.stored_records():
        record = entry.record
        if entry.run_id == root_id and isinstance(record, AttemptStarted) and record.fingerprint is not None:
            found = record.fingerprint
    return found


def _raise_for_uncertain(tree: TreeState) -> None:
    for run in tree.runs.values():
        for action_id, action in run.uncertain.items():
            raise uncertain_error(tree, run, action_id, action)


def uncertain_error(tree: TreeState, run: RunState, action_id: str, action: ActionState) -> UncertainExecutionError:
    """The error that says which action somebody has to look at."""
    prepared = action.prepared
    return UncertainExecutionError(
        f"nobody knows whether {action.proposal.name!r} ({action_id}) had its effect; find out, then call "
        f"reconcile({tree.root_id!r}, {action_id!r}, result=...) or reconcile(..., happened=False)",
        root_run_id=tree.root_id,
        run_id=run.run_id,
        action_id=action_id,
        tool_name=action.proposal.name,
        arguments=None if prepared is None else prepared.arguments,
    )


_Answer = ApprovalAnswered | QuestionAnswered


def _settle(tree: TreeState, root: RunState, response: Response) -> tuple[RunState, _Answer | None] | None:
    """The record of an answer, where it is a new one, and whose it is; None where the run waits for something else."""
    waiting = root.rest if isinstance(root.rest, RunPaused) else None
    if waiting is None or waiting.kind == "yield":
        if response.is_silent:
            return root, None
        if response.request_id is not None and _was_given_before(tree, response):
            # Whoever repeats an answer wants the run to go on, and the attempt that had it may be gone.
            return (root, None) if waiting is None else None
        raise DurableExecutionError("this run waits for no answer; resume it without one")
    if response.is_silent:
        return None
    if response.request_id is None:
        raise DurableExecutionError("an answer names its request: pass request_id=")
    for run, action in _waiting(tree):
        if response.request_id != (action.question_id if action.stage == "questioned" else action.request_id):
            continue
        prepared = action.prepared
        if response.fingerprint is not None and prepared is not None and response.fingerprint != prepared.fingerprint:
            raise DurableExecutionError("the fingerprint is not that of the action that waits for this response")
        return run, _said(action, response.request_id, response)
    if _was_given_before(tree, response):
        return None
    raise DurableExecutionError(f"this run waits for no request {response.request_id!r}")


def _said(action: ActionState, request_id: str, response: Response) -> _Answer:
    """The record of a response to what an action waits for."""
    action_id = action.proposal.action_id
    if action.stage == "questioned":
        return QuestionAnswered(
            action_id=action_id,
            request_id=request_id,
            answer=_checked_answer(response),
            answered_by=current_principal(),
        )
    return ApprovalAnswered(
        action_id=action_id,
        request_id=request_id,
        approved=_checked_decision(response),
        decided_by=current_principal(),
    )


def _checked_decision(response: Response) -> bool:
    if response.answer is not UNSET:
        raise DurableExecutionError("this request asks for an approval; answer it with approved=True or approved=False")
    if not isinstance(response.approved, bool):
        raise DurableExecutionError("a decision is approved=True or approved=False; anything else is none")
    return response.approved


def _checked_answer(response: Response) -> Any:
    if response.approved is not None or response.answer is UNSET:
        raise DurableExecutionError("this request is a question; answer it with answer=")
    try:
        return require_json(response.answer, "answer")
    except TypeError as error:
        raise DurableExecutionError(str(error)) from error


def _waiting(tree: TreeState) -> Iterator[tuple[RunState, ActionState]]:
    for run in tree.runs.values():
        for action in run.actions.values():
            if action.stage in ("asking", "questioned"):
                yield run, action


def _was_given_before(tree: TreeState, response: Response) -> bool:
    """Whether exactly this answer is on record already. Raises for another answer to the same request."""
    request_id = response.request_id or ""
    for run in tree.runs.values():
        decided, replied = run.answers.get(request_id), run.replies.get(request_id)
        if decided is not None:
            is_same = decided.approved is _checked_decision(response)
        elif replied is not None:
            is_same = canonical(replied.answer) == canonical(_checked_answer(response))
        else:
            continue
        if not is_same:
            raise DurableExecutionError("this request was answered before, and otherwise; the first answer stands")
        return True
    return False


async def reconcile_run(log: RecordLog, run_id: str, action_id: str, *, result: Any, happened: bool) -> Task:
    """Settle one uncertain action of a stored root, and give its task.

    Raises `DurableExecutionError` for an action that is not uncertain, and what `open_run` raises.
    """
    journal = await open_run(log, run_id, current_environment())
    try:
        await _reconcile(journal, action_id, result=result, happened=happened)
    finally:
        await journal.end()
    return task_snapshot(journal.entries, run_id)


async def _reconcile(journal: Journal, action_id: str, *, result: Any, happened: bool) -> None:
    if happened and result is UNSET:
        raise ConfigurationError("an effect that happened has a result: pass result=, or happened=False")
    if not happened and result is not UNSET:
        raise ConfigurationError("an effect that did not happen has no result")
    for run in tuple(journal.tree.runs.values()):
        action = run.uncertain.get(action_id) or run.actions.get(action_id)
        if action is None or (run.finished is not None and action_id not in run.uncertain):
            continue
        reconciled = ActionReconciled(
            action_id=action_id,
            happened=happened,
            result=render(result)[0] if happened else None,
            principal=current_principal(),
        )
        if action_id in run.uncertain:
            await journal.append(run.run_id, reconciled)
            return
        if action.stage == "started" and not action.has_child_run and run.rest is None:
            # The process died in it, and nobody has taken the run up since.
            reason = "the process ended while it was running"
            await journal.append(run.run_id, ActionUncertain(action_id=action_id, reason=reason), reconciled)
            return
    raise DurableExecutionError(f"action {action_id!r} is not uncertain, so there is nothing to settle")
