import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_benchmarks_print_a_turn_as_a_ratio_of_its_floor_and_write_it_into_a_page(tmp_path: Path) -> None:
    """A number without its floor says something about the machine, not about the library. No limit is asserted."""
    page = tmp_path / "page.md"
    page.write_text("What it costs:\n\n<!-- measured -->\n```text\nan old table\n```\n\nThat was all.\n")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--only", "one turn", "--page", str(page)]

    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert re.search(r"^workload +before +floor +protolink +ratio +target ratio +verdict$", printed, re.MULTILINE)
    assert re.search(r"^one turn +38\.5 +[\d.]+ us +[\d.,]+ us +[\d.]+ +21\.7 +(ok|over)$", printed, re.MULTILINE)
    assert page.read_text() == f"What it costs:\n\n<!-- measured -->\n```text\n{printed}```\n\nThat was all.\n"


def test_any_model_can_be_measured_on_the_small_task() -> None:
    """The numbers in the documentation are worth as much as the script that others can run."""
    command = [sys.executable, "-m", "benchmarks.small_models", "mock"]

    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert "cannot be constrained" in printed
    assert len(re.findall(r": 0 of 5, [\d.]+ s a question$", printed, re.MULTILINE)) == 2


def test_the_comparison_measures_this_library_where_it_is_installed() -> None:
    """What others are compared with needs no environment of its own, so the way that all of them go is always tried."""
    command = [sys.executable, "-m", "benchmarks.compare", "protolink", "--quick", "--only", "one turn"]

    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout

    assert re.search(r"^workload +protolink +ratio$", printed, re.MULTILINE)
    assert re.search(r"^one turn +[\d.,]+ us +[\d.,]+$", printed, re.MULTILINE)
    assert re.search(r"^protolink: protolink \S+, pydantic \S+; .+$", printed, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("langraph", "there is no adapter for 'langraph', only for pydantic-ai, openai-agents, langgraph"),
        ("langgraph==", "'langgraph==' names no version"),
        ("protolink==0.1", "protolink is measured as this checkout has it, so it takes no version"),
    ],
)
def test_the_comparison_refuses_what_it_cannot_measure(name: str, complaint: str) -> None:
    """A library that was silently left out would look as if it had been measured."""
    command = [sys.executable, "-m", "benchmarks.compare", name]

    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)

    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in " ".join(done.stderr.split())
