"""Measure everything, or what `--only` names, and print one table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.scale import REFERENCE_TURN_SECONDS, Scale, machine_factor
from benchmarks.table import Row, table
from benchmarks.workloads import WORKLOADS

BEFORE: Final = Path(__file__).with_name("before.json")
"""The rows of a run before the last round of profiling, as `--json` wrote them."""

MARK: Final = "<!-- measured -->"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the workloads; a goal that is missed is shown and fails nothing."""
    chosen = _parser().parse_args(arguments)
    began = time.perf_counter()
    rows: list[Row] = []
    factors = [machine_factor()]
    for name, workload in WORKLOADS.items():
        if chosen.only in (None, name):
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            rows += workload(Scale(quick=chosen.quick))
            factors.append(machine_factor())

    factor = min(factors)
    measured = (
        f"{table(rows, factor, _rows_of(BEFORE))}\n\n"
        f"Python {platform.python_version()}, {os.cpu_count()} cores, machine factor {factor:.2f} "
        f"(the floor of one turn; {REFERENCE_TURN_SECONDS * 1e6:.1f} us is 1), {time.perf_counter() - began:.0f} s"
    )
    print(measured)
    if chosen.page is not None:
        chosen.page.write_text(_with(chosen.page.read_text(encoding="utf-8"), measured), encoding="utf-8")
    if chosen.json is not None:
        report = {
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "machine_factor": factor,
            "quick": chosen.quick,
            "rows": [row.to_dict(factor) for row in rows],
        }
        chosen.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", metavar="NAME", choices=list(WORKLOADS), help=f"one of: {', '.join(WORKLOADS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes, for a first impression")
    parser.add_argument("--json", metavar="PATH", type=Path, help="also write the rows to a file, unrounded")
    parser.add_argument(
        "--page", metavar="PATH", type=Path, help=f"also put the table behind {MARK} in a Markdown page"
    )
    return parser


def _rows_of(path: Path) -> Mapping[str, Mapping[str, Any]]:
    return {row["workload"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def _with(page: str, measured: str) -> str:
    """The page with another table in the block behind the mark."""
    pattern = re.compile(rf"(?<={re.escape(MARK)}\n```text\n).*?(?=\n```)", re.DOTALL)
    written, count = pattern.subn(lambda _: measured, page)
    if count != 1:
        raise SystemExit(f"a page has {MARK} before one block of text, and this one has {count}")
    return written


if __name__ == "__main__":
    main()
