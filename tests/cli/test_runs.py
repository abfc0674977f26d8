"""`protolink runs`: what a person at a shell sees and can do, with real files and, where code runs, real processes."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, RunContext, SQLiteDurableStore, Task, UncertainExecutionError
from protolink.cli import main
from protolink.cli.tables import write_table
from protolink.testing import call
from protolink.tools import ask_user
from tests.support import model

APP = '''
import os, signal
from protolink import Agent, CapabilityPolicy, Tool
from protolink.llms import MockLLM
from protolink.testing import call
from protolink.tools import ask_user

print("the module was imported")

def pay(amount: int) -> str:
    """Pay somebody."""
    with open("paid.txt", "a") as file:
        file.write(f"{amount}\\n")
    if os.path.exists("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    return f"paid {amount}"

TURNS = [call("ask_user", question="How much?"), call("pay", amount=3), "All is paid."]

def respond(history, system_prompt):
    return TURNS[sum(message["role"] == "tool" for message in history.messages)]

clerk = Agent(
    name="clerk",
    tools=[ask_user, Tool(pay, capabilities=["money.pay"])],
    llm=MockLLM(response_callback=respond),
    policy=CapabilityPolicy({"money.pay": "require_approval"}),
    durability="runs.sqlite",
    verbosity=0,
)
elsewhere = Agent(name="clerk", durability="other.sqlite", verbosity=0)
nothing = "no agent"
'''

START = """
import asyncio
from app import clerk
from protolink import RunContext, Task
print(RunContext.from_task(asyncio.run(clerk.run_task(Task.create_infer("go")))).run_id)
"""


class Shell:
    """A folder with an application and its store, and a shell in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "app.py").write_text(APP)

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the interpreter, where warnings are errors."""
        command = [sys.executable, "-W", "error", *arguments]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=60, check=False)

    def runs(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command."""
        return self.python("-m", "protolink", "runs", *arguments, "--store", "runs.sqlite")

    def start(self) -> str:
        """Start a run, which asks a question; its id."""
        done = self.python("-c", START)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()[-1]

    def waiting(self) -> str:
        """The request that the latest run waits for."""
        (run,) = json.loads(self.runs("list", "--json").stdout)
        return str(run["waits_for"]["interruptions"][0]["request_id"])

    def resume(self, run_id: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Take the run up with the application's agent."""
        return self.runs("resume", run_id, "--agent", "app:clerk", *arguments)

    @property
    def paid(self) -> list[str]:
        """The effects, which outlive every process."""
        file = self.folder / "paid.txt"
        return file.read_text().split() if file.exists() else []


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_a_run_is_answered_approved_killed_settled_and_finished_from_a_shell(shell: Shell) -> None:
    """Every step is a process of its own; the payment is made once, and the model is told of it once."""
    run_id = shell.start()
    asked = shell.resume(run_id, "--request-id", shell.waiting(), "--answer", "3")
    assert (asked.returncode, asked.stdout.splitlines()[-1]) == (0, "input-required")
    (shell.folder / "die").touch()
    killed = shell.resume(run_id, "--request-id", shell.waiting(), "--approve")
    assert killed.returncode == -signal.SIGKILL
    (shell.folder / "die").unlink()

    refused = shell.resume(run_id)
    shown = shell.runs("show", run_id)
    settled = shell.runs("reconcile", run_id, f"{run_id}.2", "--result", '"paid 3"')
    finished = shell.resume(run_id)

    assert refused.returncode == 1
    assert "nobody knows" in refused.stderr
    assert f'reconcile {run_id}.2: pay {{"amount":3}}' in shown.stdout
    assert (settled.returncode, settled.stdout) == (0, "recorded; resume the run to go on\n")
    assert finished.stdout.splitlines()[-2:] == ["completed", "All is paid."]
    assert shell.paid == ["3"]


def test_reading_imports_and_executes_nothing(shell: Shell) -> None:
    """Whoever lists or shows runs of somebody else must not run that somebody's code, nor change the store."""
    run_id = shell.start()
    store = shell.folder / "runs.sqlite"
    before = store.read_bytes()

    outputs = [shell.runs("list"), shell.runs("show", run_id), shell.runs("prune", "--keep", "0", "--dry-run")]

    assert [done.returncode for done in outputs] == [0, 0, 0]
    assert all("imported" not in done.stdout for done in outputs)
    assert store.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--integrity-key-file", "key"), 0, "clerk"),
        ((), 1, "written with an integrity key"),
        (("--integrity-key-file", "other"), 1, "another integrity key"),
        (("--integrity-key-file", "short"), 1, "at least 16 bytes"),
        (("--integrity-key-file", "missing"), 1, "cannot be read: No such file"),
    ],
)
def test_a_keyed_store_is_opened_with_the_key_in_a_file(
    arguments: tuple[str, ...], code: int, said: str, shell: Shell
) -> None:
    """All bytes of the file are the key. On the command line every user of the machine could read it."""
    files = {"key": b"k" * 31 + b"\n", "other": b"k" * 31, "short": b"k"}
    for name, content in files.items():
        (shell.folder / name).write_bytes(content)
    keyed = 'SQLiteDurableStore("runs.sqlite", integrity_key=open("key", "rb").read())'
    (shell.folder / "app.py").write_text(
        APP.replace('durability="runs.sqlite"', f"durability={keyed}").replace(
            "import Agent,", "import Agent, SQLiteDurableStore,"
        )
    )
    run_id = shell.start()

    listed, shown = shell.runs("list", *arguments), shell.runs("show", run_id, *arguments)

    assert (listed.returncode, shown.returncode) == (code, code)
    assert said in listed.stdout + listed.stderr
    assert "Traceback" not in listed.stderr + shown.stderr


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ("app:missing", "cannot be loaded: AttributeError"),
        ("missing:clerk", "cannot be loaded: ModuleNotFoundError"),
        ("app:nothing", "is no Agent but a str"),
        ("app:elsewhere", "other.sqlite"),
    ],
)
def test_an_agent_that_is_not_the_runs_own_is_refused(shell: Shell, reference: str, reason: str) -> None:
    """The message says what is wrong with the name on the command line."""
    run_id = shell.start()

    done = shell.runs("resume", run_id, "--agent", reference)

    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def test_canceling_ends_a_paused_run_with_and_without_its_agent(shell: Shell) -> None:
    """Nothing of the agent is needed to end a run; naming it lets its own stores know."""
    first, second = shell.start(), shell.start()

    alone = shell.runs("cancel", first, "--reason", "too late")
    named = shell.runs("cancel", second, "--agent", "app:clerk")

    assert alone.stdout == "canceled\n"
    assert named.stdout.splitlines()[-1] == "canceled"
    statuses = [run["status"] for run in json.loads(shell.runs("list", "--json").stdout)]
    assert statuses == ["canceled", "canceled"]


WAITING = """
import asyncio
from protolink import Agent
from protolink.llms import MockLLM
from protolink.testing import call
from protolink.tools import ask_user

async def wait() -> str:
    print("entered", flush=True)
    await asyncio.Event().wait()
    return "never"

def respond(history, system_prompt):
    asked = any(message["role"] == "tool" for message in history.messages)
    return call("wait") if asked else call("ask_user", question="Ready?")

clerk = Agent(
    name="clerk", tools=[ask_user, wait], llm=MockLLM(response_callback=respond), durability="runs.sqlite", verbosity=0
)
"""


def test_the_keyboard_cancels_the_run_that_is_resumed(shell: Shell) -> None:
    """Whoever watches it can end it; the run has an end and the shell gets no traceback."""
    (shell.folder / "app.py").write_text(WAITING)
    run_id = shell.start()
    answer = ["--request-id", shell.waiting(), "--answer", "true"]
    command = ["-m", "protolink", "runs", "resume", run_id, "--store", "runs.sqlite", "--agent", "app:clerk", *answer]
    resuming = subprocess.Popen(
        [sys.executable, *command], cwd=shell.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with resuming:
        assert resuming.stdout is not None
        assert resuming.stderr is not None
        assert resuming.stdout.readline() == "entered\n"
        resuming.send_signal(signal.SIGINT)
        assert resuming.wait(60) == 130
        assert resuming.stderr.read() == ""

    (run,) = json.loads(shell.runs("list", "--json").stdout)
    assert run["status"] == "canceled"


def test_a_reader_that_leaves_early_is_no_error(shell: Shell) -> None:
    """`protolink runs show | head` ends without a complaint."""
    run_id = shell.start()
    command = f"set -o pipefail; {sys.executable} -m protolink runs show {run_id} --store runs.sqlite | true"

    done = subprocess.run(
        ["bash", "-c", command], cwd=shell.folder, capture_output=True, text=True, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")


def test_the_command_is_installed() -> None:
    """The script and `python -m protolink` are the same program."""
    script = Path(sys.executable).with_name("protolink")

    done = subprocess.run([script, "runs", "--help"], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0
    assert "reconcile" in done.stdout


def _lose() -> str:
    raise UncertainExecutionError("the reply was lost")


def _store(path: Path, *turns: Any, prompt: str = "go") -> str:
    """One run in a store; its id."""

    async def run() -> str:
        store = SQLiteDurableStore(path)
        agent = Agent(name="clerk\x1b[31m", tools=[ask_user, _lose], llm=model(*turns), durability=store, verbosity=0)
        task = await agent.run_task(Task.create_infer(prompt))
        await store.log.close()
        return RunContext.from_task(task).run_id

    return asyncio.run(run())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.sqlite"


def test_a_list_says_what_each_run_waits_for(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The id of the request stands there, because the answer has to name it."""
    run_id = _store(path, call("ask_user", question="Which?", choices=["a", "b"]))

    assert main(["runs", "list", "--store", str(path)]) == 0

    head, line = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["RUN", "AGENT", "STATUS"]
    assert line.startswith(run_id)
    assert line.endswith(': Which? ["a","b"]')


def test_a_list_can_be_narrowed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By status, agent and number."""
    done, paused = _store(path), _store(path, call("ask_user", question="Which?"))

    def listed(*options: str) -> list[str]:
        assert main(["runs", "list", "--json", "--store", str(path), *options]) == 0
        return [run["run_id"] for run in json.loads(capsys.readouterr().out)]

    assert listed() == [paused, done]
    assert listed("--status", "completed") == [done]
    assert listed("--limit", "1") == [paused]
    assert listed("--agent-name", "somebody") == []


def test_show_prints_each_record_with_the_decision_after_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each, so that a person can follow what happened and why the next thing did."""
    run_id = _store(path, call("ask_user", question="Which?"))

    assert main(["runs", "show", run_id, "--store", str(path)]) == 0

    lines = [line for line in capsys.readouterr().out.splitlines() if line[:1].isdigit()]
    decisions = [line.partition("→ ")[2] for line in lines]
    assert [line.split()[3] for line in lines][:3] == ["RunStarted", "ModelAsked", "ModelReplied"]
    assert decisions == ["AskModel 1", "AskModel 2", "Prepare run.1", "Judge run.1", "Ask run.1", "Ask run.1", ""]


def test_show_as_json_holds_the_records(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For programs: the fields as they are stored, and the decisions with full ids."""
    run_id = _store(path, call("_lose"))

    assert main(["runs", "show", run_id, "--json", "--store", str(path)]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["status"] == "uncertain"
    assert [action["tool_name"] for action in shown["uncertain"]] == ["_lose"]
    assert shown["history"][0]["record"]["work"] == [{"type": "inference", "prompt": "go"}]
    assert shown["history"][2]["decision"] == f"Prepare {run_id}.1"


@pytest.mark.parametrize("command", ["list", "show"])
def test_foreign_text_cannot_touch_the_terminal(command: str, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, prompts, questions and replies are written by others; what would move the cursor appears as an escape."""
    nasty = "a\x1b]0;title\x07b\r\u202ec\nd"
    run_id = _store(path, call("ask_user", question=nasty), prompt=nasty)
    arguments = ["runs", command, "--store", str(path), *([run_id] if command == "show" else [])]

    assert main(arguments) == 0

    printed = capsys.readouterr().out.replace("\n", "")
    assert "clerk" in printed
    assert all(character.isprintable() for character in printed)


def test_pruning_says_what_it_deletes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --dry-run nothing goes, and what waits for somebody stays in both cases."""
    done, paused = _store(path), _store(path, call("ask_user", question="Which?"))

    def prune(*options: str) -> str:
        assert main(["runs", "prune", "--store", str(path), *options]) == 0
        return capsys.readouterr().out

    assert done in (planned := prune("--keep", "0", "--dry-run"))
    assert planned.endswith("would be deleted: 1\n")
    assert prune("--older-than", "1d").endswith("deleted: 0\n")
    assert prune("--older-than", "0s").endswith("deleted: 1\n")
    assert paused in prune("--keep", "0", "--status", "paused", "--dry-run")


REFUSED: dict[str, list[str]] = {
    "no such run": ["show", "missing"],
    "no limit": ["prune"],
    "no such status": ["list", "--status", "waiting"],
    "nothing to settle": ["reconcile", "missing", "missing", "--not-happened"],
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_done_is_refused_with_a_reason(
    case: str, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line on stderr, nothing on stdout, and the exit code 1."""
    _store(path)

    code = main(["runs", *REFUSED[case], "--store", str(path)])

    told = capsys.readouterr()
    assert (code, told.out) == (1, "")
    assert told.err.startswith("protolink: ")
    assert told.err.count("\n") == 1


def test_a_store_that_is_not_there_is_not_created(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt path must not look like an empty store."""
    assert main(["runs", "list", "--store", str(path)]) == 1
    assert "there is no store" in capsys.readouterr().err
    assert not path.exists()


def test_a_file_that_is_no_store_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And it stays as it is."""
    path.write_text("no database")

    assert main(["runs", "list", "--store", str(path)]) == 1
    assert capsys.readouterr().err.startswith("protolink: ")
    assert path.read_text() == "no database"


MISUNDERSTOOD: dict[str, list[str]] = {
    "nothing": [],
    "no command": ["runs"],
    "no store": ["runs", "list"],
    "an unknown command": ["runs", "restart", "--store", "x"],
    "no agent": ["runs", "resume", "r", "--store", "x"],
    "an agent without an attribute": ["runs", "resume", "r", "--store", "x", "--agent", "app"],
    "an agent that is a program": ["runs", "resume", "r", "--store", "x", "--agent", "app:f()"],
    "no JSON": ["runs", "reconcile", "r", "a", "--store", "x", "--result", "yes"],
    "no outcome": ["runs", "reconcile", "r", "a", "--store", "x"],
    "two outcomes": ["runs", "reconcile", "r", "a", "--store", "x", "--result", "1", "--not-happened"],
    "two answers": ["runs", "resume", "r", "--store", "x", "--agent", "a:b", "--approve", "--answer", "1"],
    "no age": ["runs", "prune", "--store", "x", "--older-than", "soon"],
    "a negative count": ["runs", "prune", "--store", "x", "--keep", "-1"],
    "an empty list": ["runs", "list", "--store", "x", "--limit", "0"],
}


@pytest.mark.parametrize("case", MISUNDERSTOOD)
def test_what_is_not_understood_is_a_usage_error(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The exit code 2, before any file is looked at."""
    with pytest.raises(SystemExit) as raised:
        main(MISUNDERSTOOD[case])

    assert raised.value.code == 2
    assert "usage:" in capsys.readouterr().err


class Terminal(io.StringIO):
    """Something that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_table_and_markup_in_a_cell_stays_text() -> None:
    """What others wrote is shown, not obeyed, by the table too."""
    out = Terminal()

    write_table(out, ("NAME",), [("[bold red]x[/]",)])

    assert "[bold red]x[/]" in out.getvalue()


def test_without_the_extra_a_terminal_gets_columns(interpreter: Callable[[str], str]) -> None:
    """The base package needs nothing beside itself."""
    program = "\n".join(
        (
            "import sys",
            "sys.modules['rich'] = sys.modules['rich.console'] = None",
            "sys.stdout.isatty = lambda: True",
            "from protolink.cli.tables import write_table",
            "write_table(sys.stdout, ('A', 'B'), [('long', 'x')])",
        )
    )

    assert interpreter(program) == "A     B\nlong  x\n"


def test_help_loads_no_database(interpreter: Callable[[str], str]) -> None:
    """A shell completes and explains at once."""
    program = "\n".join(
        (
            "import contextlib, sys",
            "from protolink.cli import main",
            "with contextlib.suppress(SystemExit): main(['runs', 'list', '--help'])",
            "print('LOADED', sorted({'sqlite3', 'asyncio', 'pydantic'} & set(sys.modules)))",
        )
    )

    assert interpreter(program).splitlines()[-1] == "LOADED []"
