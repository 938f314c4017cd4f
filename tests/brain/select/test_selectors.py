from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.pools import PoolBook, PoolRecord
from everstep.brain.select import SELECTORS, Choice, Need
from everstep.model.gang import Slot
from everstep.model.offers import MachineRequirement, Market, Offer
from everstep.model.task import OnNoCapacity, SpotMode
from tests.brain.making import JOB, offer

NOW = 10_000.0
NEED = Need(JOB, Slot(0, 0), MachineRequirement(), SpotMode.AUTO, cooldown_s=1800.0)
OD = Market.ON_DEMAND


def failed_at(at: float, *offers: Offer) -> PoolBook:
    return PoolBook({o.pool: PoolRecord(failed_at=at, failure="preempted") for o in offers})


def choose(
    policy: str,
    offers: list[Offer],
    need: Need = NEED,
    book: PoolBook | None = None,
    inflight: dict[Offer, int] | None = None,
) -> Choice:
    counts = {o.pool: n for o, n in (inflight or {}).items()}
    return SELECTORS[policy].choose(need, offers, beliefs=book or PoolBook(), inflight=counts, now=NOW, rng=Random(0))


def test_greedy_takes_the_cheapest_spot_pool() -> None:
    cheap, dear = offer("b", price=0.9), offer("a", price=1.1)
    assert choose("greedy", [dear, cheap, offer("c", OD, 3.0)]).offer == cheap


def test_greedy_takes_on_demand_when_spot_is_no_cheaper() -> None:
    spot, steady = offer("a", price=3.0), offer("b", OD, 3.0)
    assert choose("greedy", [spot, steady]).offer == steady


def test_a_pool_that_failed_cools_down_and_the_next_is_taken() -> None:
    cheap, other = offer("a", price=0.5), offer("b", price=1.0)
    choice = choose("greedy", [cheap, other], book=failed_at(NOW - 100, cheap))
    assert choice.offer == other
    verdicts = {c.what: c.verdict for c in choice.candidates}
    assert verdicts[str(cheap.pool)] == "cooling down after preempted for 1700 s more"
    assert choose("greedy", [cheap, other], book=failed_at(NOW - 1800, cheap)).offer == cheap


def test_with_all_spot_cooling_on_demand_is_next_where_allowed() -> None:
    spot, steady = offer("a"), offer("b", OD, 3.0)
    book = failed_at(NOW - 100, spot)
    assert choose("greedy", [spot, steady], book=book).offer == steady
    only_spot = replace(NEED, spot=SpotMode.TRUE)
    assert choose("greedy", [spot, steady], only_spot, book).offer is None


@pytest.mark.parametrize("policy", ["greedy", "rotate"])
def test_the_cool_down_is_shorter_when_nothing_else_is_left(policy: str) -> None:
    only_spot = replace(NEED, spot=SpotMode.TRUE)
    early, late = offer("a"), offer("b")
    book = PoolBook({early.pool: PoolRecord(failed_at=NOW - 300), late.pool: PoolRecord(failed_at=NOW - 200)})
    assert choose(policy, [early, late], only_spot, book).offer == early
    waiting = choose(policy, [early, late], only_spot, failed_at(NOW - 100, early, late))
    assert (waiting.offer, waiting.retry_at) == (None, NOW + 80.0)


def test_spot_false_never_takes_spot_and_spot_true_never_on_demand() -> None:
    spot, steady = offer("a"), offer("b", OD, 3.0)
    assert choose("greedy", [spot], replace(NEED, spot=SpotMode.FALSE)).offer is None
    assert choose("greedy", [steady], replace(NEED, spot=SpotMode.TRUE)).offer is None
    assert choose("greedy", [steady], replace(NEED, spot=SpotMode.TRUE, on_no_capacity=OnNoCapacity.ON_DEMAND)).offer


def test_waiting_in_a_drought_means_no_on_demand_but_machines_of_ones_own() -> None:
    wait = replace(NEED, on_no_capacity=OnNoCapacity.WAIT)
    own = offer("home", Market.STATIC, 0.0)
    assert choose("greedy", [offer("b", OD, 3.0)], wait).offer is None
    assert choose("greedy", [offer("b", OD, 3.0), own], wait).offer == own


def test_a_free_machine_of_ones_own_is_taken_first() -> None:
    own = offer("home", Market.STATIC, 0.0)
    assert choose("greedy", [offer("a", price=0.1), own]).offer == own


def test_the_safety_net_means_on_demand_and_spot_only_where_there_is_none() -> None:
    must = replace(NEED, spot=SpotMode.TRUE, must_on_demand=True)
    spot, steady = offer("a", price=0.1), offer("b", OD, 3.0)
    assert choose("greedy", [spot, steady], must).offer == steady
    assert choose("greedy", [spot], must).offer == spot
    assert choose("greedy", [spot], replace(must, spot=SpotMode.FALSE)).offer is None


def test_zones_and_regions_of_the_rest_of_the_gang_bind() -> None:
    here, there = offer("a", price=2.0), offer("b", price=1.0, region="s")
    assert choose("greedy", [here, there], replace(NEED, zones=frozenset({"a"}))).offer == here
    assert choose("greedy", [here, there], replace(NEED, regions=frozenset({"r"}))).offer == here


def test_capacity_that_launches_under_way_will_take_is_not_there() -> None:
    spot = offer("a", available=2)
    assert choose("greedy", [spot], inflight={spot: 1}).offer == spot
    assert choose("greedy", [spot], inflight={spot: 2}).offer is None


def test_on_demand_never_takes_spot() -> None:
    steady = offer("b", OD, 3.0)
    assert choose("on_demand", [offer("a", price=0.1), steady]).offer == steady
    assert choose("on_demand", [offer("a", price=0.1)]).offer is None


def test_rotate_goes_round_the_zones_in_an_order_of_the_jobs_own() -> None:
    zones = [offer(z, price=p) for z, p in zip("abcdef", (1, 2, 0.5, 1.5, 0.7, 0.9), strict=True)]
    first = choose("rotate", zones).offer
    assert first is not None
    order = [first]
    while len(order) < len(zones):
        following = choose("rotate", zones, book=failed_at(NOW - 1, *order)).offer
        assert following is not None
        order.append(following)
    assert {o.zone for o in order} == set("abcdef")
    orders = {choose("rotate", zones, replace(NEED, job=f"j-{n}")).offer for n in range(20)}  # type: ignore[arg-type]
    assert len(orders) > 1
    assert choose("rotate", zones, book=failed_at(NOW - 1, *order)).offer is None
    steady = offer("a", OD, 3.0)
    assert choose("rotate", [*zones, steady], book=failed_at(NOW - 1, *order)).offer == steady


OFFERS = st.lists(
    st.builds(
        offer,
        st.sampled_from("abc"),
        st.sampled_from(list(Market)),
        st.floats(0.0, 5.0),
        on_demand=st.floats(0.5, 4.0),
        available=st.none() | st.integers(0, 2),
    ),
    max_size=8,
)
NEEDS = st.builds(
    Need,
    st.just(JOB),
    st.just(Slot(0, 0)),
    st.just(MachineRequirement()),
    st.sampled_from(list(SpotMode)),
    max_price_usd_per_h=st.none() | st.floats(0.0, 4.0),
    on_no_capacity=st.none() | st.sampled_from(list(OnNoCapacity)),
    cooldown_s=st.floats(0, 4000),
    must_on_demand=st.booleans(),
)


@given(st.sampled_from(sorted(SELECTORS)), OFFERS, NEEDS, st.floats(0, 4000))
def test_no_policy_pays_more_than_it_may_or_takes_what_is_forbidden(
    policy: str, offers: list[Offer], need: Need, ago: float
) -> None:
    choice = choose(policy, offers, need, failed_at(NOW - ago, *offers[::2]))
    taken = choice.offer
    assert choice.reason
    if taken is None:
        return
    assert taken in offers
    assert taken.available is None or taken.available > 0
    if taken.market is Market.SPOT:
        assert need.spot is not SpotMode.FALSE
        assert taken.price_usd_per_h <= taken.on_demand_usd_per_h + 1e-9
        assert need.max_price_usd_per_h is None or taken.price_usd_per_h <= need.max_price_usd_per_h + 1e-9
    elif need.spot is SpotMode.TRUE:
        assert need.on_demand_allowed
    assert choice == choose(policy, offers, need, failed_at(NOW - ago, *offers[::2]))


@pytest.mark.parametrize("policy", ["greedy", "rotate"])
def test_the_vendors_newer_count_lifts_the_cool_down_of_a_dry_pool_but_not_of_one_that_preempted(policy: str) -> None:
    need = replace(NEED, spot=SpotMode.TRUE)
    counted = replace(offer("a", available=3), price_as_of=NOW - 5)

    def chosen(shown: Offer, failure: str, at: float = NOW - 100) -> Offer | None:
        book = PoolBook({shown.pool: PoolRecord(failed_at=at, failure=failure)})
        return choose(policy, [shown], need, book).offer

    assert chosen(counted, "no_capacity") == counted
    assert chosen(counted, "preempted") is None
    assert chosen(counted, "no_capacity", at=NOW - 1) is None, "that count is older than the refusal"
    assert chosen(replace(counted, available=None), "no_capacity") is None, "the vendor does not count"
