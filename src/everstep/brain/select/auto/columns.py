"""How slack is cut into columns: evenly while there is little of it, then ever wider, each the same part of its slack.

Whoever has a month of slack does not decide by its half hours, and whoever has half an hour does: so a job of any
length needs some hundred columns, and its last hours are as fine as those of a short one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from everstep.brain.select.auto.problem import Problem

_SAME = 1e-9
"""Part of a column below which two amounts of slack are one."""


class Shift(NamedTuple):
    """Where the values at less slack are found: between two columns, or in one.

    Attributes:
        cut: columns below it have no such values.
        at, above: the lower and the upper column of each, (columns - cut) of them; a slice where they are neighbours.
        part: shape (columns - cut,): how far to the upper one, 0..1; None = all are in the lower.
    """

    cut: int
    at: slice | NDArray[np.intp]
    above: slice | NDArray[np.intp]
    part: NDArray[np.float32] | None


@dataclass(frozen=True, slots=True)
class Columns:
    """Below one changeover (on-demand to the end only), then from one changeover up.

    Attributes:
        slack_s: of each column, ascending.
        first: number of the column of one changeover.
    """

    slack_s: tuple[float, ...]
    first: int

    @classmethod
    def of(cls, problem: Problem, *, most_even: int, parts: int) -> Self:
        """Half a step apart.

        Args:
            problem: what is solved.
            most_even: where this many would not do, columns grow after the first ``parts``.
            parts: each is then wider than the one before by 1/parts, and so about 1/parts of its slack.
        """
        apart_s = problem.step_s / 2.0
        over_s = max(problem.slack_s - problem.changeover_s, 0.0)
        even = math.ceil(over_s / apart_s)
        first = math.ceil(problem.changeover_s / apart_s) + 1
        over = (np.arange(first + min(even, parts if even > most_even else even) + 1) - first) * apart_s
        if even > most_even:
            grown = 1.0 + 1.0 / parts
            more = math.ceil(math.log(over_s / over[-1]) / math.log(grown))
            over = np.concatenate([over, over[-1] * grown ** np.arange(1, more + 1)])
        return cls(tuple((problem.changeover_s + over).tolist()), first)

    def __len__(self) -> int:
        return len(self.slack_s)

    def find(self, slack_s: float) -> tuple[int, float]:
        """The column at or below it, and how far to the next one it is, 0..1; beyond the columns the nearest."""
        at = bisect_right(self.slack_s, slack_s) - 1
        if at < 0:
            return 0, 0.0
        if at == len(self.slack_s) - 1:
            return at, 0.0
        here_s = self.slack_s[at]
        return at, (slack_s - here_s) / (self.slack_s[at + 1] - here_s)

    def less(self, by_s: float, least: int) -> Shift:
        """To the values at slack less ``by_s``; those below column ``least`` are left out."""
        slack_s = np.asarray(self.slack_s)
        wanted = np.interp(slack_s - by_s, slack_s, np.arange(len(slack_s)), left=-1.0)
        cut = int(np.searchsorted(wanted, least - _SAME))
        at = np.floor(wanted[cut:] + _SAME).astype(np.intp)
        part = (wanted[cut:] - at).astype(np.float32)
        some = part if (part > _SAME).any() else None
        if len(at) and at[-1] - at[0] == len(at) - 1:
            first, end = int(at[0]), int(at[-1]) + 1
            return Shift(cut, slice(first, end), slice(first + 1, end + 1), some)
        return Shift(cut, at, np.minimum(at + 1, len(slack_s) - 1), some)
