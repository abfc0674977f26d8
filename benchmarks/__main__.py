"""Measure everything, or what `--only` names, and print one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scale import REFERENCE_TURN_SECONDS, Scale, machine_factor
from benchmarks.table import Row, table
from benchmarks.workloads import WORKLOADS


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the workloads; a goal that is missed is shown and fails nothing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="NAME", choices=list(WORKLOADS), help=f"one of: {', '.join(WORKLOADS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes, for a first impression")
    parser.add_argument("--json", metavar="PATH", type=Path, help="also write the rows to a file, unrounded")
    chosen = parser.parse_args(arguments)

    began = time.perf_counter()
    rows: list[Row] = []
    factors = [machine_factor()]
    for name, workload in WORKLOADS.items():
        if chosen.only in (None, name):
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            rows += workload(Scale(quick=chosen.quick))
            factors.append(machine_factor())

    factor = min(factors)
    print(table(rows, factor))
    print()
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, machine factor {factor:.2f} "
        f"(the floor of one turn; {REFERENCE_TURN_SECONDS * 1e6:.1f} us is 1), {time.perf_counter() - began:.0f} s"
    )
    if chosen.json is not None:
        report = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "machine_factor": factor,
            "quick": chosen.quick,
            "rows": [row.to_dict(factor) for row in rows],
        }
        chosen.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
