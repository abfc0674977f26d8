"""How much is measured, and how fast this machine is."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from benchmarks.floors import bare_turn
from benchmarks.measure import cpu_seconds

__all__ = ["REFERENCE_TURN_SECONDS", "Scale", "machine_factor"]

REFERENCE_TURN_SECONDS: Final = 3.0e-6
"""What the floor of one turn costs on the machine that the goals come from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How thoroughly to measure."""

    quick: bool
    """Fewer rounds and smaller sizes: half a minute instead of some minutes, and more noise."""

    def rounds(self, full: int) -> int:
        """So many rounds, or a third of them."""
        return max(2, full // 3) if self.quick else full


def machine_factor() -> float:
    """How many times slower this machine is than the reference: the best of many short rounds of the floor of a turn.

    Other programs come and go, so whoever measures for minutes asks now and then and believes the best answer.
    """

    async def best() -> float:
        return min([await cpu_seconds(500, bare_turn) for _ in range(50)])

    return asyncio.run(best()) / REFERENCE_TURN_SECONDS
