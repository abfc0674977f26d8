"""What others wrote, on a terminal: a hundred payloads in every place that a command shows, on a real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from protolink import Agent, CapabilityPolicy, RunContext, SQLiteDurableStore, Task
from protolink.testing import call
from protolink.tools import ask_user
from tests.support import model

STARTS = ["", "safe", "\r", "\n", "a\tb"]
CONTROLS = [
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x1b]2;title\x1b\\", "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "\x1b]52;c;cm0gLXJm\x07", "\x9b31mred", "\x90q\x9c", "\b\b\b\bEVIL", "\x07\x07", "\u202egnp.exe", "\u2066a\u2069b",
    "a\u200bb", "\x0e\x0f", "\x7f", "\x1bc", "\x1b[?1049h", "\x1bP+q544e\x1b\\", "\x85next", "[link=http://evil]ok[/link]",
    "[bold red]ok[/]",
]  # fmt: skip
PAYLOADS = [f"{start}{control}{number}" for number, control in enumerate(CONTROLS) for start in STARTS]
"""A hundred."""

STYLE = re.compile(rb"\x1b\[[0-9;]*m")
"""What a table may use itself: bold, and its end."""


async def stored(path: Path) -> list[str]:
    """A store with the payloads as names, prompts, questions, arguments, replies and errors; the runs' ids."""
    ids: list[str] = []
    for text in PAYLOADS:
        log = SQLiteDurableStore(path)

        def fails(text: str) -> str:
            """Fail."""
            raise ValueError(text)

        turns: list[Any] = [call(f"no {text}", text=text), call("fails", text=text)]
        policy = CapabilityPolicy({"ask": "allow"})
        script = turns if len(ids) % 2 else [text, text] if len(ids) % 3 else [call("ask_user", question=text)]
        agent = Agent(name=f"n{text}", llm=model(*script), tools=[ask_user, fails], durability=log, policy=policy)
        task = await agent.run_task(Task.create_infer(text, context=RunContext(session_id=f"s{text}")))
        ids.append(RunContext.from_task(task).run_id)
        await log.log.close()
    return ids


COMMANDS = "import json, sys; from protolink.cli import main; [main(command) for command in json.loads(sys.argv[1])]"


def on_a_terminal(commands: list[list[str]]) -> bytes:
    """What commands write to a terminal of their own."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "400", "LINES": "50"}
    program = [sys.executable, "-c", COMMANDS, json.dumps(commands)]
    process = subprocess.Popen(program, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    written = bytearray()
    with contextlib.suppress(OSError):  # how a terminal says that nobody has it open any more
        while chunk := os.read(ours, 65_536):
            written += chunk
    os.close(ours)
    assert process.wait() == 0
    return bytes(written)


@pytest.mark.time_limit(120)
async def test_c09_a_hundred_payloads_leave_a_terminal_as_it_was(tmp_path: Path) -> None:
    """Neither the cursor nor the title nor anything else of it is touched, and markup is shown as it was written."""
    path = tmp_path / "runs.sqlite"
    ids = await stored(path)
    commands = [["list", "--limit", "200"], ["prune", "--keep", "0", "--dry-run"]]
    commands += [["show", run_id] for run_id in (*ids[::20], *ids[1::20], *ids[-10:], "\x1b]0;title\x07")]
    written = await asyncio.to_thread(on_a_terminal, [["runs", *command, "--store", str(path)] for command in commands])

    text = STYLE.sub(b"", written).decode()
    assert len(PAYLOADS) == 100
    assert not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f]", text)
    assert not re.search("\r(?!\n)", text)
    assert "[link=http://evil]ok[/link]" in text
    assert "\\x1b]0;title\\x07" in text
