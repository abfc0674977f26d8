"""What `protolink.testing` offers, and what it asks for."""

from __future__ import annotations

from collections.abc import Callable

import protolink.testing


def test_the_list_of_public_names_is_complete() -> None:
    """Everything that the package's own modules define for users is listed, sorted, and nothing else."""
    public = {name for name, value in vars(protolink.testing).items() if callable(value)}

    assert set(protolink.testing.__all__) == public
    assert protolink.testing.__all__ == sorted(protolink.testing.__all__, key=lambda name: (name.islower(), name))


def test_it_needs_no_test_framework(interpreter: Callable[[str], str]) -> None:
    """An application tests with what it likes."""
    loaded = interpreter("import protolink.testing, sys; print(*sys.modules, sep='\\n')").split()

    assert {"pytest", "hypothesis", "unittest.mock"}.isdisjoint(loaded)


def test_the_library_itself_does_not_load_it(interpreter: Callable[[str], str]) -> None:
    """Doubles are for tests; a program that runs agents never imports them."""
    loaded = interpreter("from protolink import Agent; import sys; print(*sys.modules, sep='\\n')").split()

    assert "protolink.testing" not in loaded
