"""The record-log port: what a store of durable runs has to do. It knows rows, not agents.

A root run and everything it delegated is one list of rows, numbered from 1 without gaps. Whoever drives the
run holds a lease; the lease is the operating system's and ends with its process. Every append names the
lease's fence number and the number it expects to follow, and fails where either is not the store's, so
that somebody who lost the run can write nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from protolink._record import new_dict, record

__all__ = ["Lease", "RecordLog", "Row", "RunInfo", "RunStatus"]

RunStatus = Literal["running", "paused", "uncertain", "completed", "failed", "canceled", "resumable"]
"""`running`: not at rest when it was last written; `resumable`: an attempt ended for a reason outside the run."""


@record
class Row:
    """One record as it is stored."""

    number: int
    """Its place in the root's list, from 1."""

    sequence: int
    """The place of its event among what can be seen."""

    run_id: str
    at: float
    """Epoch seconds; data only."""

    kind: str
    version: int
    body: str
    """The record's fields as one JSON object."""

    bodies: Mapping[str, str] = field(default_factory=new_dict)
    """Large fields, as JSON text by field name; a store keeps each text once, by its digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What a list of runs shows; kept beside the rows in the same transaction."""

    root_id: str
    agent_name: str
    principal: str
    status: RunStatus
    attempts: int
    """How often somebody took the run up."""

    records: int
    created_at: float
    updated_at: float
    owner: str | None = None
    """Who drives it now, for people: host, process and since when; None where nobody does."""

    session_id: str | None = None
    summary: Mapping[str, object] = field(default_factory=new_dict)
    """What the run waits for: the interruptions or uncertain actions, as JSON."""


@dataclass(slots=True, kw_only=True)
class Lease:
    """The right to append to one root's list, until it is released or its process ends."""

    root_id: str
    fence: int
    attempt: int
    """Which attempt this is, from 1."""

    handle: object = None
    """The store's own."""


@runtime_checkable
class RecordLog(Protocol):
    """A store of durable runs. Every method may be called from any event loop and blocks none.

    Faults of the store are `StoreError`s, each naming what was not done; they never are a run's outcome.
    """

    async def create(self, root_id: str, info: RunInfo) -> Lease:
        """Reserve a new root and take its lease. Raises `RunExistsError` for an id that is taken."""
        ...

    async def acquire(self, root_id: str) -> tuple[Lease, list[Row]]:
        """Take the lease of a root and read its list, as one step.

        Raises `UnknownRunError`, `RunBusyError` at once while a live owner has it, and `StoreDamagedError`
        for a list whose checksums do not hold.
        """
        ...

    async def append(
        self,
        lease: Lease,
        expected: int,
        rows: Sequence[Row],
        *,
        status: RunStatus,
        summary: Mapping[str, object] | None = None,
    ) -> None:
        """Store rows as numbers `expected + 1` and on, synced, or nothing of them.

        `summary` None leaves the one that is there. Raises `LostRunError` where the fence or the number is
        not the store's.
        """
        ...

    async def release(self, lease: Lease) -> None:
        """Give the lease back. Harmless when it is gone already."""
        ...

    async def read(self, root_id: str, after: int = 0) -> list[Row]:
        """The rows behind a number, verified. Raises `UnknownRunError` and `StoreDamagedError`."""
        ...

    async def get(self, root_id: str) -> RunInfo | None:
        """What is known of a root, or None."""
        ...

    async def list(
        self, *, status: str | None = None, agent_name: str | None = None, principal: str | None = None, limit: int = 20
    ) -> list[RunInfo]:
        """Roots, the latest first."""
        ...

    async def delete(self, root_id: str) -> bool:
        """Delete a root that nobody drives, with the bodies that nothing else refers to. False where there is none.

        Raises `RunBusyError` for one that is driven.
        """
        ...

    async def close(self) -> None:
        """Finish what was asked, release every lease and close the store."""
        ...
