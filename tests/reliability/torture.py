"""Causes one fault after the other in the numbers that were asked for, and says at the end what came of each.

    python -m tests.reliability.torture [--full] [--results FILE] [FAULT ...]
    python -m tests.reliability.torture --table FILE ... [--markdown]

Each fault has a pytest of its own, so that one that ends the interpreter ends no other. What the tests count goes into
the file of results line by line, while they run: the second form makes the table of a run that is not over yet.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent.parent
HERE: Final = "tests/reliability"


@dataclass(frozen=True)
class Fault:
    """One row of the table, and where its tests are."""

    title: str
    files: Sequence[str]


FAULTS: Final[Mapping[str, Fault]] = {
    "F3": Fault("SIGKILL at random microseconds", [f"{HERE}/test_random_kills.py"]),
    "F2": Fault("SIGKILL between effect and receipt", [f"{HERE}/test_random_kills.py"]),
    "F17": Fault("processes racing for a run", [f"{HERE}/test_races.py"]),
    "F1": Fault("death at every write, commit and statement", [
        f"{HERE}/test_kill_everywhere.py", f"{HERE}/test_random_kills.py",
    ]),
    "F4": Fault("power loss", [f"{HERE}/test_power_loss.py"]),
    "F5": Fault("death in the middle of a write", [f"{HERE}/test_disk_faults.py"]),
    "F6": Fault("disk full, failing writes and syncs", [f"{HERE}/test_disk_faults.py", f"{HERE}/test_faults.py"]),
    "F9": Fault("flipped bit, changed row", [f"{HERE}/test_faults.py", "tests/durable"]),
    "F10": Fault("clock that jumps", [f"{HERE}/test_clocks.py"]),
    "F15": Fault("cancellation at every turn", [f"{HERE}/test_cancellation_everywhere.py"]),
    "F16": Fault("death in a worker's action", [f"{HERE}/test_child_crash.py"]),
    "F29": Fault("everything, on a virtual clock", [f"{HERE}/test_simulation.py"]),
    "fuzz": Fault("nearly right foreign data", ["tests/security/test_fuzz.py"]),
    "F7": Fault("read-only file or folder", ["tests/durable"]),
    "F8": Fault("store locked by another program", [f"{HERE}/test_faults.py", "tests/durable"]),
    "F11": Fault("threads that never return", ["tests/runtime/test_threads.py"]),
    "F12": Fault("readers that are slow, leave or raise", [f"{HERE}/test_faults.py", f"{HERE}/test_invariants.py"]),
    "F13": Fault("odd and mutated replies", [f"{HERE}/test_faults.py"]),
    "F14": Fault("provider that fails", ["tests/providers/test_runs.py"]),
    "F18": Fault("owner stopped, blocked, elsewhere, dead", [f"{HERE}/test_owners.py"]),
    "F19": Fault("SIGTERM and SIGINT while serving", [f"{HERE}/test_faults.py"]),
    "F20": Fault("HTTP clients that leave with a reset", [f"{HERE}/test_leaving.py"]),
    "F21": Fault("long history", [f"{HERE}/test_faults.py"]),
    "F22": Fault("large results", [f"{HERE}/test_faults.py"]),
    "F23": Fault("deep nesting", [f"{HERE}/test_faults.py"]),
    "F24": Fault("no more memory or descriptors", [f"{HERE}/test_limits.py"]),
    "F25": Fault("changed code", [f"{HERE}/test_faults.py"]),
    "F26": Fault("old, new or foreign file", ["tests/durable", f"{HERE}/test_faults.py"]),
    "F27": Fault("copies of the file", [f"{HERE}/test_copies.py"]),
    "F28": Fault("random sequences of requests and deaths", [f"{HERE}/test_random_sequences.py"]),
    "soak": Fault("random runs in one process for long", [f"{HERE}/test_soak.py"]),
}  # fmt: skip


@dataclass
class Row:
    """What came of one fault."""

    counts: Counter[str] = field(default_factory=Counter[str])
    worst: dict[str, float] = field(default_factory=dict[str, float])
    violations: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def add(self, line: Mapping[str, Any]) -> None:
        """One more of its tests is over."""
        self.counts.update(line["counts"])
        for what, value in line["worst"].items():
            self.worst[what] = max(value, self.worst.get(what, value))
        self.violations += line["violations"]
        self.skipped += line["skipped"]
        self.seconds += line["seconds"]

    @property
    def numbers(self) -> str:
        """What was caused how often, and the worst that was seen."""
        told = [f"{count:,} {what}" for what, count in self.counts.items()]
        told += [f"{value:,.3g} {what}" for what, value in self.worst.items()]
        if self.skipped:
            told.append(f"{self.skipped} tests skipped")
        return ", ".join(told) or "nothing"


def rows(lines: Iterable[Mapping[str, Any]]) -> dict[str, Row]:
    """One for each fault, in the order of their names. A test that was repeated counts as it went the last time."""
    last = {line["test"]: line for line in lines}
    found: dict[str, Row] = {}
    for line in last.values():
        found.setdefault(line["fault"], Row()).add(line)
    return {name: found[name] for name in sorted(found, key=_place)}


def _place(name: str) -> tuple[int, str]:
    return (int(name[1:]) if name[1:].isdigit() else len(FAULTS)), name


def table(found: Mapping[str, Row], command: str) -> Iterator[str]:
    """For a terminal."""
    for name, row in found.items():
        yield f"{name:>4}  {FAULTS[name].title}: {row.numbers}"
        yield f"      {row.violations} violations, {row.seconds:,.0f} s; again: {command} FAULT={name}"


def markdown(found: Mapping[str, Row], command: str) -> Iterator[str]:
    """For the documentation."""
    yield "| no. | fault | numbers | violations | seconds | again |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, row in found.items():
        cells = [name, FAULTS[name].title, row.numbers, str(row.violations), f"{row.seconds:,.0f}"]
        yield f"| {' | '.join(cells)} | `{command} FAULT={name}` |"


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """The lines of some files of results."""
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def cause(names: Iterable[str], size: str, results: Path) -> bool:
    """Run the tests of some faults, one pytest for each; says whether all of them went well."""
    environment = {**os.environ, "PROTOLINK_TORTURE": size, "PROTOLINK_TALLY": str(results)}
    went_well = True
    for name in names:
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-o", "faulthandler_timeout=0"]
        command += ["-p", "no:cacheprovider", "-m", f"fault(name={name!r})", *FAULTS[name].files]
        print(f"{name}: {FAULTS[name].title}", flush=True)
        went_well &= subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode == 0
    return went_well


def main() -> int:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.torture", description=__doc__)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help="such as F3; all of them where none is named")
    parser.add_argument("--full", action="store_true", help="the numbers of a release")
    parser.add_argument("--results", type=Path, help="where the lines are kept; a file that exists is added to")
    parser.add_argument("--table", type=Path, nargs="+", help="cause nothing, and show what is in such files")
    parser.add_argument("--markdown", action="store_true", help="as in docs/reliability.md")
    options = parser.parse_args()
    if unknown := set(options.faults) - set(FAULTS):
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    went_well, command = True, "make torture FULL=1" if options.full else "make torture"
    with tempfile.TemporaryDirectory() as folder:
        paths = options.table or [options.results or Path(folder) / "results.jsonl"]
        if not options.table:
            went_well = cause(options.faults or FAULTS, "full" if options.full else "short", paths[0])
        show = markdown if options.markdown else table
        print("", *show(rows(read(paths)), command), sep="\n")
    return 0 if went_well else 1


if __name__ == "__main__":
    sys.exit(main())
