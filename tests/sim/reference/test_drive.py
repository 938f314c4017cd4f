"""The rules of the reference driver, one by one, with policies that follow a script."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from everstep.brain.select.course import Course, Memory, Mode, Situation, View
from everstep.sim.reference.drive import ImpossibleCourse, Outcome, drive
from everstep.sim.reference.market import Job, Market
from tests.sim.reference.worlds import TICK_S, market

SPOT, STEADY, IDLE = (Mode.SPOT, "z0"), (Mode.ON_DEMAND, "z0"), (Mode.IDLE, None)
TICK_H = TICK_S / 3600


class Script:
    """One action a tick; the last one for ever."""

    guarded = False

    def __init__(self, *actions: tuple[Mode, str | None]) -> None:
        self.actions = actions
        self.situations: list[Situation] = []

    def steer(self, situation: Situation, memory: Memory) -> Course:
        self.situations.append(situation)
        tick = round(situation.now_s / TICK_S)
        mode, place = self.actions[min(tick, len(self.actions) - 1)]
        return Course(mode, place, "the script", situation.now_s + TICK_S)


def run(place: Market, job: Job, *actions: tuple[Mode, str | None]) -> tuple[Outcome, list[Situation]]:
    script = Script(*actions)
    return drive(place, job, script), script.situations


def test_every_tick_on_a_machine_is_billed_whole_and_a_start_makes_no_progress() -> None:
    outcome, seen = run(market([[True] * 9], [[1.2] * 9]), Job(2 * TICK_S, 9 * TICK_S, 100.0), SPOT)
    # 500 s, 600 s, and 100 s of a third tick that is billed whole.
    assert (outcome.cost_usd, outcome.finish_s) == (pytest.approx(3 * 1.2 * TICK_H), 3 * TICK_S)
    assert [s.done_s for s in seen] == [0.0, 500.0, 1100.0]


def test_a_changeover_longer_than_a_tick_carries_over() -> None:
    outcome, seen = run(market([[True] * 9], [[1.0] * 9]), Job(TICK_S, 9 * TICK_S, 1500.0), SPOT)
    assert [s.standing.changeover_left_s for s in seen] == [0.0, 900.0, 300.0, 0.0]
    assert outcome.finish_s == 4 * TICK_S


def test_prices_are_those_of_the_tick() -> None:
    outcome, _ = run(market([[True] * 4], [[1.0, 2.0, 4.0, 8.0]]), Job(2 * TICK_S, 3 * TICK_S, 0.0, start_tick=1), SPOT)
    assert outcome.cost_usd == pytest.approx((2.0 + 4.0) * TICK_H)


def test_spot_that_is_gone_is_lost_at_the_start_of_the_tick() -> None:
    actions = (SPOT, IDLE, SPOT)
    outcome, seen = run(market([[True, False, True, True]], [[1.0] * 4]), Job(2 * TICK_S, 4 * TICK_S, 0.0), *actions)
    assert [s.standing.lost_from for s in seen] == [None, "z0", None]
    assert (outcome.spot_exits, outcome.cost_usd, outcome.finish_s) == (1, pytest.approx(2 * TICK_H), 3 * TICK_S)


def test_an_unspent_changeover_is_gone_with_the_machine_and_a_new_one_is_charged() -> None:
    actions = (SPOT, STEADY)
    outcome, seen = run(market([[True, False] * 4], [[1.0] * 8]), Job(TICK_S, 8 * TICK_S, 900.0), *actions)
    assert [s.standing.changeover_left_s for s in seen] == [0.0, 0.0, 300.0, 0.0]
    assert outcome.cost_usd == pytest.approx((1.0 + 3 * 3.0) * TICK_H)


def test_leaving_spot_counts_as_an_exit_and_ending_on_it_does_not() -> None:
    place = market([[True] * 5], [[1.0] * 5])
    assert run(place, Job(2 * TICK_S, 5 * TICK_S, 0.0), SPOT, STEADY)[0].spot_exits == 1
    assert run(place, Job(2 * TICK_S, 5 * TICK_S, 0.0), STEADY, SPOT)[0].spot_exits == 0


def test_moves_pay_for_the_transfer_between_regions_once_there_is_a_checkpoint() -> None:
    place = market([[True] * 6] * 3, [[1.0] * 6] * 3, checkpoint_gb=100.0)
    east, neighbour, west = ((Mode.SPOT, f"z{n}") for n in range(3))
    outcome, _ = run(place, Job(4 * TICK_S, 6 * TICK_S, 0.0), east, neighbour, west, west)
    assert (outcome.moves, outcome.egress_usd) == (2, pytest.approx(2.0))
    assert outcome.cost_usd == pytest.approx(2.0 + 4 * TICK_H)
    assert run(place, Job(TICK_S, 6 * TICK_S, 0.0), west)[0].egress_usd == 0.0


def test_a_job_that_the_traces_do_not_see_the_end_of_has_no_finish() -> None:
    outcome, _ = run(market([[True] * 3], [[1.0] * 3]), Job(9 * TICK_S, 3 * TICK_S, 0.0), SPOT)
    assert (outcome.finish_s, outcome.deadline_met, outcome.cost_usd) == (None, False, pytest.approx(3 * TICK_H))


@pytest.mark.parametrize("action", [(Mode.SPOT, "z0"), (Mode.SPOT, None), (Mode.ON_DEMAND, None)])
def test_what_is_not_there_cannot_be_chosen(action: tuple[Mode, str | None]) -> None:
    with pytest.raises(ImpossibleCourse):
        run(market([[False] * 3], [[1.0] * 3]), Job(TICK_S, 3 * TICK_S, 0.0), action)


def test_a_learner_is_shown_every_change_before_the_start_and_nothing_later() -> None:
    class Curious(Script):
        views: tuple[View, ...] = ()

        def recall(self, views: Iterable[View]) -> Memory:
            self.views = tuple(views)
            return "begun"

        def steer(self, situation: Situation, memory: Memory) -> Course:
            assert memory == ("begun" if situation.now_s == 0 else None)
            return super().steer(situation, memory)

    place = market([[True, True, False, False, True, False, True]], [[1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]])
    policy = Curious(STEADY)
    drive(place, Job(2 * TICK_S, 2 * TICK_S, 0.0, start_tick=5), policy)
    assert [view.now_s / TICK_S for view in policy.views] == [-5, -3, -2, -1]
    assert [view.places[0].up for view in policy.views] == [True, False, False, True]
    assert [view.places[0].spot_usd_per_h for view in policy.views] == [1.0, 1.0, 2.0, 2.0]
