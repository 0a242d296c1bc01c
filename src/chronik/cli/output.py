"""Tables for people, aligned text for pipes, JSON for programs."""

import json
import sys
from collections.abc import Sequence
from typing import Any

import typer

Cell = str | int | None


def print_json(value: Any) -> None:
    """One JSON document on one line."""
    typer.echo(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """A table: with rules on a terminal, plain when piped. Numbers are aligned to the right."""
    numeric = [
        bool(rows) and all(isinstance(row[index], int) for row in rows)
        for index in range(len(columns))
    ]
    cells = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _print_rich(columns, cells, numeric)
        return
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        aligned = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        )
        typer.echo("  ".join(aligned).rstrip())


def _print_rich(
    columns: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    Console().print(table)


def size_text(size: int | None) -> str | None:
    """A size in bytes for people: 1.5 MiB."""
    if size is None:
        return None
    amount = float(size)
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount /= 1024
        units.pop(0)
    return f"{size} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"
