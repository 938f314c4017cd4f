"""The quick ways give what the plain ones do: ``replace``, and telling that no machine's orders changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.lifecycle import Briefing, same_orders, transition
from everstep.brain.lifecycle.changing import replace
from everstep.brain.moving import is_mover
from everstep.brain.plan import advance
from everstep.brain.select import SELECTORS, Mover
from everstep.model import events as ev
from everstep.model.causes import Cause, InstanceEnd, NoticeKind
from everstep.model.effects import SendOrders
from everstep.model.errors import UnlistedTransition
from everstep.model.ids import InstanceId
from everstep.model.job import AttemptState, GangPhase, Goal, JobPhase, JobState, Saved, SaveOrder
from tests.brain.making import fresh, machine, prepared, running

I1, I2, I3 = (InstanceId(f"i-{n}") for n in (1, 2, 3))
AT = 1000.0
quickly: Any = replace
plainly: Any = dataclasses.replace


def all_orders(state: JobState) -> list[dict[str, Any]]:
    return [Briefing(state).orders(m) for m in state.instances.values()]


# --- replace ---------------------------------------------------------------------------------------------------------


def test_a_state_is_replaced_as_dataclasses_do_it() -> None:
    for value in (running(2), running(2).attempts[0], next(iter(running(2).instances.values()))):
        for field in dataclasses.fields(value):
            other = {field.name: object()}
            assert quickly(value, **other) == plainly(value, **other), field.name
        assert quickly(value) == value
        with pytest.raises(TypeError, match="no field 'nothing'"):
            quickly(value, nothing=1)


def test_what_cannot_be_made_by_position_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Named:
        one: int
        two: int = dataclasses.field(kw_only=True, default=2)

    @dataclasses.dataclass
    class Derived:
        one: int
        two: int = dataclasses.field(init=False, default=2)

    for value in (Named(1), Derived(1)):
        with pytest.raises(TypeError, match="by position"):
            quickly(value, one=2)


# --- Orders ----------------------------------------------------------------------------------------------------------

JOB_CHANGES: dict[str, Any] = {
    "phase": JobPhase.RELEASING, "goal": Goal.PAUSE, "why": "for a reason", "save": SaveOrder(7, 99.0),
    "execs": (("e-1", "ls"),), "keep_until": 99.0, "base_wanted": "1:2", "instances": {}, "attempts": (),
}  # fmt: skip
ATTEMPT_CHANGES: dict[str, Any] = {
    "no": 9, "phase": GangPhase.STOPPING, "members": (), "master_port": 1, "base_wanted": "1:2", "base_since": 9,
    "begun_at": 9e5, "cause": Cause.SETUP_FAILED, "saves": (Saved(1, 9e5),),
}  # fmt: skip


def odd(value: Any) -> Any:
    """Something else of much the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, tuple):
        return (*value, "odd")
    return {**value, "odd": "odd"} if isinstance(value, dict) else "odd" if isinstance(value, str) else 1.0


def test_orders_are_the_same_whatever_else_of_a_job_changes() -> None:
    """A field that orders depend on from some day on, and that ``same_orders`` does not look at, is found here."""
    states = (
        running(2),
        prepared(2),
        transition(running(2), ev.PauseRequested("u"), AT),
        transition(running(2), ev.CancelRequested("u"), AT),
    )
    for state in states:
        for field in dataclasses.fields(JobState):
            if field.name in ("id", "task"):
                continue  # never change
            after = dataclasses.replace(
                state, **{field.name: JOB_CHANGES.get(field.name, odd(getattr(state, field.name)))}
            )
            if field.name in JOB_CHANGES:
                assert after == state or not same_orders(state, after), field.name
            else:
                assert after != state, field.name
                assert same_orders(state, after), field.name
                assert all_orders(after) == all_orders(state), field.name


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(AttemptState)])
def test_orders_are_the_same_whatever_else_of_an_attempt_changes(field: str) -> None:
    for state in (running(2), prepared(2), transition(running(2), ev.PauseRequested("u"), AT)):
        attempt = state.attempts[-1]
        changed = dataclasses.replace(attempt, **{field: ATTEMPT_CHANGES.get(field, odd(getattr(attempt, field)))})
        after = dataclasses.replace(state, attempts=(changed,))
        if field not in ATTEMPT_CHANGES:
            assert same_orders(state, after)
            assert all_orders(after) == all_orders(state)
        elif changed != attempt and field != "saves":
            assert not same_orders(state, after)


def test_a_save_that_changes_the_hazard_is_a_new_order() -> None:
    state = running(2)
    young = transition(state, ev.CheckpointSaved(I1, 1, 10), 60.0)
    old = transition(young, ev.CheckpointSaved(I1, 1, 20), 40 * 3600.0)
    assert not same_orders(young, old)
    _, effects = advance(young, ev.CheckpointSaved(I1, 1, 20), 40 * 3600.0)
    assert effects == (SendOrders(state.id, I1), SendOrders(state.id, I2))
    assert same_orders(young, transition(young, ev.CheckpointSaved(I1, 1, 20), 61.0))


def some_events() -> st.SearchStrategy[ev.Event]:
    who, step = st.sampled_from((I1, I2, I3)), st.integers(1, 50)
    attempt = st.integers(1, 3)
    made: list[st.SearchStrategy[ev.Event]] = [
        st.builds(lambda i, a, s: ev.CheckpointSaved(i, a, s, 10, 0.5, 0.1), who, attempt, step),
        st.builds(lambda i, a, s: ev.ProgressSeen(i, a, s, 100, AT), who, attempt, step),
        st.builds(lambda i, a: ev.Restored(i, a, None), who, attempt),
        st.builds(lambda i, a: ev.RanksStarted(i, a, 1, AT), who, attempt),
        st.builds(lambda i, a, far: ev.PeersChecked(i, a, far), who, attempt, st.sampled_from(((), ("10.0.0.1",)))),
        st.builds(lambda i, a, how: ev.RanksEnded(i, a, how), who, attempt, st.sampled_from(("ok", "failed", "saved"))),
        st.builds(lambda i, a: ev.LeaseExpired(i, a), who, attempt),
        st.builds(lambda i, a: ev.CheckpointAudited(i, a, "1:3", "exact", ""), who, attempt),
        st.builds(lambda i, a: ev.FolderGrew(i, a), who, attempt),
        st.builds(lambda i, kind: ev.NoticeReceived(i, kind, AT), who, st.sampled_from(NoticeKind)),
        st.builds(lambda i, end: ev.InstanceEnded(i, AT, end), who, st.sampled_from(InstanceEnd)),
        st.builds(lambda i: ev.InstanceReady(i, 9000, 1.0), who),
        st.builds(lambda i: ev.OutputsStored(i, 1, 1, ""), who),
        st.builds(lambda i: ev.TerminateIntended(i, "no use"), who),
        st.builds(lambda a, cause: ev.CauseSettled(a, cause, "so"), attempt, st.sampled_from(Cause)),
        st.sampled_from(
            (
                ev.PauseRequested("u"), ev.UnpauseRequested("u"), ev.CancelRequested("u"), ev.RetryRequested("u"),
                ev.ExecRequested("u", "e-1", "ls"), ev.RestoreRequested("u", "1:1"), ev.KeepExpired(), ev.GaveUp("no"),
                *machine(3, 1),
            )
        ),
    ]  # fmt: skip
    return st.one_of(made)


STARTS: tuple[Callable[[], JobState], ...] = (
    lambda: fresh(2),
    lambda: prepared(2),
    lambda: running(2),
    lambda: running(1),
)


@given(st.sampled_from(STARTS), st.lists(st.tuples(some_events(), st.floats(0.0, 5e5)), max_size=30))
def test_whoever_is_told_nothing_had_the_same_orders_before(
    start: Callable[[], JobState], told: list[tuple[ev.Event, float]]
) -> None:
    state, now = start(), AT
    for event, later_s in told:
        now += later_s
        try:
            after, effects = advance(state, event, now)
        except UnlistedTransition:
            continue
        informed = {effect.instance for effect in effects if isinstance(effect, SendOrders)}
        before = dict(zip(state.instances, all_orders(state), strict=True))
        for m, orders in zip(after.instances.values(), all_orders(after), strict=True):
            joined = state.instances.get(m.token)
            if m.instance is None or not m.alive or m.joined_at is None or joined is None or joined.joined_at is None:
                continue
            assert (m.instance in informed) is (orders != before[m.token])
        state = after


def test_policies_are_asked_once_by_their_kind_whether_they_move() -> None:
    kinds = [isinstance(selector, Mover) for selector in SELECTORS.values()]
    assert [is_mover(selector) for selector in SELECTORS.values()] == kinds
    assert set(kinds) == {True, False}
    assert not is_mover(None)
