"""``utility`` for all runs at once: ``brain/select/policies/utility.py``, in arrays, where nothing is to be moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from everstep.brain.select.course import INSTANT_S
from everstep.brain.select.policies.utility import Utility
from everstep.sim.lockstep.runs import IDLE, ON_DEMAND, SPOT, Bools, Floats, Ints, Rows, Runs, Tariff
from everstep.sim.reference.market import Job


@dataclass(slots=True)
class _Kept(Rows):
    """What runs remember.

    Attributes:
        up, lived_h, drops: shape (places, runs), as ``PlaceRecord``.
        mode, place: what was chosen last.
    """

    up: Bools
    lived_h: Floats
    drops: Floats
    mode: Ints
    place: Ints


class UtilityInStep:
    """See the module."""

    def __init__(self, policy: Utility, job: Job, tick_s: float, tariff: Tariff, names: Sequence[str]) -> None:
        """Args: names: of the places."""
        self.policy, self.job, self.tick_s, self.tariff = policy, job, tick_s, tariff
        # Of equal ones the policy takes the last by name: here the first.
        worth = [n for n, usd in enumerate(tariff.spot) if math.isfinite(usd)]
        self.order = np.asarray(sorted(worth, key=lambda n: names[n], reverse=True), dtype=np.int64)
        self._prices = np.asarray(tariff.spot)[self.order][:, None]

    def begin(self, ups: Bools) -> None:
        """See ``Steering``."""
        count = ups.shape[1]
        none = np.zeros(count, np.int64)
        self._kept = _Kept(ups.copy(), np.zeros(ups.shape), np.zeros(ups.shape), none, none.copy())
        self._looked_s, self._look_at = 0.0, 0.0

    def keep(self, which: Bools) -> None:
        """See ``Steering``."""
        self._kept.keep(which)

    def steer(self, runs: Runs, ups: Bools, now_s: float) -> tuple[Ints, Ints]:
        """See ``Steering``."""
        kept = self._kept
        kept.lived_h += np.where(kept.up, (now_s - self._looked_s) / 3600.0, 0.0)
        kept.drops += kept.up & ~ups
        chosen = (kept.mode == runs.mode) & ((kept.place == runs.place) | (kept.mode != SPOT))
        anew = ~chosen | (kept.up != ups).any(axis=0)
        kept.up, self._looked_s = ups, now_s
        if now_s >= self._look_at - INSTANT_S:
            anew[:] = True
            self._look_at = (now_s // self.policy.period_s + 1) * self.policy.period_s
        if anew.any():
            mode, place = self._choose(runs, ups, now_s)
            kept.mode, kept.place = np.where(anew, mode, kept.mode), np.where(anew, place, kept.place)
        return kept.mode, kept.place

    def _choose(self, runs: Runs, ups: Bools, now_s: float) -> tuple[Ints, Ints]:
        policy, job, kept, rows = self.policy, self.job, self._kept, np.arange(len(runs.who))
        value = self.tariff.on_demand * self._urgency(runs, now_s)
        life_h = (policy.prior_h + kept.lived_h) / (1.0 + kept.drops)
        unpaid_s = np.full(ups.shape, job.changeover_s)
        unpaid_s[runs.place, rows] = np.where(runs.mode == SPOT, runs.unpaid_s, job.changeover_s)
        spot = np.where(ups, _utility(value, life_h, unpaid_s, self._prices), -np.inf)
        unpaid_s = np.where(runs.mode == ON_DEMAND, runs.unpaid_s, job.changeover_s)
        steady = _utility(value, (job.task_s - runs.done_s) / 3600.0, unpaid_s, self.tariff.on_demand)
        place = spot.argmax(axis=0)
        best_spot = spot[place, rows]
        best = np.maximum(np.maximum(best_spot, steady), 0.0)
        mode = np.where(best_spot >= best, SPOT, np.where(steady >= best, ON_DEMAND, IDLE))
        present = np.where(runs.mode == SPOT, spot[runs.place, rows], np.where(runs.mode == ON_DEMAND, steady, 0.0))
        stays = best - present <= policy.margin * self.tariff.on_demand
        return np.where(stays, runs.mode, mode), np.where(stays, runs.place, place)

    def _urgency(self, runs: Runs, now_s: float) -> Floats:
        """Rate of progress still needed over the rate so far."""
        job, credit_s = self.job, self.policy.start_h * 3600.0
        left_s = max(math.floor((job.deadline_s - now_s + INSTANT_S) / self.tick_s) * self.tick_s, 1.0)
        even = job.task_s / job.deadline_s
        so_far = (runs.done_s + credit_s * even) / (now_s + credit_s)
        urgency: Floats = np.where(so_far > 0.0, (job.task_s - runs.done_s) / left_s / so_far, 0.0)
        return urgency


def _utility(value: Floats, life_h: Floats, unpaid_s: Floats, usd_per_h: Floats | float) -> Floats:
    """USD per hour."""
    life_h = np.maximum(life_h, 1e-6)
    return np.round(value * np.maximum(life_h - unpaid_s / 3600.0, 0.0) / life_h - usd_per_h, 9)
