"""A process of its own that makes many agents and prints what each of them took, as JSON: memory in KiB, CPU in us.

Memory is what the system gave the process: what compiled code allocates counts too.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from protolink import Agent
from protolink.llms import MockLLM


def tools_of(tenant: int) -> list[Callable[..., Any]]:
    """Three functions of a tenant's own, as an application makes them over the tenant's connection."""

    def find(query: str, limit: int = 10, kinds: list[str] | None = None) -> list[str]:
        """Find documents.

        Args:
            query: Words that they contain.
            limit: How many to give back.
            kinds: Only these kinds.
        """
        return [query, str(tenant)] * limit if kinds is None else kinds

    def convert(amount: float, currency: Literal["EUR", "USD"], *, exact: bool = False) -> float:
        """Convert an amount of money."""
        return amount if exact or currency == "EUR" else round(amount, tenant % 4)

    async def notify(address: str, message: str) -> bool:
        """Send a message."""
        return bool(address and message and tenant)

    return [find, convert, notify]


def make(agents: int, kind: str) -> tuple[float, float]:
    """Make so many agents, each with the `shared` three tools or with three of its `own`."""
    model = MockLLM()
    made = [Agent(name="first", llm=model, tools=tools_of(0))]
    # The functions belong to the application, so they are there before the clock starts.
    shared = tools_of(0)
    tools = [shared if kind == "shared" else tools_of(number) for number in range(agents)]
    gc.collect()
    memory, began = _resident_kib(), time.process_time()
    made += [Agent(name=f"agent {number}", llm=model, tools=tools[number]) for number in range(agents)]
    cpu = time.process_time() - began
    gc.collect()
    return (_resident_kib() - memory) / agents, cpu / agents * 1e6


def _resident_kib() -> float:
    """Memory of this process that is in use now, where the system says it; otherwise the most it ever was."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024
    import resource  # not on every system

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform == "darwin" else peak


if __name__ == "__main__":
    print(json.dumps(make(int(sys.argv[1]), sys.argv[2])))
