"""Runs the shared suites, which lie beside a clone in `../shared`.

python scripts/shared_suites.py contract    every test of ../shared/contract
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
SUITES = ("contract", "cases")


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a shared suite beside this clone.")
    parser.add_argument("suite", choices=SUITES)
    suite: str = parser.parse_args().suite
    if not (SHARED / suite).is_dir():
        print(f"the shared suites are missing: a folder {SHARED / suite} must lie beside the clone")
        return 2
    return run(suite)


def run(suite: str) -> int:
    """Run pytest in the shared folder, which may be read-only, with the configuration that lies there."""
    os.chdir(SHARED)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # for the programs that tests start
    sys.dont_write_bytecode = True
    command = ["-c", "pytest.ini", "--rootdir=.", "-q", "-p", "no:cacheprovider", "-o", "faulthandler_timeout=60"]
    return int(pytest.main([*command, "-ra", "--tb=short", "--continue-on-collection-errors", suite]))


if __name__ == "__main__":
    sys.exit(main())
