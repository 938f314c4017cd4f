"""Rows of a CSV file, plain or gzipped, by the names in its header: a bad cell names file, line and column."""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from everstep.market.faults import Malformed, undecodable, unreadable

if TYPE_CHECKING:
    from _csv import Reader

PRICE = "USD per hour, 0 or more"
MOST = 1e15
"""No market has a larger number; sums of such ones are still finite."""
LATEST_S = 32_503_680_000.0
"""The year 3000: later ones are milliseconds."""


class Row:
    """One row. Cells are asked for by the name of their column.

    Attributes:
        file: where it was read.
        line: its last line there, from 1.
    """

    __slots__ = ("_cells", "_index", "file", "line")

    def __init__(self, file: Path, line: int, index: dict[str, int], cells: Sequence[str]) -> None:
        """``index`` gives the place of each column in ``cells``."""
        self.file, self.line, self._index, self._cells = file, line, index, cells

    def text(self, column: str) -> str:
        """The cell without surrounding space; empty where the file has no such column."""
        place = self._index.get(column)
        return "" if place is None else self._cells[place].strip()

    def word(self, column: str) -> str:
        """The cell, which must not be empty."""
        text = self.text(column)
        if not text:
            self._refuse(column, "the cell is empty")
        return text

    def number(
        self, column: str, wanted: str = "a number, 0 or more", *, least: float = 0.0, most: float = MOST
    ) -> float:
        """The cell as a number from ``least`` to ``most``; ``wanted`` says in a refusal what was expected."""
        text = self.text(column)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            bound = f" and {most:g} at most" if most < value < math.inf else ""
            self._refuse(column, f"expected {wanted}{bound}, found {text!r}")
        return value

    def price(self, column: str) -> float:
        """USD per hour; nan where the cell is empty: not sold."""
        return self.number(column, PRICE) if self.text(column) else math.nan

    def count(self, column: str) -> int:
        """A whole number; catalogs write ``8.0`` as well as ``8``. 0 where the cell is empty."""
        if not self.text(column):
            return 0
        value = self.number(column, "a whole number, 0 or more")
        if value != int(value):
            self._refuse(column, f"expected a whole number, 0 or more, found {self.text(column)!r}")
        return int(value)

    def instant(self, column: str) -> float:
        """UTC seconds of an ISO 8601 date or time; without a zone it is taken as UTC."""
        text = self.text(column)
        try:
            return instant(text)
        except ValueError:
            self._refuse(column, f"expected a time such as 2030-01-31T18:00:00Z, found {text!r}")

    def flag(self, column: str) -> bool:
        """``1``, ``0``, ``true`` or ``false``."""
        word = self.text(column).lower()
        if word not in _FLAGS:
            self._refuse(column, f"expected 1 or 0, found {self.text(column)!r}")
        return _FLAGS[word]

    def fault(self, column: str, message: str) -> Malformed:
        """What is wrong with the cell, to be raised."""
        return Malformed(self.file, column, message, line=self.line)

    def _refuse(self, column: str, message: str) -> NoReturn:
        raise self.fault(column, message)


_FLAGS = {"1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}


@lru_cache(maxsize=4096)
def instant(text: str) -> float:
    """UTC seconds of an ISO 8601 date or time from 1970 on; without a zone it is taken as UTC.

    Raises:
        ValueError: it is none, or lies before 1970 or beyond the year 3000.
    """
    found = datetime.fromisoformat(text)
    seconds = (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
    if not 0.0 <= seconds <= LATEST_S:
        raise ValueError(f"{text} is no time of a market")
    return seconds


def header(path: Path) -> tuple[str, ...]:
    """The names in the first line.

    Raises:
        Malformed: the file cannot be read, or is empty.
    """
    with _opened(path) as file:
        first = next(csv.reader(file), None)
    return _names(path, first)


def rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows below the header; empty lines are skipped.

    Args:
        path: CSV, gzipped if its name ends in ``.gz``. The order of its columns is free, and it may have others.
        columns: what must be there.

    Raises:
        Malformed: a column is missing, a row has too few or too many cells, or there are no rows.
    """
    with _opened(path) as file:
        reader = csv.reader(file)
        names = _names(path, next(reader, None))
        for column in columns:
            if column not in names:
                fix = f"the file has {', '.join(names)}"
                raise Malformed(path, column, "the column is missing", line=1, fix=fix)
        index = {name: place for place, name in enumerate(names)}
        # Azure's catalog ends in `V1,V2` without quotes: nothing is lost with the last column when nobody asks for it.
        most = len(names) if names[-1] in columns else None
        yield from _below(path, reader, index, most)


def bare_rows(path: Path, names: Sequence[str]) -> Iterator[Row]:
    """The rows of a file without header, whose columns are ``names`` in order.

    Raises:
        Malformed: as ``rows``.
    """
    with _opened(path) as file:
        index = {name: place for place, name in enumerate(names)}
        yield from _below(path, csv.reader(file), index, len(names))


def _below(path: Path, reader: Reader, index: dict[str, int], most: int | None) -> Iterator[Row]:
    width, found = len(index), False
    for cells in reader:
        if not cells:
            continue
        if len(cells) < width or (most is not None and len(cells) > most):
            text = f"expected {width} cells, found {len(cells)}"
            raise Malformed(path, "", text, line=reader.line_num, fix="quote cells that hold a comma")
        found = True
        yield Row(path, reader.line_num, index, cells)
    if not found:
        raise Malformed(path, "", "has no rows")


def _names(path: Path, first: list[str] | None) -> tuple[str, ...]:
    if not first:
        raise Malformed(path, "", "is empty")
    names = tuple(name.strip() for name in first)
    for name, times in Counter(names).items():
        if times > 1:
            raise Malformed(path, name, "the column is there twice", line=1)
    return names


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    """The file as text; whatever goes wrong while it is read is told as a fault of the file."""
    try:
        # A spreadsheet leaves a byte order mark: utf-8-sig takes it away.
        with (
            gzip.open(path, "rt", encoding="utf-8-sig", newline="")
            if path.suffix == ".gz"
            else path.open(encoding="utf-8-sig", newline="")
        ) as file:
            yield file
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise Malformed(path, "", "is not a whole gzip file", fix="fetch it again") from None
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise undecodable(path) from None
    except csv.Error as error:
        raise Malformed(path, "", f"is not CSV: {error}") from None
