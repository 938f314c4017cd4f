"""Which of several zones: an index, the expected cost of the rest of the job if it starts in a zone.

    cf   = price elsewhere + losses per hour elsewhere x (d (price elsewhere + mu) + transfer)
    J(z) = [transfer + d mu, if it has to be started] + p m + (W - progress of m) cf + q (d (cf + mu) + transfer)

W work left, m the mean of min(residual up time, W), q the chance that spot ends before W is done, d the changeover, mu
the shadow price of an hour of slack: by how much the programme's cost rises if there were d less of it, per hour.
"""

from __future__ import annotations

from dataclasses import dataclass

from everstep.brain.select.auto.beliefs import Prospect, Seen
from everstep.brain.select.course import Place, Situation

_SOON_H = 1.0
"""Over which the hazard of coming back is averaged."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What an hour of work is expected to cost after the machine at hand is lost.

    Attributes:
        usd_per_h: cf. slack_usd_per_h: mu.
    """

    usd_per_h: float
    slack_usd_per_h: float


def elsewhere(situation: Situation, view: Prospect, slack_usd_per_h: float) -> Elsewhere:
    """From the prospect and the shadow price of slack."""
    d_h = situation.changeover_s / 3600.0
    start_usd = d_h * (view.spot_usd_per_h + slack_usd_per_h)
    return Elsewhere(view.spot_usd_per_h + view.drop_per_h * (start_usd + view.transfer_usd), slack_usd_per_h)


def index_usd(situation: Situation, number: int, view: Prospect, seen: Seen, other: Elsewhere) -> float:
    """J of the place with that number, USD; where spot is down, as if it had just come up."""
    place = situation.places[number]
    standing = situation.standing
    running = standing.place == place.name and standing.mode.value == "spot"
    d_h = situation.changeover_s / 3600.0
    unpaid_h = standing.changeover_left_s / 3600.0 if running else d_h
    work_h = situation.work_left_s / 3600.0
    loss, age_h = view.rates[number].loss, _up_for_h(situation, number, seen)
    need_h = work_h / place.speed + unpaid_h
    mean_h, lost = loss.residual(age_h, need_h)
    later_h = work_h - max(mean_h - unpaid_h, 0.0) * place.speed
    usd = price_usd_per_h(place) * mean_h + later_h * other.usd_per_h
    usd += lost * (d_h * (other.usd_per_h + other.slack_usd_per_h) + view.leave_usd[number])
    return usd if running else usd + place.move_usd + d_h * other.slack_usd_per_h


def patience_usd_per_h(
    situation: Situation, indices: dict[int, float], view: Prospect, seen: Seen, other: Elsewhere
) -> float:
    """What an hour of waiting for better places gains against the best that is up; its slack is not counted.

    A place that is down comes back with its hazard, and then saves what its J is below the least of those up. Places of
    one region come back together, so only the best of each region counts.
    """
    least = min(indices.values())
    gains: dict[str, float] = {}
    for number, place in enumerate(situation.places):
        one = seen.places[number]
        if number in indices or one is None or place.spot_usd_per_h is None:
            continue
        saved = least - index_usd(situation, number, view, seen, other)
        if saved > 0.0:
            age_h = one.age_h(situation.now_s)
            gain = saved * view.rates[number].back.between(age_h, age_h + _SOON_H) / _SOON_H
            gains[place.region] = max(gain, gains.get(place.region, 0.0))
    return sum(gains.values())


def mean_up_h(situation: Situation, number: int, view: Prospect, seen: Seen) -> float:
    """Hours of the work left that spot of that place will last, in the mean."""
    work_h = situation.work_left_s / 3600.0 / situation.places[number].speed
    return view.rates[number].loss.mean_residual_h(_up_for_h(situation, number, seen), work_h)


def price_usd_per_h(place: Place) -> float:
    """Of spot; only for places that sell it."""
    return place.spot_usd_per_h or 0.0


def _up_for_h(situation: Situation, number: int, seen: Seen) -> float:
    """Hours that spot there has been up; 0 where it is down or was never observed."""
    one = seen.places[number]
    return one.age_h(situation.now_s) if one is not None and one.up else 0.0
