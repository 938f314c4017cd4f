"""How every listing is printed: ``-o table|json|yaml``, one implementation for all.

A table on a terminal is drawn by Rich; into a pipe go plain aligned columns, whole words, no colours, and Rich is not
even imported.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from everstep.cli.wording import UNKNOWN
from everstep.model.codec import to_dict

Row = Any
"""One thing of a listing: a light frozen type of ``everstep.client.results``."""


class Output(StrEnum):
    """The forms of a listing."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="table, json or yaml.")]
"""The option that every listing has."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table: its title, what stands in it, and whether it is a number.

    A `sparse` one is left out of a table in which no row has anything to say there.
    """

    title: str
    cell: Callable[[Row], str]
    right: bool = False
    sparse: bool = False


def field(name: str) -> Callable[[Row], str]:
    """The value of ``name`` as text; empty for None."""

    def cell(row: Row) -> str:
        value = getattr(row, name)
        return "" if value is None else str(value)

    return cell


def listing(
    rows: Sequence[Row],
    columns: Sequence[Column],
    output: Output,
    *,
    empty: str,
    dim: Callable[[Row], bool] = lambda row: False,
) -> None:
    """Print rows: as a table (``empty`` instead if there are none), or as they are, as JSON or YAML.

    ``dim``: rows that matter less.
    """
    if output is not Output.TABLE:
        document(rows, output)
    elif rows:
        table(rows, columns, dim=dim)
    else:
        print(empty)


def document(data: Any, output: Output) -> None:
    """Print data as JSON or YAML, whole."""
    plain = to_dict(data)
    if output is Output.YAML:
        import yaml

        sys.stdout.write(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))
    else:
        print(json.dumps(plain, indent=2, ensure_ascii=False))


def table(
    rows: Sequence[Row],
    columns: Sequence[Column],
    *,
    indent: int = 0,
    dim: Callable[[Row], bool] = lambda row: False,
) -> None:
    """Print rows as a table, see ``visible``."""
    columns = [c for c in columns if not c.sparse or any(c.cell(row) not in ("", UNKNOWN) for row in rows)]
    cells = [[visible(column.cell(row).replace("\n", " ")) for column in columns] for row in rows]
    if sys.stdout.isatty():
        _rich_table(cells, columns, indent, [dim(row) for row in rows])
    else:
        _plain_table(cells, columns, indent)


_UNSEEN = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) != "\n"} | {
    code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
}


def visible(text: str) -> str:
    """Text of files and of others that may stand on a terminal: control characters, and those that turn the direction
    of writing, as ``\\x1b``; line ends stay, tabs are spaces.
    """
    return text.replace("\t", " ").translate(_UNSEEN)


def _rich_table(cells: list[list[str]], columns: Sequence[Column], indent: int, dim: Sequence[bool]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        drawn.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for line, faint in zip(cells, dim, strict=True):
        # Text, not markup: a job may be called "[red]".
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in line), style="dim" if faint else None)
    Console().print(Padding(drawn, (0, 0, 0, indent)))


_STYLES = {
    "running": "green",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
    "acquiring": "yellow",
    "checking": "yellow",
    "paused": "yellow",
}


def _plain_table(cells: list[list[str]], columns: Sequence[Column], indent: int) -> None:
    lines = [[column.title for column in columns], *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    for line in lines:
        parts = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ]
        print((" " * indent + "  ".join(parts)).rstrip())


def facts(pairs: Sequence[tuple[str, str]], *, indent: int = 0) -> None:
    """Print ``name  value`` lines, aligned; pairs without a value are left out."""
    shown = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{' ' * indent}{name.ljust(width)}  {visible(value)}")
