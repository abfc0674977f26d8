"""Builds the distributions, looks into them, and uses the wheel as somebody does who has nothing else.

python scripts/package_check.py [VERSION ...]    with these Pythons, such as 3.12; by default with all that are here
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import tomllib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.docs.test_examples import Program, programs  # noqa: E402 - the root is not on the path of a script

PYTHON = "Programming Language :: Python :: 3."
METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
BEFORE_SERVING = "\n# A server would"


class PackageError(Exception):
    """A distribution that is not what it has to be."""


def main() -> int:
    wanted = sys.argv[1:] or versions()
    found = interpreters(wanted)
    try:
        with tempfile.TemporaryDirectory() as folder:
            wheel = built(Path(folder))
            with ThreadPoolExecutor() as pool:  # an installer waits for the network most of the time
                folders = (Path(folder) / version for version in found)
                list(pool.map(partial(installed, wheel), found.values(), folders))
    except PackageError as error:
        print(error)
        return 1
    missing = [version for version in wanted if version not in found]
    print(f"the wheel works with Python {', '.join(found)}" + (f"; not here: {', '.join(missing)}" if missing else ""))
    return 0 if found else 1


def versions() -> list[str]:
    """The Pythons that the package says it is for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [f"3.{word.removeprefix(PYTHON)}" for word in project["classifiers"] if word.startswith(PYTHON)]


def interpreters(wanted: list[str]) -> dict[str, str]:
    """Those of the wanted Pythons that can be started here."""
    found: dict[str, str] = {}
    for version in wanted:
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            found[version] = sys.executable
            continue
        # Where pyenv puts the names on the path, it starts only a version that was chosen; others ignore the variable.
        chosen = {**os.environ, "PYENV_VERSION": version}
        program = "import sys; print(sys.executable)"
        try:
            asked = subprocess.run([f"python{version}", "-c", program], env=chosen, capture_output=True, text=True)
        except FileNotFoundError:
            continue
        if asked.returncode == 0:
            found[version] = asked.stdout.strip()
    return found


def built(folder: Path) -> Path:
    """The wheel, when both distributions are in order."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", ROOT)
    (archive,), (wheel,) = (sorted((folder / "dist").glob(pattern)) for pattern in ("*.tar.gz", "*.whl"))
    run(sys.executable, "-m", "twine", "check", "--strict", archive, wheel)
    require_the_tree(wheel)
    # `build` made that wheel from the sdist. From the tree it has to be the same, to the byte.
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder / "again", ROOT)
    if (folder / "again" / wheel.name).read_bytes() != wheel.read_bytes():
        raise PackageError("the sdist does not build the wheel that the tree builds")
    with tarfile.open(archive) as sdist:
        outside = [name for name in sdist.getnames() if not name.startswith(archive.name.removesuffix(".tar.gz") + "/")]
    if outside:
        raise PackageError(f"the sdist writes outside of its folder: {outside}")
    return wheel


def require_the_tree(wheel: Path) -> None:
    """Refuse a wheel that holds anything but the package, all of it, and what describes it."""
    source = ROOT / "src"
    tree = {
        path.relative_to(source).as_posix(): path.read_bytes()
        for path in (source / "protolink").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as content:
        packed = {name: content.read(name) for name in content.namelist()}
    described = {name: packed.pop(name) for name in sorted(packed) if ".dist-info/" in name}
    unlike = sorted(name for name in tree.keys() | packed.keys() if tree.get(name) != packed.get(name))
    if unlike or "protolink/py.typed" not in packed:
        raise PackageError(f"the wheel is not the tree: {', '.join(unlike) or 'py.typed is missing'}")
    kinds = sorted(name.partition(".dist-info/")[2] for name in described)
    if kinds != sorted(METADATA):
        raise PackageError(f"the wheel describes itself with {', '.join(kinds)}")


def installed(wheel: Path, interpreter: str, folder: Path) -> None:
    """Install the wheel alone, then with the extra `http`, and use each as the documentation does."""
    run(interpreter, "-m", "venv", folder / "venv")
    python = folder / "venv" / "bin" / "python"
    work = folder / "work"
    work.mkdir()
    check = ROOT / "scripts" / "installed_check.py"

    run(python, "-m", "pip", "install", "--quiet", wheel)
    for program in programs(ROOT / "README.md")[:2]:
        use(program, python, work)
    run(python, check, "base", at=work)

    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[http]")
    served = programs(ROOT / "docs" / "http-api.md")[0]
    use(served, python, work)
    application, mark, _ = served.source.partition(BEFORE_SERVING)
    if not mark:
        raise PackageError(f"docs/http-api.md has no {BEFORE_SERVING.strip()!r} behind its application")
    (work / "module.py").write_text(application, encoding="utf-8")
    run(python, check, "http", at=work)


def use(program: Program, python: Path, work: Path) -> None:
    """Run a program of the documentation as a script."""
    indented = textwrap.indent(program.source, "    ")
    (work / "program.py").write_text(f"import asyncio\n\nasync def main():\n{indented}\nasyncio.run(main())\n", "utf-8")
    printed = run(python, "-W", "error", "program.py", at=work)
    if printed != program.output:
        raise PackageError(f"{program.page.name}:{program.line} prints something else:\n{printed}")


def run(*command: str | Path, at: Path | None = None) -> str:
    """What a command prints. It sees nothing of this environment's own packages."""
    own = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise PackageError(f"{' '.join(map(str, command))}: code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
