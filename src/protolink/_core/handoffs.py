"""Handoffs as they are stored: with the number of the completed actions, since the list itself says which.

With the ids, every slice would be stored with all that came before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from protolink._core.codec import CodecError
from protolink._core.state import TreeState
from protolink._json import is_list, is_mapping

__all__ = ["complete", "shorten", "shorten_all"]

_IDS: Final = "completed_action_ids"
_WITH_HANDOFFS: Final = frozenset({"Yielded", "RunPaused"})
_Change: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]


def shorten(kind: str, plain: dict[str, Any]) -> dict[str, Any]:
    """The fields of a record, with a number in place of each handoff's ids."""
    return _changed(kind, plain, _counted)


def complete(kind: str, plain: Any, tree: TreeState) -> Any:
    """The fields with the ids put back, given the state before the record.

    Raises `CodecError` where the list has fewer completed actions than the handoff.
    """
    if kind not in _WITH_HANDOFFS or not is_mapping(plain):
        return plain

    def with_ids(handoff: dict[str, Any]) -> dict[str, Any]:
        count = handoff.get(_IDS)
        if type(count) is not int:
            return handoff
        run = tree.runs.get(str(handoff.get("run_id")))
        known = [] if run is None else run.completed_ids
        if not 0 <= count <= len(known):
            raise CodecError(f"{kind} speaks of {count} completed actions, and the list has {len(known)}")
        return {**handoff, _IDS: known[:count]}

    return _changed(kind, dict(plain), with_ids)


def shorten_all(interruptions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a run waits for, with a number in place of each handoff's ids."""
    return [_interruption(item, _counted) for item in interruptions]


def _changed(kind: str, plain: dict[str, Any], change: _Change) -> dict[str, Any]:
    if kind == "Yielded" and is_mapping(plain.get("handoff")):
        return {**plain, "handoff": change(plain["handoff"])}
    if kind == "RunPaused" and is_list(plain.get("interruptions")):
        return {**plain, "interruptions": [_interruption(item, change) for item in plain["interruptions"]]}
    return plain


def _interruption(item: Any, change: _Change) -> Any:
    if is_mapping(item) and item.get("kind") == "yield" and is_mapping(item.get("request")):
        return {**item, "request": change(dict(item["request"]))}
    return item


def _counted(handoff: dict[str, Any]) -> dict[str, Any]:
    ids: Any = handoff.get(_IDS)
    return {**handoff, _IDS: len(ids)} if is_list(ids) else handoff
