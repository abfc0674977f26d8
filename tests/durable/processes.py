"""Other processes for tests of the store: programs that say what they do over pipes, and are killed on the way."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

PRELUDE = """
import asyncio, os, signal, sqlite3, sys
from protolink.durable.sqlite import SQLiteRecordLog
from protolink.errors import *
from protolink.testing.record_log import run_info, stored_rows

path = sys.argv[1]
asyncio.run(asyncio.sleep(0))  # whatever asyncio loads late is loaded now


def say(word):
    os.write(1, f"{word}\\n".encode())


def wait():
    return sys.stdin.readline()


def children(count, work):
    \"\"\"Fork children that begin together, and give what each returned.\"\"\"
    gate, opened = os.pipe()
    pids = []
    for number in range(count):
        if (pid := os.fork()) == 0:
            code = 99
            try:
                os.close(opened)
                os.read(gate, 1)
                code = asyncio.run(work(number))
            finally:
                os._exit(code)
        pids.append(pid)
    os.close(gate)
    os.close(opened)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
"""


class Program:
    """A running program, which is told and tells one line at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def hears(self) -> str:
        """The next line that the program says; empty when it has ended."""
        stdout = self._process.stdout
        assert stdout is not None
        return stdout.readline().strip()

    def tell(self, word: str = "") -> None:
        """Let it go on from its `wait()`."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(f"{word}\n")
        stdin.flush()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def stop(self, signal: int) -> None:
        """Send a signal that stops it, and wait until it has stopped."""
        os.kill(self.pid, signal)
        os.waitpid(self.pid, os.WUNTRACED)


@contextmanager
def running(program: str, *arguments: object, prelude: str = PRELUDE) -> Generator[Program]:
    """A program in an interpreter of its own, killed at the end of the block at the latest."""
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", prelude + program, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


def said_by(program: str, *arguments: object) -> list[str]:
    """All lines of a program that runs to its end."""
    with running(program, *arguments) as started:
        lines: list[str] = []
        while line := started.hears():
            lines.append(line)
        return lines
