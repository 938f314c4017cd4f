"""What is wrong with a file of market data: one line that names the file, the line and the column."""

from __future__ import annotations

from pathlib import Path

from everstep.model.errors import BadInput, Problem


class Malformed(BadInput):
    """A file of market data that cannot be believed: ``prices.csv:17: SpotPrice: expected USD per hour, found 'x'``.

    Attributes:
        file: the file, as the user named it.
        line: line in the file, from 1; None when the fault is not in one line.
        column: name of the column, or path of the key (``data[17]``); empty for none.
    """

    def __init__(self, file: Path | str, column: str, message: str, *, line: int | None = None, fix: str = "") -> None:
        """Args: message: what was expected and what was found; fix: what to do about it."""
        where = f"{file}:{line}" if line is not None else str(file)
        super().__init__(Problem(where, _line(column), _line(message), _line(fix)))
        self.file, self.line, self.column = str(file), line, column


LONGEST = 400
"""Characters of a part of a message: a file may hold anything, a line of complaint is for people."""


def _line(text: str) -> str:
    """``text`` as one line, cut where it is long; a file may hold what a terminal would obey."""
    one = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(text[: 4 * LONGEST].split()))
    return one if len(one) <= LONGEST else f"{one[: LONGEST - 3]}..."


def unreadable(file: Path | str, error: OSError) -> Malformed:
    """The file cannot be opened or read."""
    return Malformed(file, "", f"cannot be read: {(error.strerror or str(error)).lower()}", fix="check the path")


def undecodable(file: Path | str) -> Malformed:
    """The bytes are not text."""
    return Malformed(file, "", "is not UTF-8 text", fix="write it again")
