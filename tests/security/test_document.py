"""What `SECURITY.md` says is held has tests, and what has tests is in it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ATTACKS = [*(f"A{n}" for n in range(1, 20)), *(f"B{n}" for n in range(1, 10)), *(f"C{n}" for n in range(1, 24))]


def rows() -> dict[str, str]:
    """What the table says of each attack."""
    text = (ROOT / "SECURITY.md").read_text()
    return {found[1]: found[2] for found in re.finditer(r"^\| ([ABC]\d+) \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE)}


def attacks_with_tests() -> set[str]:
    """The attacks that tests are named after."""
    names = {
        node.name
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    found = (re.match(r"test_([abc])0?(\d+)_", name) for name in names)
    return {f"{match[1].upper()}{match[2]}" for match in found if match}


def test_every_attack_has_its_row() -> None:
    """In the order of their numbers."""
    assert list(rows()) == ATTACKS


def test_what_is_held_has_tests_and_what_is_not_built_has_none() -> None:
    """A row that promises something can be checked."""
    built = {attack for attack, state in rows().items() if not state.startswith("not built")}

    assert all(state.startswith(("held", "in part: ", "not built: ")) for state in rows().values())
    assert built == attacks_with_tests() & set(ATTACKS)


def test_c20_every_dependency_is_locked_by_hash_and_above_its_floor() -> None:
    """Whoever changes the dependencies makes the file anew, by the command at its top."""
    locked = {
        _plain(name): (tuple(map(int, version.split("."))), block)
        for name, version, block in re.findall(
            r"^([A-Za-z0-9._-]+)==([0-9]+(?:\.[0-9]+)*)[^\n]*((?:\n    --hash=sha256:[0-9a-f]{64}(?: \\)?)*)",
            (ROOT / ".ci" / "requirements.txt").read_text(),
            re.MULTILINE,
        )
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(entry for extra in project["optional-dependencies"].values() for entry in extra),
    ]

    for entry in (entry for entry in wanted if not entry.startswith("protolink[")):  # extras of its own
        name, floor = entry.split(">=")
        assert locked[_plain(name)][0] >= tuple(map(int, floor.split("."))), entry
    assert [name for name, (_, hashes) in locked.items() if "--hash" not in hashes] == []


def test_c20_one_package_is_required() -> None:
    """Everything else is an extra that is imported where it is used."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert [entry.split(">=")[0] for entry in project["dependencies"]] == ["pydantic"]


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name.partition("[")[0]).lower()
