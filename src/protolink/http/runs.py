"""The runs that clients can see: those at work here, those that ended here lately, and those that are stored.

Everything is looked up by whoever asks. What belongs to somebody else is found no more than what is not there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from protolink._environment import current_environment, pause
from protolink._json import digest
from protolink._runtime.principal import current_principal
from protolink._runtime.resume import read_run
from protolink._runtime.tailing import Tail
from protolink._runtime.views import Views
from protolink.agent import Agent
from protolink.context import RunBudget, RunContext
from protolink.durable.port import RecordLog, RunInfo
from protolink.errors import DurableExecutionError, RunExistsError
from protolink.group import AgentGroup
from protolink.handle import RunHandle
from protolink.http.idempotency import other_request
from protolink.http.kept import Kept
from protolink.http.limits import ApplicationLimits
from protolink.http.requests import Decision, NewRun, narrowed
from protolink.redaction import RedactionPolicy
from protolink.transport.http.problems import Problem, not_found

__all__ = ["Run", "Runs"]

_RUN_ID: Final = re.compile(r"[!-~]{1,200}")
_REQUEST: Final = "http_request"
"""The key, in a run's metadata, of the digest of the request that started it."""

_LOOKS: Final = 100
_SECONDS_BETWEEN: Final = 0.02
"""A reserved run that is not there after so many looks belongs to a process that is stuck or dead."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run as it was found."""

    run_id: str
    views: Views
    handle: RunHandle | None = None
    """Where its latest attempt was started here."""

    agent: Agent | None = None
    tail: Tail | None = None
    """What brings further records, where another process, or another part of this one, drives the run."""

    @property
    def document(self) -> dict[str, Any]:
        """What a client is told about it."""
        standing = self.views.standing
        interruptions = standing.interruptions
        left = self.views.is_at_work and self.handle is None and self.tail is None
        return {
            "run_id": self.run_id,
            "agent": standing.agent_name,
            "session_id": standing.session_id,
            "created_at": standing.created_at,
            "status": standing.status,
            "output": standing.output,
            "error": standing.error,
            "usage": standing.usage,
            "interruption": interruptions[0] if interruptions else None,
            "interruptions": interruptions,
            "uncertain_actions": standing.uncertain_actions,
            "resumable": standing.can_be_resumed or left,
            "last_event": self.views.last_place,
        }

    def has_nothing_behind(self, after: int) -> bool:
        """Whether an attempt is over whose events up to `after` are all."""
        at_work = self.views.is_at_work and (self.handle is not None or self.tail is not None)
        return after >= self.views.last_place and not at_work

    @property
    def evidence(self) -> list[dict[str, Any]]:
        """What became of every tool call."""
        return [record.to_dict() for record in self.views.report.tool_evidence]


class Runs:
    """The runs of one application."""

    def __init__(
        self, group: AgentGroup, limits: ApplicationLimits, budget: RunBudget | None, policy: RedactionPolicy | None
    ) -> None:
        self._group = group
        self._limits = limits
        self._budget = budget
        self._policy = policy
        self._live: dict[str, dict[str, RunHandle]] = {}
        self._at_work = 0
        self._ended: Kept[Views] = Kept(limits.max_ended_runs, limits.max_ended_runs_per_principal)

    async def start(self, asked: NewRun, key: str | None = None, request_digest: str = "") -> Run:
        """Start a run, and await that it is stored where its agent stores runs.

        With an idempotency key, a run of an earlier process that was started by it is given instead.
        """
        agent = self._group.agents.get(asked.agent)
        if agent is None:
            raise not_found()
        principal = current_principal()
        context: RunContext | None = None
        if key is not None and agent.configuration().log is not None:
            # The id follows from the key, so that every process that uses the store knows the run by it.
            context = RunContext(run_id=digest(f"{principal} {key}")[:32], metadata={_REQUEST: request_digest})
            started = await self._started(context)
            if started is not None:
                return started
        self._require_room(principal)
        handle = self._running().run(
            agent,
            asked.prompt,
            session_id=asked.session_id,
            budget=narrowed(asked.budget, self._budget),
            context=context,
            redaction_policy=self._policy,
        )
        self._watch(principal, handle)
        try:
            await handle.stored()
        except RunExistsError:
            self._forget(principal, handle)
            started = None if context is None else await self._started_elsewhere(context)
            if started is None:
                raise
            return started
        return Run(handle.run_id, handle.views, handle, agent)

    async def _started_elsewhere(self, context: RunContext) -> Run | None:
        """The run that another process is just starting by the same key: its first record is about to be stored."""
        for _ in range(_LOOKS):
            started = await self._started(context)
            if started is not None:
                return started
            await pause(current_environment(), _SECONDS_BETWEEN)
        return None

    async def _started(self, context: RunContext) -> Run | None:
        """The run that was started by the same key before. Raises a `Problem` where another request did."""
        found = await self.known(context.run_id)
        if found is not None and found.views.context.metadata.get(_REQUEST) != context.metadata[_REQUEST]:
            raise other_request()
        return found

    async def find(self, run_id: str) -> Run:
        """A run of whoever asks. Raises a `Problem` where there is none."""
        found = await self.known(run_id)
        if found is None:
            raise not_found()
        return found

    async def known(self, run_id: str) -> Run | None:
        """A run of whoever asks, or None."""
        principal = current_principal()
        handle = self._live.get(principal, {}).get(run_id)
        if handle is not None:
            views = handle.views
            if views.is_at_work or views.has_ended:
                return Run(run_id, views, handle, self._agent(views))
            await _over(handle)  # what was paused may have been taken up by anybody since
        ended = self._ended.get(principal, run_id)
        if ended is not None:
            return Run(run_id, ended, agent=self._agent(ended))
        return await self._stored(run_id, principal)

    def _agent(self, views: Views) -> Agent | None:
        return self._group.agents.get(views.agent_name)

    async def _stored(self, run_id: str, principal: str) -> Run | None:
        if not _RUN_ID.fullmatch(run_id):
            return None
        for log, agents in self._stores():
            info = await log.get(run_id)
            if info is None:
                continue
            agent = agents.get(info.agent_name)
            if agent is None or info.principal != principal or not info.records:
                return None
            return await self._read(log, info, agent)
        return None

    async def _read(self, log: RecordLog, info: RunInfo, agent: Agent) -> Run:
        journal = await read_run(log, info.root_id, current_environment())
        views = Views(journal, info.root_id, self._policy)
        tail = Tail(log, journal) if info.owner is not None and views.is_at_work else None
        return Run(info.root_id, views, agent=agent, tail=tail)

    def _stores(self) -> list[tuple[RecordLog, Mapping[str, Agent]]]:
        """Every store of the group's agents, with the agents that use it by name."""
        stores: dict[int, tuple[RecordLog, dict[str, Agent]]] = {}
        for agent in self._group.agents.values():
            log = agent.configuration().log
            if log is not None:
                stores.setdefault(id(log), (log, {}))[1][agent.name] = agent
        return list(stores.values())

    async def cancel(self, run: Run) -> Run:
        """End a run as canceled. Raises a `Problem` for one that has ended."""
        reason = "canceled by its client"
        if run.views.has_ended:
            raise _has_ended()
        if run.handle is not None:
            await run.handle.cancel(reason)
            ended = run
        else:
            if run.agent is None:
                raise not_found()
            await run.agent.cancel_stored(run.run_id, reason)
            ended = await self.find(run.run_id)
        if ended.views.status != "canceled":
            raise _has_ended()
        return ended

    async def resume(self, run: Run, decision: Decision | None = None) -> Run:
        """Take a run up again, with an answer to what it waits for or without one.

        An answer that was given before changes nothing. Raises a `Problem` where the run cannot be taken up.
        """
        if run.views.has_ended and (decision is None or not run.views.has_answered(decision.request_id)):
            raise _has_ended()
        if run.views.is_at_work and (run.handle is not None or run.tail is not None):
            raise Problem(409, "the run is at work", headers={"Retry-After": "1"})
        if run.agent is None or run.agent.configuration().log is None:
            raise Problem(409, "the run is not stored, so that it cannot be taken up")
        principal = current_principal()
        self._require_room(principal)
        response = {} if decision is None else decision.to_response()
        resumed = await self._running().resume_run(run.agent, run.run_id, **response)
        if isinstance(resumed, RunHandle):
            self._watch(principal, resumed)
            return replace(run, views=resumed.views, handle=resumed)
        if decision is None:
            raise Problem(409, "the run waits for a decision")
        return run

    def _running(self) -> AgentGroup:
        if not self._group.running:
            raise Problem(503, "the agents are not running", headers={"Retry-After": "1"})
        return self._group

    def _require_room(self, principal: str) -> None:
        of_principal = len(self._live.get(principal, ()))
        if of_principal >= self._limits.max_runs_per_principal or self._at_work >= self._limits.max_runs:
            raise Problem(429, "too many runs are at work already", headers={"Retry-After": "1"})

    def _watch(self, principal: str, handle: RunHandle) -> None:
        self._live.setdefault(principal, {})[handle.run_id] = handle
        self._at_work += 1
        handle.add_done_callback(lambda ended: self._forget(principal, ended))

    def _forget(self, principal: str, handle: RunHandle) -> None:
        """A run that is over here: one that has ended is kept for a while, any other is found in its store."""
        live = self._live.get(principal, {})
        if live.get(handle.run_id) is not handle:
            return
        del live[handle.run_id]
        self._at_work -= 1
        if not live:
            del self._live[principal]
        views = handle.views
        if views.failure is None and views.has_ended:
            self._ended.put(principal, handle.run_id, views)


async def _over(handle: RunHandle) -> None:
    """Await that an attempt has given its run back."""
    try:
        await handle.result()
    except (DurableExecutionError, RuntimeError):
        return


def _has_ended() -> Problem:
    return Problem(409, "the run has ended")
