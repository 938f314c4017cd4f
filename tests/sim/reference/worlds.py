"""Small random markets and jobs for properties of the reference driver."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from everstep.brain.select.course import Course, Policy, Situation
from everstep.sim.reference.drive import Outcome, drive
from everstep.sim.reference.market import Job, Market, Zone

TICK_S = 600.0
REGIONS = ("east", "east", "west", "north")


@dataclass(frozen=True)
class Scene:
    """A market and a job in it."""

    market: Market
    job: Job


def transfer(source: str, target: str) -> float:
    return 0.0 if source == target else 0.01 if "north" in (source, target) else 0.02


def market(ups: list[list[bool]], prices: list[list[float]], *, checkpoint_gb: float = 50.0) -> Market:
    zones = [
        Zone(f"z{n}", REGIONS[n], np.array(up), np.array(price), 3.0 + n / 10)
        for n, (up, price) in enumerate(zip(ups, prices, strict=True))
    ]
    return Market(zones, TICK_S, transfer=transfer, checkpoint_gb=checkpoint_gb)


def _spread(runs: list[tuple[int, object]], ticks: int) -> list[object]:
    """Runs of (length, value), repeated until there are enough ticks."""
    values: list[object] = []
    while len(values) < ticks:
        for length, value in runs:
            values += [value] * length
    return values[:ticks]


def _flips(lengths: list[int], first: bool) -> list[tuple[int, object]]:
    # An even number of runs, so that the repetition flips too.
    lengths = lengths if len(lengths) % 2 == 0 else [*lengths, 1]
    return [(length, first ^ bool(n % 2)) for n, length in enumerate(lengths)]


@st.composite
def scenes(draw: st.DrawFn, *, most_zones: int = 4) -> Scene:
    """Jobs of 1 to 20 h with deadlines that may or may not leave slack; zones that flip every few ticks."""
    work_ticks = draw(st.integers(6, 120))
    slack_ticks = draw(st.integers(0, 60))
    changeover_s = draw(st.sampled_from([0.0, 72.0, 600.0, 720.0, 1440.0]))
    start = draw(st.integers(0, 20))
    ticks = start + work_ticks + slack_ticks + 2
    ups, prices = [], []
    for _ in range(draw(st.integers(1, most_zones))):
        lengths = draw(st.lists(st.integers(1, 30), min_size=2, max_size=10))
        ups.append([bool(up) for up in _spread(_flips(lengths, draw(st.booleans())), ticks)])
        runs = draw(st.lists(st.tuples(st.integers(5, 60), st.sampled_from([0.8, 0.9731, 1.1, 3.05])), min_size=1))
        prices.append([float(str(price)) for price in _spread(list(runs), ticks)])
    job = Job(work_ticks * TICK_S, (work_ticks + slack_ticks) * TICK_S, changeover_s, start_tick=start, seed=7)
    return Scene(market(ups, prices), job)


def scrambled(scene: Scene, after: int, seed: int) -> Scene:
    """The same up to and including tick ``after`` of the job; anything at all from then on."""
    rng = np.random.default_rng(seed)
    first = scene.job.start_tick + after + 1
    zones = [
        replace(zone, up=_other(zone.up, first, rng), spot_usd_per_h=_dearer(zone, first, rng))
        for zone in scene.market.zones
    ]
    return Scene(Market(zones, TICK_S, transfer=transfer, checkpoint_gb=scene.market.checkpoint_gb), scene.job)


def _other(up: NDArray[np.bool_], first: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    changed = up.copy()
    changed[first:] = rng.random(len(up) - first) < rng.random()
    return changed


def _dearer(zone: Zone, first: int, rng: np.random.Generator) -> NDArray[np.float64]:
    prices = np.array(zone.spot_usd_per_h, copy=True)
    prices[first:] = rng.choice([0.5, 1.0, 2.0], size=len(prices) - first)
    return prices


Decided = tuple[int, str, str | None, str]


def told(scene: Scene, policy: Policy, *, every_tick: bool = False) -> tuple[Outcome, list[Decided], list[Course]]:
    """The outcome, every decision (tick, mode, place, reason), and the courses."""
    decided: list[Decided] = []
    courses: list[Course] = []

    def watch(tick: int, situation: Situation, course: Course) -> None:
        decided.append((tick, course.mode.value, course.place, course.reason))
        courses.append(course)

    outcome = drive(scene.market, scene.job, policy, every_tick=every_tick, watcher=watch)
    return outcome, decided, courses
