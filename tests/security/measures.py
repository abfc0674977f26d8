"""What an attack costs: time of the processor and memory, neither of which depends on what else goes on."""

from __future__ import annotations

import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Cost", "measured"]


@dataclass(slots=True)
class Cost:
    """What a block has used, once it has ended."""

    seconds: float = 0.0
    """Of a processor that does nothing else, over all threads."""

    mebibytes: float = 0.0
    """By how much the process was larger, at most, than before."""


@contextmanager
def measured() -> Generator[Cost]:
    """Measure a block."""
    cost = Cost()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    memory, pace, began = _memory("VmRSS"), _pace(), time.process_time()
    yield cost
    used = time.process_time() - began
    # A processor that is shared with others does less in a second of its time: caches are theirs, too.
    cost.seconds = used * 2 * _fastest / (pace + _pace())
    cost.mebibytes = (_memory("VmHWM") - memory) / 1024


_fastest = float("inf")


def _pace() -> float:
    """Seconds for a piece of work that is always the same."""
    global _fastest
    paces: list[float] = []
    for _ in range(5):
        began = time.process_time()
        sum(range(100_000))
        paces.append(time.process_time() - began)
    _fastest = min(_fastest, *paces)
    return sum(paces) / len(paces)


def _memory(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found[1]) if found else 0
