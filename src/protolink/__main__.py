"""`python -m protolink` is the command `protolink`."""

from __future__ import annotations

import sys

from protolink.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
