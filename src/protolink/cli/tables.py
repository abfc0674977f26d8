"""Rows for a person: in columns of plain text, or as a table of `rich` on a terminal, where it is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TextIO

__all__ = ["write_table"]

_FIXED: Final = 40
"""A column of at most so many characters is never folded."""

_NARROWEST: Final = 20


def write_table(out: TextIO, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write rows below their head. The cells are shown as they are: nothing in them is markup."""
    if out.isatty() and _write_rich(out, head, rows):
        return
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        out.write("  ".join(cells).rstrip() + "\n")


def _write_rich(out: TextIO, head: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console(file=out)
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    fixed = sum(width + 2 for width in widths if width <= _FIXED)
    if fixed + sum(_NARROWEST for width in widths if width > _FIXED) > console.width:
        return False  # an id that is cut in pieces can be copied by nobody
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name, width in zip(head, widths, strict=True):
        table.add_column(name, overflow="fold", no_wrap=width <= _FIXED)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    return True
