"""What a program pays before its first run: a fresh process that imports, and makes one agent with one tool."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from typing import Final

from benchmarks.measure import alternate
from benchmarks.scale import Scale
from benchmarks.table import AtMostTimes, Row

__all__ = ["start"]

# An installed package is compiled when it is installed; a checkout may be told not to keep what it compiles.
_ENVIRONMENT: Final = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

_FLOOR: Final = """
import asyncio, json
def lookup(number: int) -> str:
    "Look up a number."
    return f"entry {number}"
"""
_AGENT: Final = f"""
{_FLOOR}
from protolink import Agent
Agent(name="researcher", tools=[lookup])
"""


def start(scale: Scale) -> list[Row]:
    """The best of several fresh processes, elapsed."""
    _process(_AGENT)  # compiles what was never imported before
    floors, ours = asyncio.run(alternate(scale.rounds(15), lambda: _elapsed(_FLOOR), lambda: _elapsed(_AGENT)))
    return [
        Row(
            workload="import and one agent with one tool",
            unit="ms",
            floor=min(floors) * 1e3,
            protolink=min(ours) * 1e3,
            target=AtMostTimes(4.0),
        )
    ]


async def _elapsed(program: str) -> float:
    return _process(program)


def _process(program: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program], check=True, env=_ENVIRONMENT)
    return time.perf_counter() - began
