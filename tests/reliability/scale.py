"""How often what is left to chance is tried: once for every change, and more before a release."""

from __future__ import annotations

import os
from typing import Final

__all__ = ["TIMES"]

TIMES: Final = int(os.environ.get("PROTOLINK_TORTURE", "1"))
"""`make torture` multiplies kills, races and random sequences by it."""
