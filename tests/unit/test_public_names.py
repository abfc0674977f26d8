"""What `import protolink` offers, and what it costs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import protolink


@pytest.mark.parametrize("name", protolink.__all__)
def test_every_public_name_resolves(name: str) -> None:
    """The names are loaded lazily, so a wrong entry would otherwise show only when somebody uses it."""
    assert getattr(protolink, name) is not None


def test_public_names_are_listed_once() -> None:
    """A name added twice hides a mistake."""
    assert len(protolink.__all__) == len(set(protolink.__all__))


def test_dir_shows_every_public_name() -> None:
    """Completion in a shell works before anything was loaded."""
    assert set(protolink.__all__) <= set(dir(protolink))


def test_star_import_brings_exactly_the_public_names(interpreter: Callable[[str], str]) -> None:
    """A lazy module and its list of names must agree in an interpreter that has loaded nothing yet."""
    program = "\n".join(
        (
            "before = set(globals()) | {'before'}",
            "from protolink import *",
            "print(*sorted(set(globals()) - before), sep='\\n')",
        )
    )

    assert interpreter(program).split() == sorted(protolink.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """`hasattr` and optional imports depend on the kind of error."""
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(protolink, "no_such_name")  # noqa: B009 - a type checker would refuse the attribute itself


def test_importing_the_package_stays_cheap(interpreter: Callable[[str], str]) -> None:
    """An application that only imports the package pays for no event loop, database or validation."""
    heavy = {"asyncio", "concurrent.futures", "pydantic", "protolink.agent", "sqlite3"}

    loaded = interpreter("import protolink, sys; print(*sys.modules, sep='\\n')").split()

    assert heavy.isdisjoint(loaded)
