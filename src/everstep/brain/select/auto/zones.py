"""Which of several zones: an index, the expected cost of the rest of the job if it starts in a zone.

    cf   = price elsewhere + losses per hour elsewhere x (d (price elsewhere + mu) + transfer)
    J(z) = [transfer + d mu, if it has to be started] + p m + (W - progress of m) cf + q (d (cf + mu) + transfer)

W work left, m the mean of min(residual up time, W), q the chance that spot ends before W is done, d the changeover, mu
the shadow price of an hour of slack: by how much the programme's cost rises if there were d less of it, per hour.
"""

from __future__ import annotations

from dataclasses import dataclass

from everstep.brain.select.auto.beliefs import Outlook, Seen
from everstep.brain.select.course import Place, Situation


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """What an hour of work is expected to cost after the machine at hand is lost.

    Attributes:
        usd_per_h: cf. slack_usd_per_h: mu. transfer_usd: of a mean move.
    """

    usd_per_h: float
    slack_usd_per_h: float
    transfer_usd: float


def elsewhere(situation: Situation, view: Outlook, slack_usd_per_h: float) -> Elsewhere:
    """From the outlook and the shadow price of slack."""
    d_h = situation.changeover_s / 3600.0
    costs = [place.move_usd for place in situation.places]
    transfer_usd = sum(costs) / len(costs)
    per_h = view.spot_usd_per_h + view.drop_per_h * (d_h * (view.spot_usd_per_h + slack_usd_per_h) + transfer_usd)
    return Elsewhere(per_h, slack_usd_per_h, transfer_usd)


def index_usd(situation: Situation, number: int, view: Outlook, seen: Seen, other: Elsewhere) -> float:
    """J of the place with that number, USD; spot is up there."""
    place = situation.places[number]
    standing = situation.standing
    running = standing.place == place.name and standing.mode.value == "spot"
    d_h = situation.changeover_s / 3600.0
    unpaid_h = standing.changeover_left_s / 3600.0 if running else d_h
    work_h = situation.work_left_s / 3600.0
    one, loss = seen.places[number], view.rates[number].loss
    age_h = 0.0 if one is None else one.age_h(situation.now_s)
    need_h = work_h / place.speed + unpaid_h
    mean_h = loss.mean_residual_h(age_h, need_h)
    lost = loss.flip_probability(age_h, need_h)
    later_h = work_h - max(mean_h - unpaid_h, 0.0) * place.speed
    usd = price_usd_per_h(place) * mean_h + later_h * other.usd_per_h
    usd += lost * (d_h * (other.usd_per_h + other.slack_usd_per_h) + other.transfer_usd)
    return usd if running else usd + place.move_usd + d_h * other.slack_usd_per_h


def price_usd_per_h(place: Place) -> float:
    """Of spot; only for places that sell it."""
    return place.spot_usd_per_h or 0.0
