"""How often what is left to chance is tried: for every change, at a desk, and before a release."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["SIZE", "scaled"]

SIZES: Final = ("commit", "short", "full")

SIZE: Final = os.environ.get("PROTOLINK_TORTURE", "commit")
"""What `make torture` asks for is `short`, and `make torture FULL=1` is `full`."""

if SIZE not in SIZES:
    raise ValueError(f"PROTOLINK_TORTURE is {SIZE!r} and has to be one of {', '.join(SIZES)}")


def scaled(commit: int, short: int, full: int) -> int:
    """The number that belongs to the size that was asked for."""
    return (commit, short, full)[SIZES.index(SIZE)]
