"""Processes to be killed: forked from one that has loaded everything already, so that a death costs milliseconds.

The host runs `python -m tests.reliability.host`, has no threads and no event loop, and forks a child for each
program that it is asked to run. A child talks with the test over two pipes, a line at a time.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.reliability.scale import scaled

PATIENCE_SECONDS = scaled(commit=60, short=180, full=2 * 3600)
"""How long a test waits for a line before it gives up; never a part of a claim."""

ROOT = Path(__file__).resolve().parent.parent.parent


class Line:
    """A process's end of the two pipes."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads = reads
        self._writes = writes
        self._buffer = b""
        self._is_closed = False

    def say(self, value: Any) -> None:
        """Send one value."""
        data = json.dumps(value).encode() + b"\n"
        while data:
            data = data[os.write(self._writes, data) :]

    def hear(self, patience: float | None = None) -> Any:
        """Wait for one value. Raises `EOFError` when the other end is gone, and `TimeoutError`."""
        while b"\n" not in self._buffer:
            if self._is_closed:
                raise EOFError
            if patience is not None and not select.select([self._reads], [], [], patience)[0]:
                raise TimeoutError("nothing was said")
            data = os.read(self._reads, 65_536)
            if not data:
                self.close()  # a test may start thousands of processes, and keep them all
                raise EOFError
            self._buffer += data
        first, self._buffer = self._buffer.split(b"\n", 1)
        return json.loads(first)

    def ask(self, value: Any) -> Any:
        """Say something and wait for the answer. The event loop waits as well."""
        self.say(value)
        return self.hear()

    def close(self) -> None:
        """Hang up."""
        if not self._is_closed:
            self._is_closed = True
            os.close(self._reads)
            os.close(self._writes)


class Process:
    """One child of the host, as the test sees it."""

    def __init__(self, host: Host, pid: int, line: Line) -> None:
        self._host = host
        self.pid = pid
        self.line = line
        self.status: int | None = None

    def hear(self) -> Any:
        """What the process says next. Raises `EOFError` where it has ended."""
        return self.line.hear(PATIENCE_SECONDS)

    def tell(self, value: Any = None) -> None:
        """Answer it."""
        self.line.say(value)

    def until(self, wanted: Any) -> None:
        """Answer everything that it says before `wanted`, which stays unanswered."""
        while (said := self.hear()) != wanted:
            self.tell()
            assert not (isinstance(said, dict) and "end" in said), f"the process ended without saying {wanted!r}"

    def end(self) -> Any:
        """Answer everything that it says, and give its last word."""
        while True:
            said = self.hear()
            if isinstance(said, dict) and "end" in said:
                self.wait()
                self.line.close()
                return said["end"]
            self.tell()

    def signal(self, number: int) -> None:
        """Send a signal to this process and no other."""
        if self.status is None:
            self._host.signal(self.pid, number)

    def kill(self) -> None:
        """Kill it and wait until it is gone."""
        self.signal(signal.SIGKILL)
        assert self.wait() == -signal.SIGKILL

    def wait(self) -> int:
        """Its exit status; minus the signal that ended it."""
        if self.status is None:
            self.status = self._host.wait(self.pid)
        return self.status


class Host:
    """The process that forks. Use it as a context manager.

    `prefix` is a command that starts the host's command, and `preload` a library that the host and its children load.
    """

    def __init__(self, *, prefix: Sequence[str] = (), preload: Path | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [*prefix, sys.executable, "-m", "tests.reliability.host", str(theirs.fileno())]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
        if preload is not None:
            environment["LD_PRELOAD"] = str(preload)
        self._channel = ours
        self._server = subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()])
        self._children: list[Process] = []
        theirs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
        self._channel.close()
        self._server.wait(PATIENCE_SECONDS)

    def start(self, program: str, **arguments: Any) -> Process:
        """Run a function of `programs` in a process of its own."""
        child_reads, we_write = os.pipe()
        we_read, child_writes = os.pipe()
        request = json.dumps({"start": program, "arguments": arguments}).encode()
        socket.send_fds(self._channel, [request], [child_reads, child_writes])
        os.close(child_reads)
        os.close(child_writes)
        process = Process(self, int(self._channel.recv(64)), Line(we_read, we_write))
        self._children.append(process)
        return process

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to a child. The host does it, for the number may mean another process here."""
        self._channel.send(json.dumps({"signal": number, "pid": pid}).encode())
        self._channel.recv(64)

    def wait(self, pid: int) -> int:
        """The exit status of a child."""
        self._channel.send(json.dumps({"wait": pid}).encode())
        return int(self._channel.recv(64))

    def clear(self) -> None:
        """End every child that is left."""
        for process in self._children:
            if process.status is None:
                process.signal(signal.SIGKILL)
                process.wait()
            process.line.close()
        self._children.clear()


def serve(channel: socket.socket) -> None:
    """Fork a child for each request, until the test closes the channel."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 65_536, 2)
        if not data:
            return
        request = json.loads(data)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            channel.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        if "signal" in request:
            os.kill(request["pid"], request["signal"])
            channel.send(b"0")
            continue
        pid = os.fork()
        if pid == 0:
            channel.close()
            _run(request["start"], request["arguments"], Line(*descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
        channel.send(str(pid).encode())


def _run(name: str, arguments: dict[str, Any], line: Line) -> None:
    """Be the child. Never returns."""
    from tests.reliability import programs

    status = 1
    try:
        ended = asyncio.run(getattr(programs, name)(line, **arguments))
        line.say({"end": ended})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    from tests.reliability.programs import warm_up

    # What a shell starts in the background ignores it, and so would every child.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(warm_up())
    serve(socket.socket(fileno=int(sys.argv[1])))
