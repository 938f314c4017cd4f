"""What `auto` takes from what it sees, and from the past."""

from __future__ import annotations

from dataclasses import replace

import pytest

from everstep.brain.forecast.availability import Observed
from everstep.brain.select.auto.beliefs import FIRST_AGE_S, Seen, prospect
from everstep.brain.select.course import Place, Situation, Standing, View

HOUR = 3600.0


def situation(now_s: float, *ups: bool | None) -> Situation:
    places = tuple(Place(f"p{n}", f"r{n % 2}", 1.0 + n / 10, 3.0, up, leave_usd=2.0) for n, up in enumerate(ups))
    return Situation(now_s, 0.0, 60 * HOUR, 40 * HOUR, 0.0, 720.0, 0.0, Standing(), places)


def view(at_h: float, *ups: bool | None) -> View:
    return View(at_h * HOUR, situation(0.0, *ups).places)


def test_the_past_is_counted_as_if_it_had_been_watched() -> None:
    views = [view(-10, True, False), view(-8, True, False), view(-4, False, True), view(-1, False, False)]
    before = list(Seen.each(views))
    # A view in which nothing is new is no change.
    assert [one.at_s / HOUR for one in before] == [-10, -4, -1]
    seen = before[-1].after(situation(0.0, True, False))
    one = Observed.begin(-10 * HOUR, True, age_s=FIRST_AGE_S).watched(-4 * HOUR, False)
    two = Observed.begin(-10 * HOUR, False, age_s=FIRST_AGE_S).watched(-4 * HOUR, True).watched(-HOUR, False)
    both = Observed.begin(-10 * HOUR, True, age_s=FIRST_AGE_S).watched(-HOUR, False).watched(0.0, True)
    assert not list(Seen.each([]))
    for found, expected in zip((*seen.places, seen.any_place), (one.watched(0.0, True), two, both), strict=True):
        assert found is not None
        lived = expected.watched(0.0, found.up)
        assert (found.up, found.since_s) == (lived.up, lived.since_s)
        for direction in ("up_runs", "down_runs"):
            mine, theirs = getattr(found, direction), getattr(lived, direction)
            assert mine.events == theirs.events
            assert mine.exposure_h == pytest.approx(theirs.exposure_h)


def test_a_place_not_looked_at_is_not_counted_and_then_its_flip_is_put_in_the_middle() -> None:
    seen = Seen.first(situation(0.0, True, True))
    hidden = seen.after(situation(HOUR, None, True))
    assert hidden.places[0] == seen.places[0]
    shown = hidden.after(situation(2 * HOUR, False, True)).places[0]
    assert shown is not None
    assert (shown.up, shown.since_s) == (False, HOUR)


def test_the_prospect_is_the_cheapest_place_where_it_is_always_up() -> None:
    (before,) = Seen.each([view(-400, True, True, True)])
    now = situation(0.0, True, True, True)
    found = prospect(now, before.after(now))
    assert found is not None
    assert 1.0 <= found.spot_usd_per_h < 1.1
    assert found.drop_per_h < 0.1
    # Places 0 and 2 share a region: after a loss there, transfer is less likely than from place 1.
    assert found.leave_usd[0] < found.leave_usd[1] == 2.0


def test_one_place_is_its_own_market_and_none_has_no_prospect() -> None:
    alone = situation(0.0, True)
    found = prospect(alone, Seen.first(alone))
    assert found is not None
    assert (found.together, found.drop_per_h, found.transfer_usd) == (found.rates[0], 0.0, 0.0)
    unsold = replace(alone, places=(replace(alone.places[0], spot_usd_per_h=None),))
    assert prospect(unsold, Seen.first(unsold)) is None
