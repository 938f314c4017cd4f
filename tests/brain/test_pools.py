from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.pools import PoolBook, PoolRecord, note_pools, see_offers
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.events import InstanceEnded, LaunchFailed, LaunchIntended, LaunchSucceeded, NoticeReceived
from everstep.model.ids import InstanceId, LaunchToken
from everstep.model.offers import Market
from tests.brain.making import fold, machine, offer, running

POOL = offer().pool
I1 = InstanceId("i-1")


def test_a_preemption_counts_once_and_cools_from_its_end() -> None:
    state = running()
    before = state.instances[LaunchToken("t-1")]
    notice = NoticeReceived(I1, NoticeKind.TERMINATE, 40.0)
    book = note_pools(PoolBook(), notice, before, 10.0)
    assert (book.record(POOL).preemptions, book.cooling_until(POOL, 100.0)) == (1, 110.0)
    warned = fold(state, [notice]).instances[LaunchToken("t-1")]
    book = note_pools(book, notice, warned, 11.0)
    book = note_pools(book, InstanceEnded(I1, 40.0, InstanceEnd.PREEMPTED), warned, 41.0)
    assert (book.record(POOL).preemptions, book.cooling_until(POOL, 100.0)) == (1, 141.0)


def test_what_we_end_ourselves_is_no_preemption() -> None:
    before = running().instances[LaunchToken("t-1")]
    for end in (InstanceEnd.OWNER, InstanceEnd.BOOT_FAILED, InstanceEnd.LOST, InstanceEnd.MAX_LIFE):
        assert note_pools(PoolBook(), InstanceEnded(I1, 40.0, end), before, 41.0) == PoolBook()


def test_a_refusal_cools_the_pool_down() -> None:
    before = running().instances[LaunchToken("t-1")]
    book = note_pools(PoolBook(), LaunchFailed(LaunchToken("t-1"), "no_capacity", "none"), before, 5.0)
    assert (book.record(POOL).refusals, book.record(POOL).failure) == (1, "no_capacity")
    assert book.cooling_until(POOL, 30.0) == 35.0
    assert PoolBook().cooling_until(POOL, 30.0) == 0.0


def test_credits_come_back_when_launches_leave_the_minute() -> None:
    book = PoolBook({POOL: PoolRecord(launched_at=(0.0, 10.0, 20.0))})
    assert book.credit_at(POOL, 30.0, 4) == 30.0
    assert book.credit_at(POOL, 30.0, 3) == 60.0
    assert book.credit_at(POOL, 30.0, 2) == 70.0
    assert book.credit_at(POOL, 61.0, 3) == 61.0
    assert book.credit_at(POOL, 30.0, 4, planned=1) == 60.0
    assert book.credit_at(POOL, 30.0, 1, planned=5) == 90.0


def test_a_launch_is_counted_when_it_is_intended() -> None:
    intended = machine(1)[0]
    assert isinstance(intended, LaunchIntended)
    book = note_pools(PoolBook(), intended, None, 7.0)
    assert book.launches_in_window(POOL, 60.0) == 1
    assert book.launches_in_window(POOL, 67.0) == 0


@given(st.integers(1, 5), st.lists(st.floats(0, 300), max_size=40))
def test_no_minute_sees_more_launches_than_there_are_credits(per_minute: int, wishes: list[float]) -> None:
    intended = machine(1)[0]
    book, made = PoolBook(), list[float]()
    for wish in sorted(wishes):
        if book.credit_at(POOL, wish, per_minute) <= wish:
            made.append(wish)
            book = note_pools(book, intended, None, wish)
    for start in made:
        assert sum(start <= at < start + 60.0 for at in made) <= per_minute


# --- When spot was there ---------------------------------------------------------------------------------------------


def launched(book: PoolBook, now: float) -> PoolBook:
    before = running().instances[LaunchToken("t-1")]
    return note_pools(book, LaunchSucceeded(LaunchToken("t-1"), I1, now, 1.0), before, now)


def refused(book: PoolBook, now: float, error: str = "no_capacity") -> PoolBook:
    before = running().instances[LaunchToken("t-1")]
    return note_pools(book, LaunchFailed(LaunchToken("t-1"), error, "none"), before, now)


def preempted(book: PoolBook, now: float) -> PoolBook:
    before = running().instances[LaunchToken("t-1")]
    return note_pools(book, InstanceEnded(I1, now, InstanceEnd.PREEMPTED), before, now)


def look(book: PoolBook, now: float, available: int | None, held: int = 0, *, watched: bool = True) -> PoolBook:
    return see_offers(book, [offer(available=available)], {POOL: held}, now, watched=watched)


def test_where_nobody_counts_launches_and_preemptions_tell_when_spot_was_there() -> None:
    book = launched(refused(preempted(launched(look(PoolBook(), 0.0, None), 10.0), 3610.0), 3700.0), 7300.0)
    record = book.record(POOL)
    # It came back somewhere between the refusal and the next start.
    assert record.flips == ((10.0, True), (3610.0, False), (5500.0, True))
    assert record.seen is not None
    assert (sum(record.seen.up_runs.events), sum(record.seen.up_runs.exposure_h)) == (1.0, 1.0 + 0.5)
    assert sum(record.seen.down_runs.exposure_h) == pytest.approx(1890 / 3600)


def test_a_refusal_for_another_reason_says_nothing_about_spot() -> None:
    assert refused(PoolBook(), 10.0, "quota_exceeded").record(POOL).seen is None


def test_on_demand_is_not_followed() -> None:
    steady = offer(market=Market.ON_DEMAND, available=0)
    assert see_offers(PoolBook(), [steady], {}, 0.0, watched=True) == PoolBook()


def test_looks_tell_when_spot_was_there_where_the_provider_counts() -> None:
    book = look(look(look(PoolBook(), 0.0, 3), 60.0, 0), 120.0, 1)
    assert book.record(POOL).flips == ((0.0, True), (60.0, False), (120.0, True))
    assert launched(book, 130.0) == book, "looks tell it better"


def test_a_pool_that_is_not_offered_any_more_is_not_there() -> None:
    book = see_offers(look(PoolBook(), 0.0, 3), [], {}, 60.0, watched=True)
    assert book.record(POOL).flips == ((0.0, True), (60.0, False))
    assert see_offers(launched(PoolBook(), 0.0), [], {}, 60.0, watched=True) == launched(PoolBook(), 0.0)


def test_a_pool_of_which_we_hold_the_last_machine_is_there_until_it_is_taken() -> None:
    book = look(look(PoolBook(), 0.0, 1), 60.0, 0, held=1)
    assert book.record(POOL).flips == ((0.0, True),)
    assert preempted(book, 90.0).record(POOL).flips == ((0.0, True), (90.0, False))


def test_one_machine_of_many_that_is_taken_does_not_empty_the_pool() -> None:
    assert preempted(look(PoolBook(), 0.0, 5), 90.0).record(POOL).flips == ((0.0, True),)


def test_a_change_while_nobody_looked_is_put_in_the_middle_of_the_gap() -> None:
    book = look(look(PoolBook(), 0.0, 3), 600.0, 0, watched=False)
    assert book.record(POOL).flips == ((0.0, True), (300.0, False))


def test_a_look_that_shows_nothing_new_leaves_the_book_as_it_was() -> None:
    book = look(PoolBook(), 0.0, 3)
    assert look(book, 60.0, 2) is book


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 5)), max_size=200))
def test_the_book_stays_small_and_in_order_whatever_comes(facts: list[tuple[float, int]]) -> None:
    book = PoolBook()
    steps = (
        launched, refused, preempted, lambda b, at: look(b, at, 0), lambda b, at: look(b, at, 2),
        lambda b, at: look(b, at, 1, watched=False),
    )  # fmt: skip
    for at, kind in facts:
        book = steps[kind](book, at)
    record = book.record(POOL)
    times = [at for at, _ in record.flips]
    assert times == sorted(times)
    assert len(times) <= 64
    assert all(a is not b for (_, a), (_, b) in pairwise(record.flips))
    assert record.seen is None or record.flips[-1] == (record.seen.since_s, record.seen.up)
