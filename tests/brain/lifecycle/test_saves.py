"""The saves of an attempt, as its members tell of them: again, late, and in any order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.events import CheckpointAudited, CheckpointSaved
from everstep.model.ids import InstanceId
from everstep.model.job import Audited, Saved
from tests.brain.making import fold, running

I1 = InstanceId("i-1")


def told(*facts: tuple[int, bool]) -> tuple[Saved, ...]:
    state = running()
    for now, (step, durable) in enumerate(facts):
        state = fold(state, [CheckpointSaved(I1, 1, step, 100, 0.5, 0.1, durable)], 10.0 + now)
    return state.attempts[-1].saves


def test_a_save_becomes_durable_when_it_is_told_again_as_such() -> None:
    first, second = told((10, False), (20, False), (10, True))
    assert (first.durable, second.durable) == (True, False)
    assert (first.at, first.save_s, first.stall_s, first.bytes) == (10.0, 0.5, 0.1, 100)


def test_a_durable_save_stays_durable() -> None:
    [save] = told((10, True), (10, False))
    assert save.durable


def test_a_save_that_is_not_kept_any_more_does_not_come_back_as_the_newest() -> None:
    saves = told(*((step, False) for step in range(1, 30)), (3, True))
    assert [save.step for save in saves] == [1, *range(15, 30)]
    assert not any(save.durable for save in saves)


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), max_size=30))
def test_each_step_is_kept_once_and_is_durable_if_it_was_told_so_at_any_time(facts: list[tuple[int, bool]]) -> None:
    saves = told(*facts)
    assert len({save.step for save in saves}) == len(saves)
    assert {save.step: save.durable for save in saves} == {
        step: any(durable for other, durable in facts if other == step) for step, _ in facts
    }


@pytest.mark.parametrize(
    ("verdicts", "kept"),
    [
        (("exact", "exact"), 1),
        (("unknown", "exact"), 1),
        (("exact", "differs"), 1),
        (("differs", "exact"), 0),
        (("refuses", "unknown"), 0),
        (("differs", "refuses"), 1),
    ],
)
def test_what_an_audit_found_is_not_hidden_by_a_better_one(verdicts: tuple[str, ...], kept: int) -> None:
    audits = [CheckpointAudited(I1, 1, f"1:{step}", verdict, "so") for step, verdict in enumerate(verdicts)]
    state = fold(running(), audits, 10.0)
    assert state.attempts[-1].audit == Audited(f"1:{kept}", verdicts[kept], "so")
