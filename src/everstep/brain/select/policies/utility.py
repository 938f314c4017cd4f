"""``utility``: each place's worth per hour, with a shadow price of progress; the form of the SkyNomad paper.

U = V eta - C - E / L with eta = (L - d) / L. C is the price, E the cost of moving the checkpoint, L the predicted
lifetime of the place's spot, d the changeover, V = C_od x (rate of progress still needed / rate so far): the more a job
is behind, the more an hour of progress is worth. Idling is worth 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everstep.brain.select.course import INSTANT_S, Course, Memory, Mode, Place, Situation, View
from everstep.brain.select.policies.answers import at, idle
from everstep.brain.select.record import Record
from everstep.brain.select.rough import affordable, cheapest_on_demand


@dataclass(frozen=True, slots=True)
class _Held:
    """The memory, once something was decided: what it was, what the market was like, and when to look again."""

    record: Record
    course: tuple[Mode, str | None]
    market: tuple[tuple[bool | None, float | None], ...]
    look_at: float


class Utility:
    """Looks at every change of the market and every ``period_s``.

    Args (of the form):
        prior_h: lifetime of a place of which nothing is known.
        start_h: hours on the even line that a new job is credited with, so that its rate so far means something.
        margin: part of the on-demand price by which another choice must be better than the present one.
    """

    guarded = True

    def __init__(
        self, *, prior_h: float = 4.0, start_h: float = 4.0, margin: float = 0.05, period_s: float = 600.0
    ) -> None:
        self.prior_h, self.start_h, self.margin, self.period_s = prior_h, start_h, margin, period_s

    def recall(self, views: Iterable[View]) -> Memory:
        """See ``Learner``."""
        return Record.of(views)

    def steer(self, situation: Situation, memory: Memory) -> Course:
        """See ``Policy``."""
        held = memory if isinstance(memory, _Held) else None
        past = memory if isinstance(memory, Record) else None
        record = Record.after(situation, past if held is None else held.record)
        market = tuple((place.up, place.spot_usd_per_h) for place in situation.places)
        standing = situation.standing
        present = (standing.mode, standing.place)
        settled = held is not None and situation.now_s < held.look_at - INSTANT_S
        if held is not None and settled and market == held.market and present == held.course:
            memory = _Held(record, present, market, held.look_at)
            return _course(situation, present, "nothing has changed", held.look_at, memory)
        chosen, reason = self._choose(situation, record)
        passed = (situation.now_s - situation.began_s) // self.period_s + 1
        look_at = situation.began_s + passed * self.period_s
        return _course(situation, chosen, reason, look_at, _Held(record, chosen, market, look_at))

    def _choose(self, situation: Situation, record: Record) -> tuple[tuple[Mode, str | None], str]:
        steady = cheapest_on_demand(situation)
        cap = 0.0 if steady is None else steady.on_demand_usd_per_h or 0.0
        value = cap * self._urgency(situation)
        worth: dict[tuple[Mode, str | None], float] = {(Mode.IDLE, None): 0.0}
        for number, place in enumerate(situation.places):
            if place.up and affordable(place):
                life_h = record.lifetime_h(number, prior_h=self.prior_h)
                worth[Mode.SPOT, place.name] = _utility(situation, place, Mode.SPOT, life_h, value)
        if steady is not None:
            life_h = situation.work_left_s / 3600.0
            worth[Mode.ON_DEMAND, steady.name] = _utility(situation, steady, Mode.ON_DEMAND, life_h, value)
        best = max(worth, key=lambda action: (worth[action], action[0], action[1] or ""))
        present = (situation.standing.mode, situation.standing.place)
        figures = f"progress is worth ${value:.2f}/h: utility {worth[best]:.2f} $/h"
        if present in worth and worth[best] - worth[present] <= self.margin * cap:
            return present, f"{figures} at best, {worth[present]:.2f} as it is"
        return best, figures

    def _urgency(self, situation: Situation) -> float:
        """Rate of progress still needed over the rate so far."""
        left_s = max(situation.left_s, 1.0)
        span_s = situation.deadline_s - situation.began_s
        credit_s = self.start_h * 3600.0
        even = situation.work_s / span_s
        so_far = (situation.done_s + credit_s * even) / (situation.now_s - situation.began_s + credit_s)
        return situation.work_left_s / left_s / so_far if so_far > 0 else 0.0


def _utility(situation: Situation, place: Place, mode: Mode, life_h: float, value: float) -> float:
    """USD per hour."""
    standing = situation.standing
    running = standing.mode is mode and standing.place == place.name
    unpaid_h = (standing.changeover_left_s if running else situation.changeover_s) / 3600.0
    price = place.spot_usd_per_h if mode is Mode.SPOT else place.on_demand_usd_per_h
    move_usd = 0.0 if running else place.move_usd
    life_h = max(life_h, 1e-6)
    # Places that are equal must stay equal, however often their records were written.
    return round(value * max(life_h - unpaid_h, 0.0) / life_h - (price or 0.0) - move_usd / life_h, 9)


def _course(
    situation: Situation, chosen: tuple[Mode, str | None], reason: str, look_at: float, memory: Memory
) -> Course:
    mode, place = chosen
    if place is None:
        return idle(situation, reason, wake_at=look_at, memory=memory)
    return at(situation, mode, place, reason, wake_at=look_at, memory=memory)
