"""Rules of this repository that no linter knows, checked on the syntax tree.

Run it as a program to see what is wrong with the repository; the tests call `findings` themselves.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

ALLOWED: Mapping[str, frozenset[str]] = {
    # A SQLite connection belongs to one thread for as long as the store is open; a pool's threads come and go.
    "src/protolink/durable/engine.py": frozenset({"threading.Thread"}),
    # Weights are freed when no run is at work, so there is no worker of an agent to do it.
    "src/protolink/llms/local.py": frozenset({"run_in_executor"}),
    # A blocking look at a store has to leave the event loop that it may have been called on.
    "src/protolink/durable/store.py": frozenset({"concurrent.futures.ThreadPoolExecutor"}),
    # The package's own modules, from a table that is written there; and what a person names on the command line.
    "src/protolink/__init__.py": frozenset({"importlib.import_module"}),
    "src/protolink/storage/__init__.py": frozenset({"importlib.import_module"}),
    "src/protolink/cli/runs.py": frozenset({"importlib.import_module"}),
    "src/protolink/llms/create.py": frozenset({"importlib.import_module"}),
    # An SDK, by the name that its adapter's class has for it.
    "src/protolink/llms/remote.py": frozenset({"importlib.import_module"}),
}
"""Exceptions: a file, relative to the root, and the names that it may use all the same. Each needs a comment.

A rule of security has none: what it finds stays a finding, whatever is listed here."""

WORLD_OWNERS = ("src/protolink/_environment.py", "src/protolink/_runtime/threads.py", "src/protolink/testing/")
"""Who may reach for clocks, randomness, identifiers, sleep and threads; everyone else is given them."""

WORLD = frozenset(
    {
        "_thread",
        "asyncio.sleep",
        "asyncio.to_thread",
        "concurrent.futures.ProcessPoolExecutor",
        "concurrent.futures.ThreadPoolExecutor",
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "os.getrandom",
        "os.urandom",
        "random",
        "secrets",
        "threading.Thread",
        "threading.Timer",
        "time",
        "uuid.getnode",
        "uuid.uuid1",
        "uuid.uuid4",
    }
)

# Loading data never runs anything, and no string becomes a program or a shell command.
UNSAFE = frozenset(
    {
        "_pickle",
        "asyncio.create_subprocess_shell",
        "builtins.__import__",
        "builtins.compile",
        "builtins.eval",
        "builtins.exec",
        "cloudpickle",
        "code",
        "codeop",
        "copyreg",
        "dill",
        "jinja2",
        "joblib",
        "jsonpickle",
        "marshal",
        "msgpack",
        "os.popen",
        "os.system",
        "pickle",
        "pkgutil.resolve_name",
        "pydoc.locate",
        "runpy",
        "shelve",
        "ssl.CERT_NONE",
        "ssl._create_unverified_context",
        "subprocess.getoutput",
        "subprocess.getstatusoutput",
        "tempfile.mktemp",
        "yaml.full_load",
        "yaml.full_load_all",
        "yaml.load",
        "yaml.load_all",
        "yaml.unsafe_load",
        "yaml.unsafe_load_all",
    }
)
UNSAFE_BUILTINS = frozenset({"__import__", "compile", "eval", "exec", "print"})
UNSAFE_KEYWORDS = {
    "allow_pickle": True,
    "autoescape": False,
    "check_hostname": False,
    "shell": True,
    "trust_env": True,
    "verify": False,
}
# A module by its name is a decision of the program, never of data.
IMPORTS_BY_NAME = frozenset({"importlib.import_module", "importlib.util.spec_from_file_location"})
# Ways from a text to markup, in Python that writes pages and in pages themselves.
HTML_SINKS = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|srcdoc|dangerouslySetInnerHTML")

SQL = re.compile(
    r"\s*(SELECT\s|INSERT\s+(OR\s+\w+\s+)?INTO\s|UPDATE\s|DELETE\s+FROM\s|REPLACE\s+INTO\s|WITH\s+\w+\s+AS\s"
    r"|CREATE\s|ALTER\s|DROP\s|PRAGMA\s|ATTACH\s)"
)
NUMBERED = re.compile(SQL.pattern + r".*\?\d", re.DOTALL)
SQL_METHODS = frozenset({"execute", "executemany", "executescript"})

# Written in halves, so that this list is not found by itself.
FORBIDDEN_WORDS = tuple(
    "".join(halves)
    for halves in (
        ("/wo", "rk/"),
        ("/ro", "ot/"),
        ("/ho", "me/"),
        (".py", "env"),
        ("pypi", ".org"),
        ("python", "hosted.org"),
        ("npm", "js.org"),
        ("proxy.", "golang.org"),
        ("Cla", "ude"),
        ("Chat", "GPT"),
        ("Copi", "lot"),
        ("Co-Author", "ed-By"),
    )
)
WORDS = re.compile("|".join(rf"(?<!\w){re.escape(word)}" for word in FORBIDDEN_WORDS), re.IGNORECASE)

NOT_OURS = frozenset({"__pycache__", "build", "dist", "node_modules", "site"})
OUR_HIDDEN = frozenset({".ci", ".github"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One place that breaks a rule."""

    path: str
    """The file, relative to the root, with forward slashes."""

    line: int
    """Where in the file, counted from one."""

    name: str
    """What was found, in the spelling that the list of exceptions uses."""

    reason: str
    """What to do instead, for the person who reads the complaint."""

    of_security: bool = False
    """Whether no exception can be made."""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}: {self.reason}"


def findings(root: Path = ROOT, allowed: Mapping[str, frozenset[str]] = ALLOWED) -> list[Finding]:
    """Everything in the tree under `root` that breaks a rule, and every exception that is no longer needed."""
    found: list[Finding] = []
    used: set[tuple[str, str]] = set()
    for finding in _everything(root):
        if not finding.of_security and finding.name in allowed.get(finding.path, frozenset()):
            used.add((finding.path, finding.name))
        else:
            found.append(finding)
    for path, names in allowed.items():
        found += [
            Finding(path=path, line=1, name=name, reason="is allowed but not used; remove the exception")
            for name in sorted(names)
            if (path, name) not in used
        ]
    return found


def _everything(root: Path) -> Iterator[Finding]:
    for file in _files(root):
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not a text
        path = file.relative_to(root).as_posix()
        yield from _words(path, text)
        if path.startswith("src/"):
            yield from _markup(path, text)
        if file.suffix == ".py":
            module = _Module(root, path, text)
            for rule in _RULES:
                yield from rule(module)


def _files(folder: Path) -> Iterator[Path]:
    """The files that belong to the repository: no caches, no environments, nothing that was built."""
    for entry in sorted(folder.iterdir()):
        if entry.is_dir():
            hidden = entry.name.startswith(".") and entry.name not in OUR_HIDDEN
            if not (hidden or entry.name in NOT_OURS or entry.name.endswith(".egg-info")):
                yield from _files(entry)
        elif entry.is_file() and entry.name != ".git":  # a file in a second working tree
            yield entry


def _markup(path: str, text: str) -> Iterator[Finding]:
    reason = "a page shows text through textContent"
    for number, line in enumerate(text.splitlines(), 1):
        for match in HTML_SINKS.finditer(line):
            yield Finding(path=path, line=number, name=match[0], reason=reason, of_security=True)


def _words(path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        for match in WORDS.finditer(line):
            yield Finding(path=path, line=number, name=match[0], reason="does not belong in the repository")


class _Module:
    """One parsed file, which can say what a name in it stands for."""

    def __init__(self, root: Path, path: str, text: str) -> None:
        self.root = root
        self.path = path
        self.text = text
        self.tree = ast.parse(text, filename=path)
        self.in_source = path.startswith("src/")
        self._imported: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    self._imported[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    self._imported[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def imports(self) -> Iterator[tuple[ast.stmt, str]]:
        """Every import statement with each full name that it brings in."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield node, alias.name
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for alias in node.names:
                    yield node, f"{node.module}.{alias.name}"

    def dotted(self, node: ast.expr) -> str | None:
        """What `node` refers to, such as `time.monotonic`, if it comes from an import."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id)
        if isinstance(node, ast.Attribute) and (owner := self.dotted(node.value)):
            return f"{owner}.{node.attr}"
        return None

    def references(self) -> Iterator[tuple[ast.expr, str]]:
        """Every use of an imported name, in its longest form only."""
        inner = {id(node.value) for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner and (name := self.dotted(node)):
                yield node, name

    def finding(self, node: ast.stmt | ast.expr, name: str, reason: str, *, of_security: bool = False) -> Finding:
        return Finding(path=self.path, line=node.lineno, name=name, reason=reason, of_security=of_security)

    def breach(self, node: ast.stmt | ast.expr, name: str, reason: str) -> Finding:
        return self.finding(node, name, reason, of_security=True)


def _is_within(name: str, names: frozenset[str]) -> bool:
    """Whether `name`, or a module or class that it belongs to, is one of `names`."""
    parts = name.split(".")
    return any(".".join(parts[:length]) in names for length in range(1, len(parts) + 1))


_ZERO = ast.dump(ast.Constant(0))


def _world(module: _Module) -> Iterator[Finding]:
    if not module.in_source or module.path.startswith(WORLD_OWNERS):
        return
    # `asyncio.sleep(0)` waits for nobody's clock: it lets other tasks have their turn.
    turns = {
        id(node.func)
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and [ast.dump(argument) for argument in node.args] == [_ZERO]
    }
    for use, name in module.references():
        if _is_within(name, WORLD) and not (name == "asyncio.sleep" and id(use) in turns):
            yield module.finding(use, name, "time, randomness, identifiers and threads come from the environment")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "run_in_executor":
            yield module.finding(node, node.attr, "threads come from the runtime's own limited pool")


def _unsafe(module: _Module) -> Iterator[Finding]:
    if not module.in_source:
        return
    for statement, name in module.imports():
        if _is_within(name, UNSAFE):
            yield module.breach(statement, name, "loading data must not be able to run anything")
    for use, name in module.references():
        if name in UNSAFE:
            yield module.breach(use, name, "loading data must not be able to run anything")
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in UNSAFE_BUILTINS:
            yield module.breach(node, node.id, "the library runs no text as code and prints nothing")
        elif isinstance(node, ast.Assert):
            yield module.breach(node, "assert", "raise an error: assertions vanish under `python -O`")
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in UNSAFE_KEYWORDS and _has_value(keyword.value, UNSAFE_KEYWORDS[keyword.arg]):
                    name = f"{keyword.arg}={UNSAFE_KEYWORDS[keyword.arg]}"
                    yield module.breach(node, name, "a shell or an unverified peer is an open door")
        elif isinstance(node, ast.Assign) and _has_value(node.value, False):
            for target in node.targets:
                if isinstance(target, ast.Attribute) and target.attr in UNSAFE_KEYWORDS:
                    yield module.breach(node, f"{target.attr}=False", "an unverified peer is an open door")


def _imports_by_name(module: _Module) -> Iterator[Finding]:
    if module.in_source:
        # A name that stands right there, as for a module without types, is as good as an import statement.
        written = {
            id(node.func)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and not node.keywords and [*map(_may_be_imported, node.args)] == [True]
        }
        for use, name in module.references():
            if name in IMPORTS_BY_NAME and id(use) not in written:
                yield module.finding(use, name, "which module is loaded is written in the program, never in data")


def _may_be_imported(name: ast.expr) -> bool:
    return isinstance(name, ast.Constant) and isinstance(name.value, str) and not _is_within(name.value, UNSAFE)


def _has_value(node: ast.expr, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is not None and bool(node.value) is value


def _sql(module: _Module) -> Iterator[Finding]:
    if not module.in_source:
        return
    suspects: dict[tuple[int, int], ast.expr] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in SQL_METHODS and node.args and _is_composed(node.args[0]):
                suspects[node.args[0].lineno, node.args[0].col_offset] = node.args[0]
            elif _is_composed(node) and _starts_as_sql(node):
                suspects[node.lineno, node.col_offset] = node
        elif isinstance(node, ast.JoinedStr | ast.BinOp) and _is_composed(node) and _starts_as_sql(node):
            suspects[node.lineno, node.col_offset] = node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and NUMBERED.match(node.value):
            yield module.finding(node, "numbered parameter", "Python 3.14 refuses ?1 with a sequence; write ? or :name")
    for node in suspects.values():
        yield module.breach(node, "composed SQL", "a statement is a constant; values are bound as parameters")


def _is_composed(node: ast.expr) -> bool:
    """Whether the text that `node` makes depends on anything but what is written there."""
    match node:
        case ast.JoinedStr():
            return any(isinstance(part, ast.FormattedValue) for part in node.values)
        case ast.BinOp(op=ast.Mod(), left=left):
            return _first_text(left) is not None
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            pieces = (left, right)
            return any(_first_text(piece) is not None for piece in pieces) and not all(map(_is_constant, pieces))
        case ast.Call(func=ast.Attribute(attr="format" | "join" | "replace", value=value)):
            return _first_text(value) is not None
        case _:
            return False


def _is_constant(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_constant(node.left) and _is_constant(node.right)
    return isinstance(node, ast.Constant) or (isinstance(node, ast.JoinedStr) and not _is_composed(node))


def _starts_as_sql(node: ast.expr) -> bool:
    text = _first_text(node)
    return text is not None and SQL.match(text) is not None


def _first_text(node: ast.expr) -> str | None:
    """The text that `node` begins with, if it is written in the source."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=[first, *_]):
            return _first_text(first)
        case ast.BinOp(left=left):
            return _first_text(left)
        case ast.Call(func=ast.Attribute(value=value)):
            return _first_text(value)
        case _:
            return None


def _package_root(module: _Module) -> Iterator[Finding]:
    """`from protolink import Agent` inside the package would go around the layers that import-linter checks."""
    if not module.path.startswith("src/protolink/") or module.path == "src/protolink/__init__.py":
        return
    package = module.root / "src" / "protolink"
    depth = module.path.count("/") - 1
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            absolute = node.module == "protolink" and not node.level
            if absolute or (node.module is None and node.level == depth):
                for alias in node.names:
                    is_module = (package / alias.name).is_dir() or (package / f"{alias.name}.py").is_file()
                    if not is_module and alias.name != "__version__":
                        name = f"protolink.{alias.name}"
                        yield module.finding(node, name, "inside the package, import from the module that defines it")


def _mocks(module: _Module) -> Iterator[Finding]:
    reason = "a double is a real implementation with a simple inside; see protolink.testing"
    for node, name in module.imports():
        if _is_within(name, frozenset({"mock", "unittest.mock"})):
            yield module.finding(node, "unittest.mock", reason)


LONGEST_FUNCTION = 60
"""Lines of logic: no signature, no docstrings, no comments, nothing blank."""


def _length(module: _Module) -> Iterator[Finding]:
    if module.path.startswith("tests/"):
        return
    lines = module.text.splitlines()
    empty = {number for number, line in enumerate(lines, 1) if not line.strip() or line.lstrip().startswith("#")}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            own = set(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)) - empty
            length = len(own - {line for inner in ast.walk(node) for line in _text_lines(inner)})
            if length > LONGEST_FUNCTION:
                reason = f"has {length} lines of logic; a function is one thought, of {LONGEST_FUNCTION} at the most"
                yield module.finding(node, node.name, reason)


def _text_lines(node: ast.AST) -> range:
    """The lines of a text that stands for itself: a docstring, of an attribute too."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(0)


_RULES: tuple[Callable[[_Module], Iterator[Finding]], ...] = (
    _world,
    _unsafe,
    _imports_by_name,
    _sql,
    _package_root,
    _mocks,
    _length,
)


def main() -> int:
    found = findings()
    for finding in found:
        print(finding)
    print(f"static check: {len(found)} findings" if found else "static check: nothing found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
