"""The programs in the documentation run, and print what the documentation says they print.

Every ```python block of `README.md` and of the pages under `docs/` is a program of its own, in a folder of
its own, and may use `await` at the top level. An HTML comment right before a block says otherwise:

* `<!-- continues -->`: the block goes on where the block before it ended.
* `<!-- no-run: reason -->`: the block is only compiled.
* `<!-- output -->`, before a ```text block that follows a program: exactly what the program prints.
* `<!-- environment: name -->`: the block is a program of another library and runs where that one is installed.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.compare.environments import LIBRARIES, interpreter

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if path.stem != "__init__"]

FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<language>[\w-]*)[^`]*")
MARKER = re.compile(r"<!-- (?P<word>continues|environment|no-run|output)(: (?P<argument>\S.*))? -->")
TAKE_AN_ARGUMENT = ("environment", "no-run")
OUTPUT_LANGUAGES = ("text", "console-output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """One fenced block of a page, whatever it holds."""

    line: int
    """The number of its first line of content."""

    language: str
    """The first word after the opening fence, or an empty text."""

    content: str
    """What stands between the fences."""

    marker: str | None
    """The word of the comment right before the block, if there is one."""

    argument: str | None
    """What stands behind that word."""

    follows: bool
    """Whether nothing but that comment stands between the block before and this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program of a page."""

    page: Path
    """The file it stands in."""

    line: int
    """The number of its first line in the page."""

    source: str
    """Its text."""

    before: tuple[Program, ...] = ()
    """The programs that it continues, the first one first."""

    runs: bool = True
    """False for a program that is only compiled."""

    output: str | None = None
    """What it prints, if the page says so."""

    environment: str | None = None
    """The library in whose environment it runs, if that is not this one."""


def fences(page: Path) -> Iterator[Fence]:
    """The fenced blocks of a page in their order. A comment that looks like a marker must be one."""
    lines = page.read_text(encoding="utf-8").splitlines()
    marker: str | None = None
    argument: str | None = None
    follows = False
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if opening := FENCE.fullmatch(line.rstrip()):
            start = number
            while number < len(lines) and not is_closing(lines[number], opening["fence"]):
                number += 1
            if number == len(lines):
                raise ValueError(f"{page.name}:{start}: the block is never closed")
            content = textwrap.dedent("".join(f"{text}\n" for text in lines[start:number]))
            number += 1
            language = opening["language"]
            yield Fence(
                line=start + 1,
                language=language,
                content=content,
                marker=marker,
                argument=argument,
                follows=follows,
            )
            marker, argument, follows = None, None, True
        elif re.match(r"<!--\s*(continues|environment|no-run|output)\b", line.strip()):
            found = MARKER.fullmatch(line.strip())
            if found is None or (found["word"] in TAKE_AN_ARGUMENT) != (found["argument"] is not None):
                raise ValueError(f"{page.name}:{number}: {line.strip()!r} is not a marker; see {Path(__file__).name}")
            marker, argument = found["word"], found["argument"]
            if marker == "environment" and argument not in LIBRARIES:
                raise ValueError(f"{page.name}:{number}: there is no environment {argument!r}")
        elif line.strip():
            if marker is not None:  # nothing but empty lines may come between the two
                raise ValueError(f"{page.name}:{number}: the marker {marker!r} must stand right before a block")
            follows = False


def is_closing(line: str, fence: str) -> bool:
    """Whether `line` closes a block that `fence` opened."""
    return line.strip().startswith(fence) and not line.strip().strip(fence[0])


def programs(page: Path) -> list[Program]:
    """The programs of a page, each with what it continues and what it prints."""
    found: list[Program] = []
    last: Fence | None = None
    for fence in fences(page):
        here = f"{page.name}:{fence.line}"
        if fence.language == "python":
            if fence.marker == "output":
                raise ValueError(f"{here}: a program is not an output")
            before: tuple[Program, ...] = ()
            environment = fence.argument if fence.marker == "environment" else None
            if fence.marker == "continues":
                if not found or not found[-1].runs:
                    raise ValueError(f"{here}: there is no running program to continue")
                before = (*found[-1].before, found[-1])
                environment = found[-1].environment
            found.append(
                Program(
                    page=page,
                    line=fence.line,
                    source=fence.content,
                    before=before,
                    runs=fence.marker != "no-run",
                    environment=environment,
                )
            )
        elif fence.marker is not None:
            after_a_program = fence.follows and last is not None and last.language == "python"
            if fence.marker != "output" or fence.language not in OUTPUT_LANGUAGES or not after_a_program:
                raise ValueError(f"{here}: {fence.marker!r} does not belong to this block")
            if not found[-1].runs:
                raise ValueError(f"{here}: a program that is not run prints nothing")
            found[-1] = replace(found[-1], output=fence.content)
        last = fence
    return found


def run(program: Program, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Run what the program continues and then the program itself; returns what the program alone printed."""
    module = ModuleType("__main__")
    module.__file__ = str(program.page)
    # Annotations are resolved through the module that a class names, and a program calls itself `__main__`.
    monkeypatch.setitem(sys.modules, "__main__", module)
    with asyncio.Runner() as runner:
        for part in (*program.before, program):
            capsys.readouterr()
            # The line numbers are those of the page, so that a traceback shows the page's own lines.
            source = "\n" * (part.line - 1) + part.source
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            code = compile(source, str(part.page), "exec", flags=flags, dont_inherit=True)
            outcome = eval(code, module.__dict__)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(outcome)
    return capsys.readouterr().out


ELSEWHERE = """
import ast, asyncio, contextlib, inspect, io, json, sys
page, parts = json.loads(sys.argv.pop())
with asyncio.Runner() as runner:
    for number, source in enumerate(parts, start=1):
        with contextlib.nullcontext() if number == len(parts) else contextlib.redirect_stdout(io.StringIO()):
            code = compile(source, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            outcome = eval(code)
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(outcome)
"""


def run_elsewhere(program: Program, library: str) -> str:
    """The same as `run`, by the Python of an environment that has this library."""
    parts = ["\n" * (part.line - 1) + part.source for part in (*program.before, program)]
    command = [str(interpreter(LIBRARIES[library])), "-c", ELSEWHERE, json.dumps([str(program.page), parts])]
    # The environment is installed without compiled modules, so that only what is imported gets compiled, once.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def all_programs() -> Iterator[Program]:
    for page in PAGES:
        if page.exists():
            yield from programs(page)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(program, id=f"{program.page.relative_to(ROOT).as_posix()}:{program.line}")
        for program in all_programs()
    ],
)
def test_a_program_of_the_documentation_runs(
    program: Program, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a reader copies works, and prints what the page promised."""
    monkeypatch.chdir(tmp_path)
    if not program.runs:
        compile(program.source, str(program.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        return

    if program.environment is None:
        printed = run(program, capsys, monkeypatch)
    else:
        printed = run_elsewhere(program, program.environment)

    if program.output is not None:
        assert printed == program.output


@pytest.mark.parametrize("example", [pytest.param(path, id=path.name) for path in EXAMPLES])
def test_an_example_runs_without_a_complaint(example: Path, tmp_path: Path) -> None:
    """An example is a program that a stranger starts from a shell: it ends well and says nothing on stderr."""
    # On its real model it has a test of its own, which knows whether that model is there.
    arguments = ["mock"] if example.name == "local_team.py" else []
    command = [sys.executable, "-W", "error", str(example), *arguments]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stderr) == (0, ""), done.stderr


PAGE = """\
```python
import asyncio
count = 1
```

Some words.

<!-- continues -->
```python
await asyncio.sleep(0)
print(count + 1)
```

<!-- output -->
```text
2
```

* An item:

  <!-- no-run: needs a provider -->
  ```python
  call_the_provider()
  ```

````markdown
```python
this is not a program
```
````

<!-- environment: langgraph -->
```python
import langgraph
```

<!-- continues -->
```python
print(langgraph.__name__)
```
"""


def test_the_programs_of_a_page_are_found_with_their_markers(tmp_path: Path) -> None:
    """A block that the harness overlooked would be documentation that nobody checks."""
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")

    first, second, third, fourth, fifth = programs(page)

    assert (first.line, first.source, first.before, first.output) == (2, "import asyncio\ncount = 1\n", (), None)
    assert (second.line, second.before, second.output) == (10, (first,), "2\n")
    assert (third.source, third.runs) == ("call_the_provider()\n", False)
    assert [program.environment for program in (first, second, fourth, fifth)] == [None, None, "langgraph", "langgraph"]


def test_a_program_continues_with_the_names_and_the_loop_of_the_one_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A page may show a program in pieces, and only the last piece's output is compared."""
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")

    assert run(programs(page)[1], capsys, monkeypatch) == "2\n"


@pytest.mark.parametrize(
    "page",
    [
        "<!-- no-run -->\n```python\n```\n",
        "<!-- environment: nowhere -->\n```python\n```\n",
        "<!-- continues: why -->\n```python\n```\n",
        "<!-- continues -->\n```python\n```\n",
        "<!-- continues -->\nwords\n```python\n```\n",
        "<!-- output -->\n```text\n```\n",
        "```python\n```\nwords\n<!-- output -->\n```text\n```\n",
        "```python\n",
    ],
)
def test_a_marker_that_would_have_no_effect_is_an_error(page: str, tmp_path: Path) -> None:
    """A misspelt marker must not turn a check off."""
    file = tmp_path / "page.md"
    file.write_text(page, encoding="utf-8")

    with pytest.raises(ValueError, match=r"page\.md:\d"):
        programs(file)
