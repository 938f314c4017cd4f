"""The programme of one place told as actions, for the whole way to the deadline: what to do, not what it costs.

For whoever runs thousands of futures of one job at once: one look-up decides. What a day of the policy has as costs,
with the true slack put in between the columns, is here one small number per row and column.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from everstep.brain.select.auto.problem import PERIOD_S, SPOT, STEP_S, Problem
from everstep.brain.select.auto.programme import Backward, moves

IDLE, ON_DEMAND, START_SPOT = 0, 1, 2
"""Actions."""
_MOST_EVEN, _PARTS = 160, 40
_EDGES_S = tuple([days * PERIOD_S for days in (1, 4, 10, 40, 80, 160, 320)])
_MANY = (1, 3, 6, 12, 24, 48, 96, 192)
"""So many ten minutes between two times, until a day before the deadline, until four days, until ten, and so on."""


@dataclass(frozen=True, slots=True, eq=False)
class Chart:
    """What to do in every state that is idle or on-demand; a spot machine is kept until it is lost.

    Attributes:
        action: shape (times, SPOT, columns), int8: by time left, row of the programme, slack.
        left_s: time left at each of the times, ascending.
        slack_s: slack of each column, ascending; less counts as the first, any other as the next one below it.
    """

    action: NDArray[np.int8]
    left_s: NDArray[np.float64]
    slack_s: NDArray[np.float64]


def lengths(left_s: float, tick_s: float) -> list[float]:
    """Seconds of each step, the last before the deadline first: coarse where the deadline is far away."""
    found: list[float] = []
    ahead_s = 0.0
    steps = [max(tick_s, STEP_S * many) for many in _MANY]
    while ahead_s < left_s - 1e-6:
        step_s = min(steps[bisect_left(_EDGES_S, ahead_s + 1e-6)], left_s - ahead_s)
        found.append(step_s)
        ahead_s += step_s
    return found


def chart(problem: Problem, out: NDArray[np.int8] | None = None) -> Chart:
    """Solves a problem for all of its time. Pure; ``problem.step_s`` is a tick of the world it is for.

    Args:
        problem: what is solved.
        out: where the actions go, of the shape that a chart of the same times and slack has.
    """
    steps = lengths(problem.left_s, problem.step_s)
    backward = Backward(problem, _MOST_EVEN, _PARTS)
    columns = len(backward.columns)
    values = np.zeros((5 * SPOT // 4, columns), dtype=np.float32)
    action = np.zeros((len(steps), SPOT, columns), dtype=np.int8) if out is None else out
    chances = {s: moves(problem.rates, s / 3600.0, problem.drop_per_h).astype(np.float32) for s in set(steps)}
    left_s = np.cumsum(steps)
    for number, length_s in enumerate(steps):
        after = chances[length_s] @ values
        backward.back(after, float(left_s[number]), length_s, values, chosen=action[number])
    return Chart(action, left_s, backward.slack_s)
