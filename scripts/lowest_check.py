"""Runs the tests with the lowest releases that `pyproject.toml` allows, in an environment of their own.

python scripts/lowest_check.py [TESTS ...]    by default those that touch a dependency
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-lowest"
PYTHON = ENVIRONMENT / "bin" / "python"
FLOORS = ENVIRONMENT / "floors.txt"

ROUNDS = {
    # One provider's SDK asks for a newer pydantic than the package does, so the providers have a round of their own.
    ("cli", "http", "jwt", "prices"): ("unit", "runtime", "durable", "embed", "manager", "http"),
    ("all-models", "prices"): ("providers",),
}
"""Extras that are installed together, and the tests that are run with them. `local` is not among them: its engine
has one floor, the release that `make setup` installs."""

TEST_TOOLS = ("hypothesis", "pytest", "schemathesis")


def main() -> int:
    chosen = sys.argv[1:]
    failed = False
    for extras, folders in ROUNDS.items():
        install(extras)
        tests = [f"tests/{folder}" for folder in folders]
        if chosen:
            tests = [test for test in chosen if any(test.startswith(folder) for folder in tests)]
        if tests:
            command: list[str | Path] = [PYTHON, "-m", "pytest", "-q", "--tb=short", *tests]
            failed |= subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    return 1 if failed else 0


def install(extras: tuple[str, ...]) -> None:
    """An environment with the floors of the package and of some extras, and current tools for the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tools = [tool for tool in project["optional-dependencies"]["dev"] if tool.startswith(TEST_TOOLS)]
    subprocess.run([sys.executable, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", "uv"], check=True)
    wanted = [part for extra in extras for part in ("--extra", extra)]
    uv("compile", "--resolution", "lowest-direct", *wanted, "--output-file", FLOORS, ROOT / "pyproject.toml")
    uv("install", "--requirements", FLOORS)
    uv("install", "--no-deps", "--editable", ROOT)
    uv("install", "--constraints", FLOORS, *tools)
    uv("freeze")


def uv(command: str, *arguments: str | Path) -> None:
    quiet = [] if command == "freeze" else ["--quiet"]
    subprocess.run([PYTHON, "-m", "uv", "pip", command, *quiet, "--python", PYTHON, *arguments], check=True)


if __name__ == "__main__":
    sys.exit(main())
