from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.pools import PoolBook, PoolRecord, note_pools
from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.events import InstanceEnded, LaunchFailed, LaunchIntended, NoticeReceived
from everstep.model.ids import InstanceId, LaunchToken
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
