"""Reads what a docstring says about parameters, in the three common styles."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from protolink._record import new_dict

__all__ = ["Docstring", "parse"]

_PARAMETERS = frozenset({"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"})
_PARAMETERS_TOO = frozenset({"other parameters", "other args", "other arguments"})
_RETURNS = frozenset({"returns", "return", "yields", "yield"})
# These end the description too: what follows them tells the caller's programmer something, not the model.
_OTHER = frozenset(
    {
        "attributes", "example", "examples", "exceptions", "note", "notes", "raises", "references", "see also", "todo",
        "warning", "warnings", "warns",
    }
)  # fmt: skip
_SECTIONS = _PARAMETERS | _PARAMETERS_TOO | _RETURNS | _OTHER

_GOOGLE_ITEM = re.compile(
    r"\*{0,2}(?P<name>[^\W\d]\w*)\s*(?:\([^()]*(?:\([^()]*\)[^()]*)*\))?\s*:(?:\s+|$)(?P<text>.*)"
)
_NUMPY_ITEM = re.compile(r"(?P<names>\*{0,2}[^\W\d]\w*(?:\s*,\s*\*{0,2}[^\W\d]\w*)*)\s*(?::.*)?")
_SPHINX_FIELD = re.compile(r":(?P<kind>[A-Za-z]+)(?P<middle>(?:\s+[^:\s][^:]*)?):(?:\s+|$)(?P<text>.*)")
_SPHINX_PARAMETERS = frozenset({"param", "parameter", "arg", "argument", "key", "keyword", "kwarg"})
_SPHINX_OTHER = frozenset({"type", "rtype", "raises", "raise", "except", "exception", "var", "ivar", "cvar", "vartype"})
_SPHINX_OTHERS = _SPHINX_OTHER | frozenset({"meta", "yield", "yields", "ytype"})
_LIST_MARK = re.compile(r"(?:[-*+•]|\d+[.)])\s")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring, taken apart."""

    summary: str
    """Everything before the first section: the first sentence and the longer description."""

    parameters: dict[str, str] = field(default_factory=new_dict)
    """What it says about each parameter it names, whether or not the function has one of that name."""

    returns: str | None = None
    """What it says about the result, or None when it says nothing."""


def parse(docstring: str | None) -> Docstring:
    """Take a docstring apart. Google, NumPy and Sphinx styles are understood, also mixed; nothing is raised.

    A docstring in no known style is all summary.
    """
    if not isinstance(docstring, str):  # a class may carry anything as its __doc__
        return Docstring("")
    found = _Found()
    lines = inspect.cleandoc(docstring).splitlines()
    at = 0
    while at < len(lines):
        at = found.take(lines, at)
    return Docstring("\n".join(found.summary).strip(), found.parameters, found.returns)


class _Found:
    """What has been read so far."""

    def __init__(self) -> None:
        self.summary: list[str] = []
        self.parameters: dict[str, str] = {}
        self.returns: str | None = None
        self._in_summary = True

    def take(self, lines: list[str], at: int) -> int:
        """Read the section or the line at `at`, and say where the next one begins."""
        line = lines[at]
        if numpy := _numpy_heading(lines, at):
            end = next((n for n in range(at + 2, len(lines)) if _numpy_heading(lines, n)), len(lines))
            self._section(numpy, lines[at + 2 : end], numpy=True)
            return end
        if google := _google_heading(lines, at):
            end = next((n for n in range(at + 1, len(lines)) if lines[n][:1].strip()), len(lines))
            self._section(google, lines[at + 1 : end], numpy=False)
            return end
        if sphinx := _sphinx_field(line):
            end = at + 1
            while end < len(lines) and (lines[end][:1].isspace() or (lines[end] and not _starts_section(lines, end))):
                end += 1
            self._sphinx(sphinx, lines[at + 1 : end])
            return end
        if self._in_summary:
            self.summary.append(line)
        return at + 1

    def _section(self, heading: str, body: list[str], *, numpy: bool) -> None:
        if heading in _PARAMETERS or heading in _PARAMETERS_TOO:
            self._in_summary = False
            for names, text in _numpy_items(body) if numpy else _google_items(body):
                for name in names:
                    self.parameters.setdefault(name, text)
        elif heading in _RETURNS:
            self._in_summary = False
            text = _numpy_returns(body) if numpy else _joined(body)
            self.returns = self.returns or text or None
        elif heading in {"note", "notes", "warning", "warnings"} and self._in_summary:
            # A note that comes before the parameters is part of what the tool does.
            self.summary.extend(["", f"{heading.capitalize()}: {_joined(body)}", ""])
        else:
            self._in_summary = False

    def _sphinx(self, match: re.Match[str], more: list[str]) -> None:
        self._in_summary = False
        kind, middle = match["kind"].lower(), match["middle"].split()
        text = _joined([match["text"], *more])
        if kind in _SPHINX_PARAMETERS and middle:
            self.parameters.setdefault(middle[-1].lstrip("*\\"), text)
        elif kind in {"return", "returns"}:
            self.returns = self.returns or text or None


def _numpy_heading(lines: list[str], at: int) -> str | None:
    if at + 1 >= len(lines):
        return None
    name, rule = lines[at].strip().lower(), lines[at + 1].strip()
    return name if name in _SECTIONS and len(rule) >= 3 and set(rule) <= {"-", "="} else None


def _google_heading(lines: list[str], at: int) -> str | None:
    """A heading only counts when something indented follows: prose may end a line in "returns:"."""
    line = lines[at].rstrip()
    if not line.endswith(":") or line[:1].isspace():
        return None
    name = line[:-1].strip().lower()
    if name not in _SECTIONS:
        return None
    body = next((text for text in lines[at + 1 :] if text.strip()), "")
    return name if body[:1].isspace() else None


def _sphinx_field(line: str) -> re.Match[str] | None:
    match = _SPHINX_FIELD.fullmatch(line)
    if match is None:
        return None
    kind = match["kind"].lower()
    return match if kind in _SPHINX_PARAMETERS | _SPHINX_OTHERS | {"return", "returns"} else None


def _starts_section(lines: list[str], at: int) -> bool:
    return bool(_sphinx_field(lines[at]) or _google_heading(lines, at) or _numpy_heading(lines, at))


def _google_items(body: list[str]) -> Iterator[tuple[list[str], str]]:
    indent = min((_indent(line) for line in body if line.strip()), default=0)
    name, text = None, list[str]()
    for line in body:
        match = _GOOGLE_ITEM.fullmatch(line.strip()) if _indent(line) == indent else None
        if match is None:
            text.append(line)
            continue
        if name is not None:
            yield [name], _joined(text)
        name, text = match["name"], [match["text"]]
    if name is not None:
        yield [name], _joined(text)


def _numpy_items(body: list[str]) -> Iterator[tuple[list[str], str]]:
    indent = min((_indent(line) for line in body if line.strip()), default=0)
    names, text = list[str](), list[str]()
    for line in body:
        match = _NUMPY_ITEM.fullmatch(line.strip()) if line.strip() and _indent(line) == indent else None
        if match is None:
            text.append(line)
            continue
        if names:
            yield names, _joined(text)
        names, text = [name.strip().lstrip("*") for name in match["names"].split(",")], []
    if names:
        yield names, _joined(text)


def _numpy_returns(body: list[str]) -> str:
    """The indented description, or else the line that names the type."""
    indent = min((_indent(line) for line in body if line.strip()), default=0)
    described = _joined(line for line in body if _indent(line) > indent)
    return described or _joined(body)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _joined(lines: Iterable[str]) -> str:
    """Unwrap the lines of a description, keeping its paragraphs and its lists."""
    text = ""
    for line in (line.strip() for line in lines):
        if not line:
            text += "" if not text or text.endswith("\n\n") else "\n\n"
        elif not text or text.endswith("\n"):
            text += line
        else:
            text += ("\n" if _LIST_MARK.match(line) else " ") + line
    return text.strip()
