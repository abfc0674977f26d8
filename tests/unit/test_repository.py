"""Rules that hold for the repository as a whole, and proof that each rule can see what it forbids."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.static_check import FORBIDDEN_WORDS, findings

SOURCE = "src/protolink/module.py"


def written(root: Path, path: str, text: str) -> Path:
    """A repository that holds one file."""
    file = root / path
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    return root


def test_the_repository_keeps_its_rules() -> None:
    """The complaints below are the explanation."""
    assert [str(finding) for finding in findings()] == []


@pytest.mark.parametrize(
    ("program", "name"),
    [
        ("import pickle", "pickle"),
        ("from marshal import loads", "marshal.loads"),
        ("import shelve", "shelve"),
        ("import builtins\nbuiltins.eval('1')", "builtins.eval"),
        ("import yaml\nyaml.load('')", "yaml.load"),
        ("import os\nos.system('ls')", "os.system"),
        ("eval('1')", "eval"),
        ("exec('1')", "exec"),
        ("compile('1', 'f', 'eval')", "compile"),
        ("print('hello')", "print"),
        ("assert True", "assert"),
        ("run('ls', shell=True)", "shell=True"),
        ("run('ls', shell=1)", "shell=True"),
        ("get('https://localhost', verify=0)", "verify=False"),
        ("get('https://localhost', verify=False)", "verify=False"),
        ("context.check_hostname = False", "check_hostname=False"),
        ("load(path, allow_pickle=True)", "allow_pickle=True"),
        ("Client(trust_env=True)", "trust_env=True"),
        ("import ssl\ncontext.verify_mode = ssl.CERT_NONE", "ssl.CERT_NONE"),
        ("import asyncio\nasyncio.create_subprocess_shell('ls')", "asyncio.create_subprocess_shell"),
        ("import jinja2", "jinja2"),
        ("from importlib import import_module\nimport_module(name)", "importlib.import_module"),
        ("from importlib import import_module\nimport_module('pickle')", "importlib.import_module"),
        ("page = 'element.innerHTML = text'", "innerHTML"),
        ("page = 'element.insertAdjacentHTML(where, text)'", "insertAdjacentHTML"),
        ("db.execute(f'SELECT {column} FROM runs')", "composed SQL"),
        ("db.execute('SELECT * FROM %s' % table)", "composed SQL"),
        ("db.execute('SELECT * FROM ' + table)", "composed SQL"),
        ("db.execute('SELECT * FROM {}'.format(table))", "composed SQL"),
        ("statement = f'DELETE FROM {table}'", "composed SQL"),
        ("db.execute('SELECT 1 FROM runs WHERE id = ?1', (run_id,))", "numbered parameter"),
        ("from protolink import Agent", "protolink.Agent"),
        ("from . import Agent", "protolink.Agent"),
        ("import time\ntime.time()", "time.time"),
        ("from time import monotonic as clock\nclock()", "time.monotonic"),
        ("import time\nnow = time.monotonic", "time.monotonic"),
        ("from datetime import UTC, datetime\ndatetime.now(UTC)", "datetime.datetime.now"),
        ("import random\nrandom.Random(1).random()", "random.Random"),
        ("import uuid\nuuid.uuid4().hex", "uuid.uuid4"),
        ("import threading\nthreading.Thread(target=run)", "threading.Thread"),
        ("import asyncio\nasyncio.sleep(1)", "asyncio.sleep"),
        ("loop.run_in_executor(None, run)", "run_in_executor"),
    ],
)
def test_source_that_breaks_a_rule_is_found(program: str, name: str, tmp_path: Path) -> None:
    """A rule that finds nothing in the tree must still be able to find something."""
    root = written(tmp_path, SOURCE, program)

    assert [finding.name for finding in findings(root, {})] == [name]


@pytest.mark.parametrize(
    "program",
    [
        "import re\nre.compile('a')",
        "import threading\nthreading.Lock()",
        "from datetime import UTC, datetime\ndatetime.fromtimestamp(0, UTC)",
        "import uuid\nuuid.UUID(int=1)",
        "db.execute('SELECT 1 FROM runs ' 'WHERE id = ?', (run_id,))",
        "message = f'selected {count} runs'",
        "from typing import assert_never\nassert_never(value)",
        "from protolink import __version__",
        "environment.call_later(1, done)",
        "import asyncio\nasyncio.sleep(0)",
    ],
)
def test_source_that_looks_similar_is_left_alone(program: str, tmp_path: Path) -> None:
    """A rule with false alarms would be switched off."""
    assert findings(written(tmp_path, SOURCE, program), {}) == []


@pytest.mark.parametrize(
    "path",
    ["src/protolink/_environment.py", "src/protolink/_runtime/threads.py", "src/protolink/testing/clock.py"],
)
def test_the_owners_of_clocks_and_threads_may_use_them(path: str, tmp_path: Path) -> None:
    """Somebody has to; everybody else asks them."""
    root = written(tmp_path, path, "import threading, time\nthreading.Thread(target=time.sleep)")

    assert findings(root, {}) == []


@pytest.mark.parametrize(
    "program", ["import unittest.mock", "from unittest import mock", "from unittest.mock import patch"]
)
def test_mocks_are_refused_in_tests(program: str, tmp_path: Path) -> None:
    """Where a test would patch something, a seam is missing."""
    root = written(tmp_path, "tests/unit/test_module.py", program)

    assert [finding.name for finding in findings(root, {})] == ["unittest.mock"]


@pytest.mark.parametrize("word", FORBIDDEN_WORDS)
def test_words_of_one_machine_are_found_in_any_text(word: str, tmp_path: Path) -> None:
    """A path or a host that only one author has is no use to a reader."""
    root = written(tmp_path, "docs/guide.md", f"See {word} for more.")

    assert [finding.name for finding in findings(root, {})] == [word]


def _of_lines(number: int) -> str:
    return 'def function() -> None:\n    """Why."""\n    # a comment\n\n' + "    call()\n" * number


def test_a_function_of_more_than_sixty_lines_of_logic_is_found(tmp_path: Path) -> None:
    """What is longer is more than one thought."""
    root = written(tmp_path, SOURCE, _of_lines(61))

    assert [finding.name for finding in findings(root, {})] == ["function"]


def test_docstrings_and_comments_make_no_function_longer(tmp_path: Path) -> None:
    """Explaining must not cost anything."""
    assert findings(written(tmp_path, SOURCE, _of_lines(60)), {}) == []


def test_an_exception_is_honoured_and_an_unused_one_is_reported(tmp_path: Path) -> None:
    """A list of exceptions that nobody prunes stops meaning anything."""
    root = written(tmp_path, SOURCE, "import time\ntime.time()")

    found = findings(root, allowed={SOURCE: frozenset({"time.time", "time.sleep"})})

    assert [(finding.name, finding.reason) for finding in found] == [
        ("time.sleep", "is allowed but not used; remove the exception")
    ]


@pytest.mark.parametrize(
    ("program", "name"),
    [("import pickle", "pickle"), ("db.execute(f'SELECT {x}')", "composed SQL"), ("page = 'x.innerHTML'", "innerHTML")],
)
def test_a_rule_of_security_has_no_exceptions(program: str, name: str, tmp_path: Path) -> None:
    """Whoever needs one changes the rule, where everybody sees it."""
    root = written(tmp_path, SOURCE, program)

    found = findings(root, allowed={SOURCE: frozenset({name})})

    assert sorted(finding.reason for finding in found if finding.of_security) != []
