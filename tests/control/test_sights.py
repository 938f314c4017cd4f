"""What of the market is worth a line of its stream, and what the pool book learns from those lines again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.pools import PoolBook, see_offers
from everstep.control.sights import FULL_EVERY, SEEN, Sight, Sights, fold, parse_pool
from everstep.model.causes import InstanceEnd
from everstep.model.events import InstanceEnded, LaunchFailed, LaunchSucceeded
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.offers import MachineRequirement, Market, Offer, Pool
from tests.brain.making import fold as folded
from tests.brain.making import fresh, machine, offer

ANY = frozenset([MachineRequirement()])
A, B = offer("a", available=3), offer("b", price=1.2, available=0)
STEADY = offer("a", Market.ON_DEMAND, 3.0)


def look(sights: Sights, now: float, *offers: Offer, answered: tuple[str, ...] = ("box",)) -> dict[str, Any] | None:
    sight = sights.look(offers, answered, ANY, now)
    return None if sight is None else dict(sight.body)


def listed(body: Mapping[str, Any] | None) -> list[str]:
    assert body is not None
    return [name.split("/")[1] for name, _, _ in body["pools"]]


def test_the_first_line_has_everything_and_the_next_what_came_or_went() -> None:
    sights = Sights()
    first = look(sights, 0.0, A, B, STEADY)
    assert first is not None
    assert (first["full"], first["looked"]) == (True, {"box": 0.0})
    assert first["pools"] == [[str(STEADY.pool), 3.0, None], [str(A.pool), 1.0, 3], [str(B.pool), 1.2, 0]]
    assert look(sights, 5.0, A, B, STEADY) is None
    assert look(sights, 10.0, replace(A, available=1), B, STEADY) is None, "there is still one"
    assert listed(look(sights, 15.0, replace(A, available=0), B, STEADY)) == ["a"]
    came = look(sights, 20.0, replace(A, available=0), replace(B, available=2), STEADY)
    assert came is not None
    assert (came["full"], came["looked"], listed(came)) == (False, {"box": 15.0}, ["b"])


def test_prices_are_told_once_a_minute_and_that_somebody_looks_every_ten() -> None:
    sights = Sights()
    look(sights, 0.0, A)
    told = {}
    for n in range(1, 400):
        now = 5.0 * n
        body = look(sights, now, replace(A, price_usd_per_h=1.0 + min(n, 30) / 100))
        if body is not None:
            told[now] = body["pools"]
    early = [at for at in told if at <= 180.0]
    assert early == [60.0, 120.0, 180.0]
    assert told[180.0] == [[str(A.pool), 1.3, 3]]
    assert [(at, pools) for at, pools in told.items() if at > 180.0] == [(780.0, []), (1380.0, []), (1980.0, [])]


def test_a_pool_that_is_not_offered_any_more_has_none_and_an_answer_that_failed_tells_nothing() -> None:
    sights = Sights()
    look(sights, 0.0, A, B)
    failed = look(sights, 5.0, A, B, answered=())
    assert failed is None
    back = look(sights, 10.0, A)
    assert back is not None
    assert back["looked"] == {"box": 10.0}, "the watch began anew"
    gone = look(sights, 15.0, B)
    assert gone is not None
    assert gone["pools"] == [[str(A.pool), 1.0, 0]]


def test_looks_far_apart_are_not_one_watch() -> None:
    sights = Sights()
    look(sights, 0.0, A)
    later = look(sights, 4000.0, A)
    assert later is not None
    assert later["looked"] == {"box": 4000.0}


def test_pools_that_no_job_could_use_are_not_followed() -> None:
    sights = Sights()
    elsewhere = frozenset([MachineRequirement(places=(("", "", "b"),))])
    sight = sights.look([A, B], ["box"], elsewhere, 0.0)
    assert sight is not None
    assert listed(sight.body) == ["b"]
    gone = sights.look([A, replace(B, available=1)], ["box"], frozenset(), 5.0)
    assert gone is not None, "between two jobs the market goes on"
    assert listed(gone.body) == ["b"]
    assert Sights().look([A, B], ["box"], frozenset(), 5.0) is None


def test_now_and_then_a_line_has_everything() -> None:
    sights = Sights()
    bodies = [look(sights, 5.0 * n, replace(A, available=n % 2), B) for n in range(2 * FULL_EVERY + 1)]
    full = [n for n, body in enumerate(bodies) if body is not None and body["full"]]
    assert full == [0, FULL_EVERY, 2 * FULL_EVERY]
    assert listed(bodies[FULL_EVERY]) == ["a", "b"]
    assert listed(bodies[1]) == ["a"]


def test_answers_to_launches_and_losses_are_told_but_not_over_and_over() -> None:
    sights = Sights()
    job = folded(fresh(), machine(1)[:1])
    (asked,) = job.instances.values()
    won = LaunchSucceeded(LaunchToken("t-1"), InstanceId("i-1"), 0.0, 1.0)
    dry = LaunchFailed(LaunchToken("t-1"), "no_capacity", "")
    told = [
        (event, now, sights.answer(event, asked, now))
        for event, now in ((won, 0.0), (won, 10.0), (dry, 20.0), (dry, 30.0), (won, 40.0), (won, 101.0))
    ]
    assert [(now, sight.body["up"], sight.body["why"]) for _, now, sight in told if sight is not None] == [
        (0.0, True, "launched"),
        (20.0, False, "no_capacity"),
        (40.0, True, "launched"),
        (101.0, True, "launched"),
    ]
    assert sights.answer(LaunchFailed(LaunchToken("t-1"), "unauthorized", ""), asked, 200.0) is None
    assert sights.answer(InstanceEnded(InstanceId("i-1"), 200.0, InstanceEnd.OWNER), asked, 200.0) is None
    taken = sights.answer(InstanceEnded(InstanceId("i-1"), 200.0, InstanceEnd.PREEMPTED), asked, 200.0)
    assert taken is not None
    assert taken.body["why"] == "preempted"
    steady = replace(asked, offer=STEADY)
    assert sights.answer(won, steady, 900.0) is None, "on-demand does not run dry"


def no_machines() -> dict[Pool, int]:
    return {}


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=40))
def test_the_lines_give_the_book_that_the_looks_gave(looks: list[tuple[int, int, int]]) -> None:
    sights, book, again = Sights(), PoolBook(), PoolBook()
    now, seen_before = 1000.0, False
    for passed, a, b in looks:
        now += passed
        offers = replace(A, available=a), replace(B, available=b), STEADY
        book = see_offers(book, offers, {}, now, watched=seen_before)
        seen_before = True
        sight = sights.look(offers, ["box"], ANY, now)
        if sight is not None:
            again = fold(again, sight, no_machines)
    flips = {pool: record.flips for pool, record in book.records.items()}
    assert {pool: record.flips for pool, record in again.records.items()} == flips


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"pools": 3, "looked": {}},
        {"pools": [["x"]], "looked": {}},
        {"pools": [["box/a/m/spot", 1.0, "many"]], "looked": {"box": "now"}},
        {"pools": [["box/a/m/spot", 1.0, 1]], "looked": ["box"]},
        {"pools": [["a/b", 1.0, 1], ["box/a/m/barter", 1.0, 1]], "looked": {"box": 1.0}},
    ],
)
def test_a_line_of_another_version_teaches_nothing_and_does_no_harm(body: dict[str, Any]) -> None:
    assert fold(PoolBook(), Sight(SEEN, body, 5.0), no_machines) == PoolBook()
    assert fold(PoolBook(), Sight("PoolsDreamt", body, 5.0), no_machines) == PoolBook()


def test_a_pool_is_named_and_found_again() -> None:
    assert parse_pool(str(A.pool)) == A.pool
    assert parse_pool("box/a/p3.2xlarge") is None
