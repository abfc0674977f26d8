"""Runs the shared suites, which lie beside a clone in `../shared`, without the tests that are still pending.

    python scripts/shared_suites.py run contract    every test of ../shared/contract but the pending ones
    python scripts/shared_suites.py pending         only the pending ones: which of them pass by now?

`.ci/pending.txt` names a test or a file in a line, relative to `../shared`, as pytest spells it:

    contract/test_worker_events.py
    contract/test_tool_evidence.py::test_worker_evidence_is_counted_once
"""

from __future__ import annotations

import argparse
import ast
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
PENDING = ROOT / ".ci" / "pending.txt"
SUITES = ("contract", "cases")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the shared suites beside this clone.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("run", help="all but the pending tests").add_argument("suite", choices=SUITES)
    commands.add_parser("pending", help="only the pending tests")
    arguments = parser.parse_args()
    for suite in SUITES:
        if not (SHARED / suite).is_dir():
            print(f"the shared suites are missing: a folder {SHARED / suite} must lie beside the clone")
            return 2
    entries = pending_entries()
    if unknown := [entry for entry in entries if not exists(entry)]:
        print(f"{PENDING.relative_to(ROOT)} names tests that do not exist:", *unknown, sep="\n  ")
        return 2
    if arguments.command == "pending":
        return report_pending(entries)
    return run_suite(arguments.suite, entries)


def pending_entries() -> list[str]:
    """The entries of the list, without empty lines and comments."""
    lines = [line.partition(" #")[0].strip() for line in PENDING.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def exists(entry: str) -> bool:
    """Whether the suites hold the file and the function that an entry names: a misspelt one would hide nothing."""
    path, *names = entry.partition("[")[0].split("::")
    file = SHARED / path
    if path.partition("/")[0] not in SUITES or not file.is_file():
        return False
    tree = ast.parse(file.read_text(encoding="utf-8"))
    defined = {
        node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    return defined.issuperset(names)


def covers(entry: str, test: str) -> bool:
    """Whether a test belongs to an entry: the very test, its parametrized cases, or all tests of a file."""
    return test == entry or test.startswith((f"{entry}::", f"{entry}["))


class Pending:
    """Takes the pending tests out. Pytest's own `--deselect` would take every test whose name begins alike."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._entries = entries

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        pending = [item for item in items if any(covers(entry, item.nodeid) for entry in self._entries)]
        if pending:
            items[:] = [item for item in items if item not in pending]
            config.hook.pytest_deselected(items=pending)


class Outcomes:
    """Remembers whether each test passed; a file that cannot be imported counts as a test that failed."""

    def __init__(self) -> None:
        self.passed: dict[str, bool] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.passed[report.nodeid] = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.passed[report.nodeid] = False
        elif report.passed and report.when == "call":
            self.passed.setdefault(report.nodeid, True)


def run_suite(suite: str, entries: Sequence[str]) -> int:
    """Run a suite without its pending tests; a file that is pending is not even imported."""
    mine = [entry for entry in entries if entry.startswith(f"{suite}/")]
    files = [entry for entry in mine if "::" not in entry]
    tests = [entry for entry in mine if "::" in entry]
    print(f"{suite}: pending are {len(files)} whole files and {len(tests)} entries for tests", flush=True)
    if all(f"{suite}/{path.name}" in files for path in (SHARED / suite).glob("test_*.py")):
        print(f"{suite}: every file is pending, so nothing is run")
        return 0
    return run_pytest([suite, "-ra", "--tb=short", *(f"--ignore={file}" for file in files)], Pending(tests))


def report_pending(entries: Sequence[str]) -> int:
    """Say which entries pass by now and what is left of the others, in lines that fit the list."""
    passing: list[str] = []
    left: list[str] = []
    outcomes = Outcomes()
    if files := sorted({entry.partition("::")[0] for entry in entries}):
        run_pytest([*files, "--tb=no", "--no-summary"], outcomes)
    for entry in entries:
        belonging = {test: passed for test, passed in outcomes.passed.items() if covers(entry, test)}
        failing = [test for test, passed in belonging.items() if not passed]
        if belonging and not failing:
            passing.append(entry)
        elif len(failing) == len(belonging):
            left.append(entry)
        else:
            left.extend(failing)
    print("passing by now:" if passing else "none of the pending entries passes by now", *passing, sep="\n  ")
    print("still failing:" if left else "nothing is left", *left, sep="\n  ")
    return 0


def run_pytest(arguments: Sequence[str], plugin: object) -> int:
    """Run pytest in the shared folder, which may be read-only, with the configuration that lies there."""
    os.chdir(SHARED)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # for the programs that tests start
    sys.dont_write_bytecode = True
    command = ["-c", "pytest.ini", "--rootdir=.", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60"]
    return int(pytest.main([*command, "--continue-on-collection-errors", *arguments], plugins=[plugin]))


if __name__ == "__main__":
    sys.exit(main())
