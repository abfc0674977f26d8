"""The libraries that are compared, and a virtual environment for each, made once in `.compare/`."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["LIBRARIES", "ROOT", "Library", "interpreter"]

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".compare"
REQUIREMENTS: Final = Path(__file__).with_name("requirements")


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Another library, by the name that people know it under."""

    name: str
    """Names its file in `requirements` and, with underscores, its module in `adapters`."""

    packages: tuple[str, ...]
    """What is installed where somebody asks for another version; the version is that of the first one."""

    def requirements(self, version: str | None = None) -> str:
        """The versions that the documentation was tried with, or the ones that pip chooses for another version."""
        if version is None:
            return (REQUIREMENTS / f"{self.name}.txt").read_text(encoding="utf-8")
        first, *others = self.packages
        return "\n".join([f"{first}=={version}", *others, ""])


LIBRARIES: Final[Mapping[str, Library]] = {
    library.name: library
    for library in (
        Library(name="pydantic-ai", packages=("pydantic-ai-slim",)),
        Library(name="openai-agents", packages=("openai-agents",)),
        Library(name="langgraph", packages=("langgraph", "langchain", "langgraph-checkpoint-sqlite")),
    )
}


def interpreter(library: Library, version: str | None = None) -> Path:
    """The Python of an environment that has the library. One that is there for the same requirements is taken."""
    requirements = library.requirements(version)
    digest = hashlib.sha256(f"{platform.python_version()}\n{requirements}".encode()).hexdigest()[:12]
    folder = CACHE / f"{library.name}-{digest}"
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = folder / "requirements.txt"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, symlinks=os.name != "nt")
        half = folder / "requirements.half.txt"
        half.write_text(requirements, encoding="utf-8")
        _install(python, ["--requirement", str(half)])
        half.rename(ready)  # the last thing, so that half an installation is made anew
    return python


def _install(python: Path, arguments: Sequence[str]) -> None:
    """By the pip of this environment, so that the new one needs none. Modules are compiled when they are imported."""
    options = ["--quiet", "--no-compile", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", *options, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stderr}")
