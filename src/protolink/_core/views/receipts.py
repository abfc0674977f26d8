"""What a run and its workers have executed, for the application's own checks: results included, public or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from protolink._core.entries import Entry, Fragment
from protolink._core.records import ActionCompleted, ActionReconciled, RunStarted
from protolink._core.views.parts import Identity
from protolink._core.views.project import project
from protolink._json import thaw
from protolink.evidence import EvidenceFold, ToolEvidence

__all__ = ["receipts_of"]


def receipts_of(
    items: Iterable[Entry | Fragment], who: Mapping[str, Identity], run_id: str
) -> tuple[ToolEvidence, ...]:
    """One receipt per tool action of the run `run_id` and of everything below it, in the order of their ends."""
    family = {run_id}
    fold = EvidenceFold()
    found: list[ToolEvidence] = []
    for entry in items:
        if isinstance(entry, Fragment):
            continue
        if isinstance(entry.record, RunStarted) and who[entry.run_id].parent_run_id in family:
            family.add(entry.run_id)
        receipt = _receipt(entry, who, fold) if entry.run_id in family and entry.action is not None else None
        if receipt is not None:
            found.append(receipt)
    return tuple(found)


def _receipt(entry: Entry, who: Mapping[str, Identity], fold: EvidenceFold) -> ToolEvidence | None:
    record = entry.record
    event = project(entry, who, entry.run_id)
    if event is None:
        return None
    if isinstance(record, ActionReconciled) and record.happened:
        event.type = "action.completed"  # somebody has made sure of it
    receipt = fold.add(event)
    if receipt is not None and isinstance(record, ActionCompleted | ActionReconciled):
        return replace(receipt, result=thaw(record.result), result_omitted=False)
    return receipt
