"""When a save is due, with what a save costs and how long it takes told apart."""

from __future__ import annotations

import pytest

from everstep.train.pace import Pace


def pace(every_s: float | None = None, **options: float | None) -> Pace:
    return Pace(every_s, 0.1, now=0.0, **{"save_cost_s": None, **options})  # type: ignore[arg-type]


def test_the_next_save_is_due_an_interval_after_training_went_on() -> None:
    paced = pace(10.0)
    assert not paced.due(9.9)
    assert paced.due(10.0)
    paced.saved(10.1, 0.1, save_s=4.0)  # told at 14.0
    assert not paced.due(20.0)
    assert paced.due(20.1)


def test_work_in_the_background_costs_a_tenth_of_its_time() -> None:
    paced = pace()
    assert paced.due(0.0), "the first save comes at once, to learn its cost"
    paced.saved(0.0, 0.1, save_s=2.1)
    assert paced.save_cost_s == pytest.approx(0.3)
    assert paced.save_s == pytest.approx(2.1)
    assert paced.interval_s() == pytest.approx((2 * 0.3 * 36_000) ** 0.5, rel=1e-3)


def test_a_deadline_leaves_time_for_what_is_under_way() -> None:
    paced = pace(save_cost_s=1.0)
    assert paced.margin_s(pending=True) == pytest.approx(paced.margin_s() + 1.0)


def test_a_try_that_gave_nothing_is_made_again_at_once() -> None:
    paced = pace(100.0)
    paced.saved(50.0, 0.1)
    assert not paced.due(51.0)
    paced.again()
    assert paced.due(51.0)


def test_steps_are_measured_without_saves_made_on_the_spot() -> None:
    paced = pace(1.0)
    paced.due(0.0)
    paced.due(1.0)
    paced.saved(6.0, 5.0)
    paced.due(7.0)
    assert paced.step_s == pytest.approx(1.0)


@pytest.mark.parametrize(("every_s", "each"), [(0.0, True), (0.001, False), (None, False)])
def test_each_step(every_s: float | None, each: bool) -> None:
    assert pace(every_s).each_step is each
