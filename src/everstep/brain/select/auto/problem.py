"""What the programme is asked, and how its tables are laid out."""

from __future__ import annotations

from dataclasses import dataclass

from everstep.brain.forecast.availability import AGES_H, Rates

AGES = len(AGES_H)
IDLE, ON_DEMAND, SPOT = 0, 2 * AGES, 4 * AGES
"""First rows of a mode: up by age, then down by age; spot has only up."""
ROWS = 5 * AGES
PERIOD_S = 86_400.0
"""How long a table is meant to be used; only so much of it is kept."""
_LONG_S = 10 * 86_400.0
STEP_S = 600.0
MOST_SLACK_S, MOST_SLACK_OF_WORK = 10 * 86_400.0, 20.0
"""More slack than both, the second in times of the work left, is worth no more: for spot that is up for less than a
twentieth of the time nobody waits."""
IMPATIENCE = 0.02
"""Hours of spot that an hour sooner is worth: nobody waits for months for a few dollars."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A job before a place.

    Attributes:
        rates: hazards of the place's spot.
        left_s, slack_s: at the beginning.
        changeover_s: what a start costs in time.
        step_s: between two decisions.
        drop_per_h: hazard that a spot machine is lost although spot stays up (elsewhere).
        idle_usd_per_h: what an hour later is worth.
    """

    rates: Rates
    spot_usd_per_h: float
    on_demand_usd_per_h: float
    left_s: float
    slack_s: float
    changeover_s: float
    step_s: float = STEP_S
    drop_per_h: float = 0.0
    idle_usd_per_h: float = 0.0


def most_slack_s(work_s: float) -> float:
    """The slack that counts, of a job with so much work left."""
    return max(MOST_SLACK_S, MOST_SLACK_OF_WORK * work_s)


def step_for(left_s: float) -> float:
    """Seconds between two decisions: twice as long beyond ten days to the deadline, three times beyond twenty.

    It makes a month cheaper to reckon by more than half, and 0.2 % dearer (8 futures of 30 days of work in 40).
    """
    return STEP_S * (1 + (left_s > _LONG_S) + (left_s > 2 * _LONG_S))
