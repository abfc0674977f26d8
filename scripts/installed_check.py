"""What holds where the package is installed from its wheel: run by `package_check.py` there, and by nobody here.

python installed_check.py base    the package and what it requires
python installed_check.py http    the extra `http` as well, in a folder with the documented application
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

INVOKE = "from protolink import Agent; Agent(name='a', llm='{}:m', verbosity=0).sync.invoke('Hello')"
USES = {
    "http": "import protolink.http",
    "prices": "from protolink import Agent; Agent(name='a', prices='published')",
    "local": "from protolink import create_llm; create_llm('local')",
    **{provider: INVOKE.format(provider) for provider in ("openai", "anthropic", "google", "ollama")},
}
"""For each extra a program that needs it."""

USES_BEHIND_HTTP = {
    "jwt": "from protolink.http import JWTAuthenticator as A; A('k', algorithms=['HS256'], audience='a')"
}


def main() -> int:
    complaints = list({"base": base, "http": http}[sys.argv[1]]())
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


def base() -> Iterator[str]:
    """What a program that was given nothing but the package can rely on."""
    yield from loaded_by("import protolink", allowed={"protolink"})
    use = "import protolink; [getattr(protolink, name) for name in protolink.__all__]"
    yield from loaded_by(use, allowed={"protolink", *required("pydantic")})
    yield from named(USES)
    yield from commands()


def named(uses: dict[str, str]) -> Iterator[str]:
    """Whether a program that needs an extra fails with words that say how to install it."""
    for extra, program in uses.items():
        failed = python("-c", program)
        if failed.returncode == 0 or f"pip install 'protolink[{extra}]'" not in failed.stderr:
            yield f"without the extra {extra}, {program!r} does not say what to install: {failed.stderr[-500:]}"


def loaded_by(program: str, *, allowed: set[str]) -> Iterator[str]:
    """Whether `program` imports no more than `allowed` and what Python has itself."""
    report = "import sys; print(*{name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names))"
    # What an installer's own hooks load at the start is in `sys.modules` before the first line.
    before, after = (set(python("-c", f"{part}\n{report}").stdout.split()) for part in ("pass", program))
    own = {module.replace("-", "_") for module in allowed}
    if foreign := after - before - own:
        yield f"{program!r} loads {', '.join(sorted(foreign))}"
    if "protolink" not in after:
        yield f"{program!r} does not even load protolink"


def required(package: str) -> set[str]:
    """A package with everything that it requires here, as the names of their modules."""
    names = {package}
    for requirement in importlib.metadata.requires(package) or ():
        if "extra ==" not in requirement:
            found = re.match(r"[\w.-]+", requirement)
            names |= required(found[0]) if found is not None and installed(found[0]) else set()
    return names


def installed(package: str) -> bool:
    try:
        importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def commands() -> Iterator[str]:
    """The command, in both of its spellings, over the store that the second program of the README has left."""
    for command in ((sys.executable, "-W", "error", "-m", "protolink"), (f"{sys.prefix}/bin/protolink",)):
        listed = run(*command, "runs", "list", "--store", "runs.sqlite", "--json")
        if listed.returncode != 0 or '"lead"' not in listed.stdout:
            yield f"{command[-1]} runs list: code {listed.returncode}, {listed.stdout[-300:]}{listed.stderr[-300:]}"


def http() -> Iterator[str]:
    """The documented application, served as documented: `uvicorn module:app`."""
    yield from named(USES_BEHIND_HTTP)
    command = [sys.executable, "-m", "uvicorn", "module:app", "--port", "0", "--timeout-graceful-shutdown", "5"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        log = ""
        while "Uvicorn running on" not in log and (line := server.stderr.readline()):
            log += line
        try:
            address = re.search(r"running on (\S+)", log)
            if address is None:
                yield f"uvicorn does not start: {log[-500:]}"
                return
            yield from ask(address[1])
        finally:
            server.terminate()
            log += server.stderr.read()
    if "Traceback" in log or "Application shutdown complete" not in log:
        yield f"uvicorn does not end well: {log[-500:]}"


def ask(address: str) -> Iterator[str]:
    """Start a run and follow it to its end."""
    body = json.dumps({"agent": "reader", "prompt": "Read the page."}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/x-ndjson"}
    request = urllib.request.Request(f"{address}/runs", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        events: list[dict[str, Any]] = [json.loads(line) for line in reply if line.strip()]
    if not events or events[-1]["type"] != "task.status" or events[-1]["payload"]["new_state"] != "completed":
        yield f"a run over HTTP does not complete: {events[-1:]}"


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-W", "error", *arguments)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


if __name__ == "__main__":
    sys.exit(main())
