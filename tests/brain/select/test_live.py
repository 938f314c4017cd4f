from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.forecast.availability import Observed
from everstep.brain.pools import PoolBook, PoolRecord
from everstep.brain.select import SELECTORS, Choice, Live, Need, Outlook, Wants
from everstep.brain.select.auto.programme import solve
from everstep.brain.select.course import Alternative, Course, Memory, Mode, Situation, View
from everstep.model.gang import Slot
from everstep.model.offers import BillingRule, MachineRequirement, Market, Offer
from everstep.model.task import OnNoCapacity, SpotMode
from tests.brain.making import JOB, offer

OD = Market.ON_DEMAND
HOUR = 3600.0
BEGAN = 1_000_000.0
#: 10 h of work within 20 h, nothing done yet; a start costs 6 min.
OUTLOOK = Outlook(BEGAN, BEGAN + 20 * HOUR, 10 * HOUR, 0.0, 360.0)
NEED = Need(JOB, Slot(0, 0), MachineRequirement(), SpotMode.AUTO, cooldown_s=1800.0, outlook=OUTLOOK)
SPOT_A, STEADY_A = offer("a", price=1.0), offer("a", OD, 3.0)
SPOT_B, STEADY_B = offer("b", price=1.2), offer("b", OD, 3.2)
FREE = Wants(work=False, deadline=False)
NEW = sorted(name for name, selector in SELECTORS.items() if isinstance(selector, Live))


def dry(of: Offer) -> Offer:
    return replace(of, available=0)


def choose(
    policy: str | Live,
    offers: Iterable[Offer],
    need: Need = NEED,
    *,
    after_h: float = 0.0,
    book: PoolBook | None = None,
) -> Choice:
    selector = SELECTORS[policy] if isinstance(policy, str) else policy
    now = BEGAN + after_h * HOUR
    return selector.choose(need, tuple(offers), beliefs=book or PoolBook(), inflight={}, now=now, rng=Random(0))


def outlook(**fields: object) -> Need:
    return replace(NEED, outlook=replace(OUTLOOK, **fields))  # type: ignore[arg-type]


@dataclass
class Probe:
    """Answers as told and keeps what it was asked."""

    answer: Course
    guarded: bool = True
    views: list[View] = field(default_factory=list)
    asked: list[Situation] = field(default_factory=list)

    def steer(self, situation: Situation, memory: Memory) -> Course:
        self.asked.append(situation)
        return self.answer

    def recall(self, views: Iterable[View]) -> Memory:
        self.views = list(views)
        return None


WAITS = Course(Mode.IDLE, None, "wait")
PLACE_A, PLACE_B = "box/a/p3.2xlarge", "box/b/p3.2xlarge"


# --- What a policy is told -------------------------------------------------------------------------------------------


def test_the_situation_is_in_market_time_and_its_deadline_is_one_changeover_early() -> None:
    probe = Probe(WAITS)
    fast = BillingRule(time_scale=360.0)
    choose(Live("probe", probe), [replace(SPOT_A, billing=fast)], outlook(done_s=HOUR), after_h=0.01)
    told = probe.asked[0]
    assert told.now_s - told.began_s == pytest.approx(0.01 * HOUR * 360)
    assert (told.work_s, told.done_s, told.changeover_s) == (3600 * HOUR, 360 * HOUR, 360.0 * 360)
    assert told.deadline_s - told.began_s == pytest.approx((20 * HOUR - 360.0) * 360)
    assert told.standing.mode is Mode.IDLE


def test_places_join_spot_and_on_demand_with_prices_of_the_whole_gang() -> None:
    probe = Probe(WAITS)
    offers = [SPOT_A, STEADY_A, dry(SPOT_B), STEADY_B, dry(offer("c", OD, 4.0))]
    choose(Live("probe", probe), offers, outlook(machines=4))
    a, b, c = probe.asked[0].places
    assert (a.name, a.region, a.spot_usd_per_h, a.on_demand_usd_per_h, a.up) == (PLACE_A, "box/r", 4.0, 12.0, True)
    assert (b.spot_usd_per_h, b.up) == (4.8, False)
    assert (c.spot_usd_per_h, c.on_demand_usd_per_h, c.up) == (None, None, False)


def test_moving_the_checkpoint_costs_only_between_regions() -> None:
    probe = Probe(WAITS)
    far = replace(offer("far", region="s"), price_usd_per_h=0.5)
    source = replace(SPOT_A, egress_usd_per_gb=0.02)
    choose(Live("probe", probe), [SPOT_A, far], outlook(saved_in=source, saved_gb=50.0))
    assert [place.move_usd for place in probe.asked[0].places] == [0.0, 1.0]


def test_leaving_costs_the_transfer_from_there_where_there_is_another_region() -> None:
    probe = Probe(WAITS)
    far = replace(offer("far", region="s"), price_usd_per_h=0.5, egress_usd_per_gb=0.09)
    near = replace(SPOT_A, egress_usd_per_gb=0.02)
    for offers, expected in (([near, far], [1.0, 4.5]), ([near, replace(SPOT_B, egress_usd_per_gb=0.02)], [0.0, 0.0])):
        choose(Live("probe", probe), offers, outlook(saved_in=near, saved_gb=50.0))
        assert [place.leave_usd for place in probe.asked[-1].places] == pytest.approx(expected)
        assert not any(place.leave_usd for view in probe.views for place in view.places)


def test_jobs_that_are_alike_share_the_programme_and_it_is_solved_anew_only_now_and_then() -> None:
    counts, offers = [], [SPOT_A, replace(SPOT_B, region="s"), STEADY_A, STEADY_B]
    book = PoolBook({SPOT_A.pool: PoolRecord(flips=((BEGAN - 72 * HOUR, True), (BEGAN - 9 * HOUR, False)))})
    for n in range(60):
        work_s = (30 + n / 20) * HOUR
        near = outlook(
            began_at=BEGAN - n * 600.0,
            deadline_at=BEGAN + (40 + n / 30) * HOUR,
            work_s=work_s,
            changeover_s=100.0 + n / 3,
        )
        before = solve.cache_info().misses
        assert choose("auto", offers, near, after_h=n / 60, book=book).offer is not None
        counts.append(solve.cache_info().misses - before)
    assert sum(counts) <= 8


def test_a_pool_that_is_cooling_down_is_not_up_and_the_lost_one_is_named() -> None:
    probe = Probe(WAITS)
    book = PoolBook({SPOT_A.pool: PoolRecord(failed_at=BEGAN - 60.0, failure="preempted")})
    choice = choose(Live("probe", probe), [SPOT_A, SPOT_B], outlook(lost=SPOT_A.pool), book=book)
    told = probe.asked[0]
    assert [place.up for place in told.places] == [False, True]
    assert told.standing.lost_from == PLACE_A
    assert choice.retry_at == BEGAN - 60.0 + 1800.0


def test_a_learner_is_shown_what_was_seen_of_all_its_places_and_nothing_later() -> None:
    probe = Probe(WAITS)
    book = PoolBook(
        {
            SPOT_A.pool: PoolRecord(flips=((BEGAN - 7200.0, True), (BEGAN - 3600.0, False), (BEGAN + 60.0, True))),
            SPOT_B.pool: PoolRecord(flips=((BEGAN - 5400.0, True),)),
        }
    )
    choose(Live("probe", probe), [SPOT_A, SPOT_B], book=book)
    began_s = probe.asked[0].began_s
    told = [(round(view.now_s - began_s, 3), tuple(place.up for place in view.places)) for view in probe.views]
    assert told == [(-7200.0, (True, None)), (-5400.0, (True, True)), (-3600.0, (False, True))]


def test_incl_avoids_a_pool_that_was_seen_to_go_all_the_time() -> None:
    often = tuple((BEGAN - HOUR + 60.0 * n, n % 2 == 0) for n in range(59))
    steady = ((BEGAN - 20 * HOUR, True),)
    book = PoolBook({SPOT_A.pool: PoolRecord(flips=often), SPOT_B.pool: PoolRecord(flips=steady)})
    assert choose("incl", [SPOT_A, SPOT_B, STEADY_A], book=book).offer == SPOT_B
    assert choose("incl", [SPOT_A, SPOT_B, STEADY_A]).offer == SPOT_A
    assert choose("incl", [SPOT_A, STEADY_A], book=book).offer == STEADY_A


# --- What becomes of its answer --------------------------------------------------------------------------------------


def test_the_alternatives_of_a_course_are_the_candidates() -> None:
    costs = (
        Alternative(Mode.SPOT, PLACE_A, 20.0),
        Alternative(Mode.ON_DEMAND, PLACE_A, 30.0),
        Alternative(Mode.SPOT, PLACE_B, math.inf),
        Alternative(Mode.IDLE, None, 25.0),
    )
    course = Course(Mode.SPOT, PLACE_A, "it is cheap", alternatives=costs, basis="by guessing")
    choice = choose(Live("probe", Probe(course)), [SPOT_A, STEADY_A, dry(SPOT_B)])
    assert choice.offer == SPOT_A
    assert choice.reason == "probe: it is cheap (by guessing)"
    shown = {c.what: (c.score, c.verdict) for c in choice.candidates}
    assert shown == {
        "box/a/p3.2xlarge/spot": (2.0, "chosen: the rest of the job would cost $20.00"),
        "box/a/p3.2xlarge/on_demand": (3.0, "possible: the rest of the job would cost $30.00"),
        "box/b/p3.2xlarge/spot": (None, "no capacity"),
        "wait": (2.5, "possible: the rest of the job would cost $25.00"),
    }


def test_waiting_ends_when_the_policy_wants_to_look_again() -> None:
    origin_s = BEGAN // 86_400 * 86_400  # the clock of situations begins at midnight
    waits = replace(WAITS, wake_at=BEGAN - origin_s + 7200.0)
    choice = choose(Live("probe", Probe(waits)), [dry(SPOT_A), STEADY_A])
    assert (choice.offer, choice.retry_at, choice.reason) == (None, BEGAN + 7200.0, "probe: wait")


def test_the_text_of_a_wait_has_no_figures_that_change_at_every_look() -> None:
    early, late = (
        choose("uniform_progress", [dry(SPOT_A), STEADY_A], outlook(done_s=HOUR), after_h=h) for h in (0.1, 0.2)
    )
    assert early.offer is None
    assert late.offer is None
    assert early.reason == late.reason


def test_the_safety_net_has_the_last_word_and_says_when_it_will_speak() -> None:
    waits, offers = Live("probe", Probe(WAITS)), [dry(SPOT_A), STEADY_A]
    early = choose(waits, offers)
    # 20 h less 10 h of work, less two changeovers: as in ``guard.must_on_demand``.
    assert early.retry_at == pytest.approx(BEGAN + 10 * HOUR - 720.0)
    late = choose(waits, offers, replace(NEED, must_on_demand=True), after_h=9.9)
    assert late.offer == STEADY_A
    assert "safety net" in late.reason


def test_spot_only_is_not_held_to_the_deadline() -> None:
    must = replace(NEED, must_on_demand=True)
    assert choose("spot_only", [dry(SPOT_A), STEADY_A], must, after_h=15).offer is None
    assert choose("spot_only", [SPOT_A, STEADY_A], must, after_h=15).offer == SPOT_A


def test_a_course_that_leads_nowhere_is_a_wait() -> None:
    assert choose(Live("probe", Probe(Course(Mode.SPOT, "nowhere", "so"))), [SPOT_A]).offer is None


# --- The policies, by name -------------------------------------------------------------------------------------------


def test_every_policy_of_the_simulator_has_a_name_here() -> None:
    assert {"spot_only", "spell", "incl", "uniform_progress", "utility", "cheapest", "failover"} <= set(NEW)
    assert not {"greedy", "on_demand", "rotate"} & set(NEW), "these are what they have always been"


@pytest.mark.parametrize("policy", NEW)
def test_each_takes_spot_that_is_there_at_a_third_of_the_price(policy: str) -> None:
    assert choose(policy, [SPOT_A, STEADY_A]).offer == SPOT_A


def test_uniform_progress_waits_while_it_is_ahead_and_goes_on_demand_when_behind() -> None:
    offers = [dry(SPOT_A), STEADY_A]
    assert choose("uniform_progress", offers, outlook(done_s=2 * HOUR), after_h=2).offer is None
    assert choose("uniform_progress", offers, outlook(done_s=HOUR), after_h=4).offer == STEADY_A


def test_the_published_greedy_waits_where_ours_goes_on_demand() -> None:
    offers = [dry(SPOT_A), STEADY_A]
    assert choose("greedy_spot_safety_net", offers).offer is None
    assert choose("greedy", offers).offer == STEADY_A


def test_failover_leaves_the_region_that_was_lost() -> None:
    elsewhere = offer("x", price=1.5, region="s")
    assert choose("failover", [SPOT_A, elsewhere], outlook(lost=SPOT_A.pool)).offer == elsewhere
    assert choose("uniform_progress", [SPOT_A, elsewhere], outlook(lost=SPOT_A.pool)).offer == SPOT_A


def test_spell_goes_on_from_the_zone_after_the_last_one() -> None:
    zones = [offer(z) for z in "abcd"]
    order: list[Offer] = []
    for _ in range(8):
        taken = choose("spell", zones, outlook(begun=tuple(o.pool for o in order))).offer
        assert taken is not None
        order.append(taken)
    assert {o.zone for o in order[:4]} == set("abcd")
    assert order[4:] == order[:4]


# --- When something is not known -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "lacks", "words"),
    [
        ("uniform_progress", {"work_s": None}, "needs the work left"),
        ("uniform_progress", {"deadline_at": None}, "needs a deadline"),
        (
            "utility",
            {"work_s": None, "deadline_at": None},
            "needs the work left (work, or a script that reports its total) and",
        ),
        ("cheapest", {"work_s": None}, "needs the work left"),
    ],
)
def test_a_policy_that_lacks_what_it_needs_leaves_it_to_greedy_and_says_so(
    policy: str, lacks: dict[str, object], words: str
) -> None:
    choice = choose(policy, [dry(SPOT_A), STEADY_A], outlook(**lacks))
    assert choice.offer == STEADY_A
    assert words in choice.reason
    assert "greedy instead" in choice.reason
    assert "\n" not in choice.reason


def test_utility_needs_an_on_demand_price_to_value_progress() -> None:
    assert "on-demand to be had" in choose("utility", [SPOT_A]).reason
    assert choose("utility", [SPOT_A]).offer == SPOT_A


@pytest.mark.parametrize("policy", ["spell", "incl", "spot_only"])
def test_the_others_need_neither_work_nor_deadline(policy: str) -> None:
    choice = choose(policy, [SPOT_A, SPOT_B, STEADY_A], outlook(work_s=None, deadline_at=None))
    assert choice.offer is not None
    assert choice.offer.market is Market.SPOT
    assert "instead" not in choice.reason
    assert not any("the rest of the job" in c.verdict for c in choice.candidates), "nobody knows what is left"


def test_cheapest_does_without_a_deadline() -> None:
    assert choose("cheapest", [SPOT_A, STEADY_A], outlook(deadline_at=None)).reason.startswith("cheapest: the cheapest")


def test_a_deadline_without_known_work_does_not_set_off_the_net() -> None:
    assert choose("spot_only", [dry(SPOT_A), STEADY_A], outlook(work_s=None), after_h=19.9).offer is None


# --- The task's wishes -----------------------------------------------------------------------------------------------


def test_a_machine_of_ones_own_comes_first_unless_spot_is_cheaper() -> None:
    own = offer("home", Market.STATIC, 0.0)
    assert choose("uniform_progress", [SPOT_A, STEADY_A, own]).offer == own
    dear = offer("home", Market.RESERVED, 2.0)
    assert choose("uniform_progress", [SPOT_A, dear]).offer == SPOT_A


def test_spot_false_means_on_demand_at_once() -> None:
    assert choose("uniform_progress", [SPOT_A, STEADY_A], replace(NEED, spot=SpotMode.FALSE)).offer == STEADY_A


def test_when_only_spot_is_allowed_and_all_is_cooling_down_the_longest_rested_is_tried() -> None:
    only = replace(NEED, spot=SpotMode.TRUE)
    book = PoolBook({o.pool: PoolRecord(failed_at=BEGAN - ago) for o, ago in ((SPOT_A, 200.0), (SPOT_B, 300.0))})
    assert choose("uniform_progress", [SPOT_A, SPOT_B, STEADY_A], only, book=book).offer == SPOT_B


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
OUTLOOKS = st.builds(
    Outlook,
    st.just(BEGAN),
    st.none() | st.floats(-5 * HOUR, 60 * HOUR).map(lambda s: BEGAN + s),
    st.none() | st.floats(0.0, 40 * HOUR),
    st.just(0.0),
    st.floats(0.0, HOUR),
    machines=st.integers(1, 4),
)


def must(told: Outlook, now: float) -> bool:
    """As ``guard.must_on_demand`` has it."""
    if told.deadline_at is None or told.work_s is None:
        return False
    return told.deadline_at - now <= told.work_s + 2 * told.changeover_s


@given(
    st.sampled_from(NEW),
    OFFERS,
    OUTLOOKS,
    st.sampled_from(list(SpotMode)),
    st.none() | st.sampled_from(list(OnNoCapacity)),
    st.floats(0, 20),
    st.floats(0, 4000),
)
def test_what_is_forbidden_is_never_taken_and_the_net_always_holds(
    policy: str,
    offers: list[Offer],
    told: Outlook,
    spot: SpotMode,
    dry_spell: OnNoCapacity | None,
    after_h: float,
    ago: float,
) -> None:
    now = BEGAN + after_h * HOUR
    need = replace(NEED, spot=spot, on_no_capacity=dry_spell, outlook=told, must_on_demand=must(told, now))
    book = PoolBook(
        {
            o.pool: PoolRecord(
                failed_at=now - ago, failure="preempted", seen=Observed.begin(now, True), flips=((now - ago, False),)
            )
            for o in offers[::2]
        }
    )
    choice = choose(policy, offers, need, after_h=after_h, book=book)
    assert choice.reason
    assert "\n" not in choice.reason
    assert choice == choose(policy, offers, need, after_h=after_h, book=book)
    taken = choice.offer
    if taken is not None:
        assert taken in offers
        assert taken.available is None or taken.available > 0
        if taken.market is Market.SPOT:
            assert spot is not SpotMode.FALSE
            assert taken.price_usd_per_h <= taken.on_demand_usd_per_h + 1e-9
        elif taken.market is OD:
            assert need.on_demand_allowed
    guarded = policy != "spot_only"
    had = [o for o in offers if o.market is not Market.SPOT and (o.available is None or o.available > 0)]
    if guarded and need.must_on_demand and any(o.pool not in book.records for o in had):
        assert taken is not None
        assert taken.market is not Market.SPOT
    assert choice.retry_at is None or math.isfinite(choice.retry_at)
