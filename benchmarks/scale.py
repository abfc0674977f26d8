"""How much is measured, and how fast this machine is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from benchmarks.floors import bare_turn
from benchmarks.measure import cpu_seconds

__all__ = ["REFERENCE_TURN_SECONDS", "Scale", "floor_of_a_turn"]

REFERENCE_TURN_SECONDS: Final = 3.0e-6
"""What the floor of one turn costs on the machine that the goals in seconds come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What a workload has to know about the run that it is part of."""

    quick: bool
    """Fewer rounds and smaller sizes: half a minute instead of some minutes, and more noise."""

    turn_seconds: float
    """The floor of one turn on this machine."""

    @property
    def machine(self) -> float:
        """How many times slower this machine is than that of the reference. Goals in seconds grow with it."""
        return self.turn_seconds / REFERENCE_TURN_SECONDS

    def rounds(self, full: int) -> int:
        """So many rounds, or a third of them."""
        return max(2, full // 3) if self.quick else full


def floor_of_a_turn() -> float:
    """CPU seconds of a turn written by hand: the best of many short rounds, for other programs come and go."""

    async def best() -> float:
        return min([await cpu_seconds(500, bare_turn) for _ in range(100)])

    return asyncio.run(best())
