"""The rows that come out, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["AtMost", "AtMostTimes", "Row", "aligned", "number", "table"]


@dataclass(frozen=True, slots=True)
class AtMostTimes:
    """A goal as a multiple of the floor."""

    ratio: float


@dataclass(frozen=True, slots=True)
class AtMost:
    """A goal in the row's own unit, for what has no floor to compare with."""

    value: float
    scaled: bool = False
    """True for a time: it is meant for the reference machine, and is as many times longer as this one is slower."""

    def on(self, machine: float) -> float:
        """The goal on a machine that is so many times slower."""
        return self.value * machine if self.scaled else self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured number beside its floor and its goal."""

    workload: str
    unit: str
    protolink: float
    floor: float | None = None
    """The same calls without the runtime; None where there is nothing to compare with."""

    target: AtMostTimes | AtMost | None = None
    more_is_better: bool = False
    """True for a rate. The ratio of a rate says how many times slower it is."""

    @property
    def ratio(self) -> float | None:
        """How many times the floor it costs."""
        if self.floor is None:
            return None
        return self.floor / self.protolink if self.more_is_better else self.protolink / self.floor

    def verdict(self, machine: float) -> str:
        """`ok`, `over`, or `-` where there is no goal."""
        match self.target:
            case AtMostTimes(ratio=limit):
                return "-" if self.ratio is None else "ok" if self.ratio <= limit else "over"
            case AtMost() as goal:
                return "ok" if self.protolink <= goal.on(machine) else "over"
            case None:
                return "-"

    def before(self, earlier: Mapping[str, Any] | None) -> str:
        """The same of an earlier run, as the ratio that it was then, or as the number where there is no floor."""
        if earlier is None:
            return "-"
        if earlier["ratio"] is not None:
            return number(earlier["ratio"])
        return f"{number(earlier['protolink'])} {earlier['unit']}".rstrip()

    def limit(self, machine: float) -> str:
        """The goal as it is shown: a bare number is a ratio."""
        match self.target:
            case AtMostTimes(ratio=limit):
                return number(limit, 4)
            case AtMost() as goal:
                return f"{number(goal.on(machine))} {self.unit}".rstrip()
            case None:
                return "-"

    def cells(self, machine: float, earlier: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """The row as texts, in the order of the columns."""
        return (
            self.workload,
            self.before(earlier),
            "-" if self.floor is None else f"{number(self.floor)} {self.unit}".rstrip(),
            f"{number(self.protolink)} {self.unit}".rstrip(),
            "-" if self.ratio is None else number(self.ratio),
            self.limit(machine),
            self.verdict(machine),
        )

    def to_dict(self, machine: float) -> dict[str, Any]:
        """The row as JSON, unrounded."""
        target = self.target
        return {
            "workload": self.workload,
            "unit": self.unit,
            "floor": self.floor,
            "protolink": self.protolink,
            "ratio": self.ratio,
            "target_ratio": target.ratio if isinstance(target, AtMostTimes) else None,
            "target": target.on(machine) if isinstance(target, AtMost) else None,
            "verdict": self.verdict(machine),
        }


COLUMNS = ("workload", "before", "floor", "protolink", "ratio", "target ratio", "verdict")


def table(rows: Iterable[Row], machine: float, before: Mapping[str, Mapping[str, Any]]) -> str:
    """All rows under their column names, numbers to the right; `before` has those of an earlier run by workload."""
    lines = [COLUMNS, *(row.cells(machine, before.get(row.workload)) for row in rows)]
    return aligned(lines, to_the_left=(0, len(COLUMNS) - 1))


def aligned(lines: Sequence[Sequence[str]], to_the_left: Sequence[int] = (0,)) -> str:
    """Lines of cells as columns."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in to_the_left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def number(value: float, digits: int = 3) -> str:
    """So many significant digits, never an exponent."""
    if value >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"
