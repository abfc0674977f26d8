"""The reference lists every public name, and nothing that is not there."""

from __future__ import annotations

import re
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
PUBLIC_MODULES = (
    "protolink",
    "protolink.client",
    "protolink.discovery",
    "protolink.durable",
    "protolink.errors",
    "protolink.http",
    "protolink.llms",
    "protolink.policy",
    "protolink.storage",
    "protolink.testing",
    "protolink.tools",
    "protolink.transport",
    "protolink.transport.http",
)


def listed() -> list[str]:
    """What the pages of the reference ask to be described."""
    pages = (path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md")))
    return [name for page in pages for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE)]


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_name_is_in_the_reference(module: str) -> None:
    """A name that is only in the source is found by nobody; where it may be imported from as well does not matter."""
    described = {id(named(path)) for path in listed()}

    missing = [name for name in import_module(module).__all__ if id(named(f"{module}.{name}")) not in described]

    assert missing == []


def test_the_reference_describes_each_thing_once() -> None:
    """Two descriptions of one thing would be two targets for the links to it."""
    described = [named(path) for path in listed()]

    assert len({id(value) for value in described}) == len(described)


def undescribed(value: Any) -> list[str]:
    """The names of the verbs of a class, or of a function, that have no docstring."""
    if isfunction(value):
        return [] if value.__doc__ else [value.__name__]
    verbs = (FunctionType, property, classmethod, staticmethod)
    members = [(name, member) for name, member in vars(value).items() if not name.startswith("_")]
    return [name for name, member in members if isinstance(member, verbs) and not member.__doc__]


@pytest.mark.parametrize("path", [path for path in listed() if isclass(named(path)) or isfunction(named(path))])
def test_what_the_reference_describes_has_a_description(path: str) -> None:
    """A verb without a docstring is shown as a bare signature."""
    assert undescribed(named(path)) == []
