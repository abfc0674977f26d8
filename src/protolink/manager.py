"""Looking after stored runs: listing, reading, answering, settling, ending and deleting them."""

from __future__ import annotations

import builtins
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Unpack, cast, get_args

from protolink._core.entries import Entry
from protolink._core.records import ActionStarted, ActionUncertain
from protolink._core.state import ActionState, RunState
from protolink._core.views.snapshot import task_snapshot
from protolink._environment import current_environment, iso
from protolink._json import thaw
from protolink._runtime.calling_off import call_off
from protolink._runtime.journal import Journal
from protolink._runtime.principal import LOCAL, current_principal
from protolink._runtime.resume import UNSET, open_run, read_run, reconcile_run
from protolink._runtime.views import Views
from protolink._text import visible
from protolink.agent import Agent
from protolink.durable.port import RecordLog, RunInfo, RunStatus
from protolink.durable.store import DurableStore, StoredRunView
from protolink.errors import ConfigurationError, RunBusyError, StoreDamagedError, UnknownRunError

if TYPE_CHECKING:
    from protolink._options import ResumeOptions
    from protolink.redaction import RedactionPolicy
    from protolink.report import RunReport
    from protolink.task import Task

__all__ = ["ENDED", "RunManager", "UncertainAction"]

ENDED: Final = ("completed", "failed", "canceled")
_STATUSES: Final[tuple[str, ...]] = get_args(RunStatus)
_ALL: Final = 1 << 31

_logger: Final = logging.getLogger("protolink")


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainAction:
    """An operation that was entered and whose effect nobody knows, until `RunManager.reconcile` settles it."""

    root_run_id: str
    """The root, which is what `reconcile` and `resume` take."""

    run_id: str
    """The run that it belongs to: the root or a child."""

    action_id: str
    agent_name: str
    """The agent of the run that it belongs to."""

    tool_name: str
    arguments: dict[str, Any] | None
    since: str
    """When it was entered, as ISO-8601 text."""


class RunManager:
    """The stored runs of some agents, in whichever stores these have.

    An agent is found by the name that a run was started under. Whoever acts sees the runs of their own
    principal, a program on its own sees all. Listing, reading and deleting execute nothing and need no agent:
    `stores` names places without one.

    Raises `ConfigurationError` for an agent that stores no runs, and for two agents of one name in one store.
    """

    def __init__(
        self,
        agents: Agent | Iterable[Agent] = (),
        *,
        stores: Iterable[RecordLog | DurableStore] = (),
        redaction_policy: RedactionPolicy | None = None,
    ) -> None:
        self._policy = redaction_policy
        self._agents: dict[tuple[object, str], Agent] = {}
        self._logs: dict[object, RecordLog] = {}
        for agent in (agents,) if isinstance(agents, Agent) else agents:
            log = agent.configuration().log
            if log is None:
                raise ConfigurationError(f"agent {agent.name!r} stores no runs; pass durability=")
            key = (_place(log), agent.name)
            if key in self._agents:
                raise ConfigurationError(f"two agents of one store are named {agent.name!r}; names are unique")
            self._agents[key] = agent
            self._logs.setdefault(_place(log), log)
        for store in stores:
            log = store.log if isinstance(store, DurableStore) else store
            self._logs.setdefault(_place(log), log)

    async def list(
        self, *, status: str | None = None, agent_name: str | None = None, limit: int = 20
    ) -> builtins.list[StoredRunView]:
        """Root runs over all stores, the one that was started last first."""
        if status is not None:
            _check_statuses((status,))
        found = await self._infos(status=status, agent_name=agent_name, limit=limit)
        return [StoredRunView(info) for _, info in found[:limit]]

    async def inspect(self, run_id: str) -> RunReport:
        """The report of a root run as it stands. Raises `UnknownRunError`."""
        log, _ = await self._found(run_id)
        journal = await read_run(log, run_id, current_environment())
        return Views(journal, run_id, self._policy).report

    async def resume(self, run_id: str, **response: Unpack[ResumeOptions]) -> Task:
        """`Agent.resume_task` of the agent that the run belongs to.

        Raises `ConfigurationError` where that agent is not among those of this manager.
        """
        log, info = await self._found(run_id)
        agent = self._agents.get((_place(log), info.agent_name))
        if agent is None:
            name = visible(info.agent_name, limit=100)
            raise ConfigurationError(f"run {run_id!r} belongs to agent {name!r}, which this manager does not have")
        return await agent.resume_task(run_id, **response)

    async def reconcile(self, run_id: str, action_id: str, *, result: Any = UNSET, happened: bool = True) -> Task:
        """Settle an uncertain action: it happened, with this result, or it did not. Needs no agent.

        Raises `DurableExecutionError` for an action that is not uncertain.
        """
        log, _ = await self._found(run_id)
        return await reconcile_run(log, run_id, action_id, result=result, happened=happened)

    async def cancel(self, run_id: str, reason: str = "canceled by the application") -> Task:
        """End a run as canceled and give its task: one that runs here, or one that nobody drives.

        What an abandoned run had entered stays uncertain, and waits for `reconcile` all the same. The agent's own
        stores learn of the end where it is among those of this manager. Raises `RunBusyError` for a run that
        another process drives.
        """
        if not isinstance(reason, str):
            raise TypeError(f"a reason is a text, not {type(reason).__name__}")
        log, info = await self._found(run_id)
        agent = self._agents.get((_place(log), info.agent_name))
        if agent is not None:
            if not await agent.cancel_task(run_id, reason):
                return await agent.cancel_stored(run_id, reason)
            return task_snapshot((await read_run(log, run_id, current_environment())).entries, run_id)
        journal = await open_run(log, run_id, current_environment())
        try:
            await call_off(journal, reason)
        finally:
            await journal.end()
        return task_snapshot(journal.entries, run_id)

    async def list_uncertain(self, run_id: str | None = None) -> builtins.list[UncertainAction]:
        """Every operation over all stores, or of one root, that waits for somebody to say what became of it.

        Those of runs whose process has died are among them, although nobody has taken the run up since. A
        damaged run is logged and left out.
        """
        if run_id is not None:
            listed = [await self._found(run_id)]
        else:
            listed = [*await self._infos(status="uncertain"), *await self._infos(status="running")]
        found: builtins.list[UncertainAction] = []
        for log, info in listed:
            if info.status in ("uncertain", "running") and info.owner is None:
                found += [action async for action in self._uncertain(log, info)]
        return found

    async def prune(
        self,
        *,
        older_than_seconds: float | None = None,
        keep: int | None = None,
        statuses: Sequence[str] = ENDED,
        dry_run: bool = False,
    ) -> builtins.list[StoredRunView]:
        """Delete runs that nobody drives, and give what was deleted, or with `dry_run` what would be.

        A run goes if it has one of `statuses`, nothing happened to it for `older_than_seconds`, and it is not
        among the latest `keep`. At least one of the two limits has to be given. A run that waits for somebody is
        only deleted where its status is named.
        """
        if isinstance(statuses, str):
            raise ValueError(f"statuses is a list of words; write statuses=[{statuses!r}]")
        _check_statuses(statuses)
        _check_limits(older_than_seconds, keep)
        candidates = [(log, info) for log, info in await self._infos() if info.status in statuses]
        before = None if older_than_seconds is None else current_environment().now() - older_than_seconds
        chosen = [
            (log, info)
            for log, info in candidates[keep or 0 :]
            if info.owner is None and (before is None or info.updated_at <= before)
        ]
        if dry_run:
            return [StoredRunView(info) for _, info in chosen]
        return [StoredRunView(info) for log, info in chosen if await _deleted(log, info)]

    async def _infos(
        self, *, status: str | None = None, agent_name: str | None = None, limit: int = _ALL
    ) -> builtins.list[tuple[RecordLog, RunInfo]]:
        """What may be seen, the latest first."""
        principal = current_principal()
        found: builtins.list[tuple[RecordLog, RunInfo]] = []
        for log in self._logs.values():
            infos = await log.list(
                status=status, agent_name=agent_name, principal=None if principal == LOCAL else principal, limit=limit
            )
            found += [(log, info) for info in infos]
        if len(self._logs) > 1:
            found.sort(key=lambda item: item[1].created_at, reverse=True)
        return found

    async def _found(self, run_id: str) -> tuple[RecordLog, RunInfo]:
        """Where a root run is stored. Somebody else's run is answered as one that is not there."""
        for log in self._logs.values():
            info = await log.get(run_id)
            if info is not None and current_principal() in (info.principal, LOCAL):
                return log, info
        raise UnknownRunError(f"no store knows a root run {visible(run_id, limit=100)!r}")

    async def _uncertain(self, log: RecordLog, info: RunInfo) -> AsyncIterator[UncertainAction]:
        try:
            journal = await read_run(log, info.root_id, current_environment())
        except StoreDamagedError as error:
            _logger.error("%s", error)
            return
        except UnknownRunError:
            return  # it was deleted meanwhile
        for run in journal.tree.runs.values():
            lost = {action_id: action for action_id, action in run.actions.items() if _is_lost(run, action)}
            for action_id, action in (run.uncertain | lost).items():
                yield self._described(journal, run, action_id, action)

    def _described(self, journal: Journal, run: RunState, action_id: str, action: ActionState) -> UncertainAction:
        prepared = action.prepared
        arguments: Any = None if prepared is None else thaw(prepared.arguments)
        return UncertainAction(
            root_run_id=journal.tree.root_id,
            run_id=run.run_id,
            action_id=action_id,
            agent_name=run.started.agent_name,
            tool_name=action.proposal.name,
            arguments=arguments if self._policy is None else cast("Any", self._policy.value(arguments)),
            since=iso(_entered_at(journal, action_id)),
        )


def _place(log: RecordLog) -> object:
    """What two logs of one file have in common."""
    path = getattr(log, "path", None)
    return path if isinstance(path, str) else id(log)


def _is_lost(run: RunState, action: ActionState) -> bool:
    """Whether the process of a run that nobody drives has died inside an operation that may have effects."""
    prepared = action.prepared
    if run.finished is not None or action.stage != "started" or action.has_child_run:
        return False
    return prepared is not None and not (prepared.read_only or prepared.idempotent)


def _entered_at(journal: Journal, action_id: str) -> float:
    at = 0.0
    for entry in journal.entries:
        if isinstance(entry, Entry) and isinstance(entry.record, ActionStarted | ActionUncertain):
            at = entry.at if entry.record.action_id == action_id and not at else at
    return at


def _check_statuses(statuses: Iterable[str]) -> None:
    for status in statuses:
        if status not in _STATUSES:
            raise ValueError(f"{visible(str(status), limit=100)!r} is no status; there are: {', '.join(_STATUSES)}")


def _check_limits(older_than_seconds: object, keep: object) -> None:
    if older_than_seconds is None and keep is None:
        raise ValueError("say which runs may go: older_than_seconds=, keep=, or both")
    if older_than_seconds is not None and (
        isinstance(older_than_seconds, bool)
        or not isinstance(older_than_seconds, int | float)
        or not 0 <= older_than_seconds < float("inf")
    ):
        raise ValueError("older_than_seconds is a number of seconds from 0")
    if keep is not None and (isinstance(keep, bool) or not isinstance(keep, int) or keep < 0):
        raise ValueError("keep is a whole number from 0")


async def _deleted(log: RecordLog, info: RunInfo) -> bool:
    """Delete a run, unless somebody has taken it up since it was listed."""
    present = await log.get(info.root_id)
    if present is None or present.status != info.status or present.records != info.records:
        return False
    try:
        return await log.delete(info.root_id)
    except RunBusyError:
        return False
