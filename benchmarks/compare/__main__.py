"""Measure this library and the named ones, each in an environment of its own, and print one table.

Without names all that have an adapter are measured. A name may carry a version: `langgraph==1.2.24`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.compare.environments import LIBRARIES, ROOT, interpreter
from benchmarks.compare.measured import WORKLOADS, Measured
from benchmarks.table import aligned

OURS = "protolink"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make environments, measure, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=f"any of: {', '.join(LIBRARIES)}")
    parser.add_argument("--only", metavar="NAME", choices=list(WORKLOADS), help=f"one of: {', '.join(WORKLOADS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes, for a first impression")
    parser.add_argument("--json", metavar="PATH", type=Path, help="also write the numbers to a file, unrounded")
    chosen = parser.parse_args(arguments)
    try:
        named = [_parsed(name) for name in chosen.libraries or LIBRARIES]
    except ValueError as error:
        parser.error(str(error))

    began = time.perf_counter()
    options = [*(["--only", chosen.only] if chosen.only else []), *(["--quick"] if chosen.quick else [])]
    interpreters = {OURS: Path(sys.executable)}
    for name, version in named:
        if name != OURS:
            print(f"environment: {name}", file=sys.stderr, flush=True)
            try:
                interpreters[name] = interpreter(LIBRARIES[name], version)
            except RuntimeError as error:
                sys.exit(str(error))
    reports: dict[str, dict[str, Any]] = {}
    for name, python in interpreters.items():
        print(f"measuring: {name}", file=sys.stderr, flush=True)
        reports[name] = _measured(python, name, options)
    print(shown(reports))
    print(f"\nPython {reports[OURS]['python']}, {os.cpu_count()} cores, {time.perf_counter() - began:.0f} s")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(reports, indent=2) + "\n", encoding="utf-8")


def _parsed(text: str) -> tuple[str, str | None]:
    name, separator, version = text.partition("==")
    if name == OURS and separator:
        raise ValueError("protolink is measured as this checkout has it, so it takes no version")
    if name != OURS and name not in LIBRARIES:
        raise ValueError(
            f"there is no adapter for {name!r}, only for {', '.join(LIBRARIES)}; "
            "benchmarks/compare/subject.py says what an adapter is"
        )
    if separator and not version:
        raise ValueError(f"{text!r} names no version")
    return name, version or None


def _measured(python: Path, name: str, options: Sequence[str]) -> dict[str, Any]:
    command = [str(python), "-m", "benchmarks.compare.measured", name, *options]
    # An installed package is compiled when it is installed; a checkout may be told not to keep what it compiles.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def shown(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Workloads by libraries: the number, and how many times the floor it is; then what was measured."""
    rows = {name: {row["workload"]: Measured(**row) for row in report["rows"]} for name, report in reports.items()}
    lines = [["workload", *(cell for name in reports for cell in (name, "ratio"))]]
    for workload in rows[OURS]:
        line = [workload]
        for name in reports:
            row = rows[name].get(workload)
            line += ["-", "-"] if row is None else row.cells()
        lines.append(line)
    notes = [
        f"{name}: {', '.join(f'{package} {version}' for package, version in report['versions'].items())}; "
        f"{report['configuration']}"
        for name, report in reports.items()
    ]
    return "\n".join([aligned(lines), "", *(textwrap.fill(note, 118, subsequent_indent="  ") for note in notes)])


if __name__ == "__main__":
    main()
