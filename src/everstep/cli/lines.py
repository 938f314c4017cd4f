"""Output of several ranks as one text: whole lines, each but rank 0's with its origin in front."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everstep.client.results import LogPart

_LINE = re.compile(r"[^\n]*\n")
_Origin = tuple[int, int, str]


@dataclass(slots=True)
class Joiner:
    """Takes parts as they come and gives text to print.

    A line appears when it is complete, so that two ranks never share one; what is left of a line is given by ``rest``.

    Attributes:
        plain: no origins: there is only one, since the user asked for it.
    """

    plain: bool = False
    _open: dict[_Origin, str] = field(default_factory=dict)

    def take(self, part: LogPart) -> str:
        """The lines that ``part`` completes."""
        if self.plain:
            return part.text
        origin = (part.attempt, part.node, part.rank)
        before = self._before(origin) if part.continues else origin
        text = self._open.pop(before, "") + part.text
        lines = _LINE.findall(text)
        left = text[sum(map(len, lines)) :]
        if left and part.eof:
            lines, left = [*lines, f"{left}\n"], ""
        if left:
            self._open[origin] = left
        return "".join(f"{_named(origin)}{line}" for line in lines)

    def _before(self, origin: _Origin) -> _Origin:
        """Of which attempt the line is that ``origin`` goes on with."""
        attempt, _, rank = origin
        return max((one for one in self._open if one[2] == rank and one[0] < attempt), default=origin)

    def rest(self) -> str:
        """Lines that nobody will complete any more."""
        return "".join(self._rest())

    def _rest(self) -> Iterator[str]:
        for origin, text in self._open.items():
            yield f"{_named(origin)}{text}\n"
        self._open = {}


def _named(origin: _Origin) -> str:
    _, node, rank = origin
    if rank == "0":
        return ""
    return f"(rank {rank}) " if rank.isdigit() else f"({rank}, node {node}) "
