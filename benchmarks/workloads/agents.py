"""Agents that exist and do nothing: an application may hold one per tenant, or per session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.scale import Scale
from benchmarks.table import AtMost, Row

__all__ = ["idle_agents"]

_KIB: Final = AtMost(8.0)
_CPU: Final = AtMost(300.0, scaled=True)


def idle_agents(scale: Scale) -> list[Row]:
    """Memory and CPU of one agent with three tools among many. There is no floor: by hand there is no agent."""
    agents = 1_000 if scale.quick else 10_000
    rows: list[Row] = []
    for kind in ("shared", "own"):
        measured = [_in_a_process(agents, kind) for _ in range(1 if scale.quick else 3)]
        name = f"{agents:,} idle agents, three {kind} tools"
        rows += [
            Row(workload=f"{name}, memory each", unit="KiB", protolink=min(kib for kib, _ in measured), target=_KIB),
            Row(workload=f"{name}, CPU each", unit="us", protolink=min(cpu for _, cpu in measured), target=_CPU),
        ]
    return rows


def _in_a_process(agents: int, kind: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "benchmarks.population", str(agents), kind]
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root)
    kib, cpu = json.loads(done.stdout)
    return kib, cpu
