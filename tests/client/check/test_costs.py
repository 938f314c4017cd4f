from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from everstep.client.check.compare import Aside
from everstep.client.check.costs import costs
from everstep.client.check.drill import Drilled, How, Kill, Launched
from everstep.client.check.evidence import Ending, Facts
from everstep.client.check.scene import Mode
from everstep.client.check.verdict import Verdict, judge_drilled, was_fair

SAVED = Facts(saves=({"step": 3},))
ENDING = Ending(0, ({"optimizers": [], "globals": {}, "random": {}, "attached": False, "cuda": False},), ())


def launch(number: int, base: int | None, steps: int, **more: Any) -> Launched:
    killed = more.pop("killed", True)
    told: dict[str, Any] = {
        "diverged_at": None,
        "moments": {},
        "facts": Facts(),
        "kill": Kill(How.AT_STEP, (base or 0) + steps, -9) if killed else None,
        "exit_code": -9 if killed else 0,
        "refused": False,
        "complaint": "",
        "seconds": 1.0,
    }
    return Launched(number=number, base=base, steps=steps, **{**told, **more})


def drilled(*launches: Launched, hung: str = "") -> Drilled:
    return Drilled(ENDING, launches, hung)


def test_lost_steps_are_those_between_a_kill_and_where_it_goes_on() -> None:
    run = drilled(launch(1, 0, 30), launch(2, 24, 11), launch(3, 35, 5, killed=False))
    assert costs(run, Mode.SCRIPT, rate_per_h=0.1).lost_steps == [6, 0]


def test_a_launch_that_made_no_step_lost_none() -> None:
    run = drilled(launch(1, 0, 30), launch(2, None, 0), launch(3, 28, 12, killed=False))
    assert costs(run, Mode.SCRIPT, rate_per_h=0.1).lost_steps == [2, 0]


def test_what_nobody_knows_is_not_guessed() -> None:
    run = drilled(launch(1, 0, 30), launch(2, None, 7), launch(3, 28, 12, killed=False))
    found = costs(run, Mode.OFF, rate_per_h=0.1)
    assert found.lost_steps == [None, None]
    assert (found.save_s, found.state_bytes, found.overhead, found.checkpoint) == (None, None, None, {"mode": "off"})


def test_the_advice_follows_from_the_stall_and_the_rate() -> None:
    save = {"save_s": 2.0, "stall_s": 0.5, "bytes": 1000}
    moments = {"started": 0.1, "torch": 0.2, "ready": 1.2, "restored": 2.0, "first_step": 2.25}
    resumed = Facts(restored={"t": 0.0, "restore_s": 0.5, "base": "1:3"}, saves=(save,))
    run = drilled(launch(1, 0, 5), launch(2, 3, 9, killed=False, moments=moments, facts=resumed))
    found = costs(run, Mode.LIBRARY, rate_per_h=1.0)
    # Young: sqrt(2 * 0.5 s * 3600 s) = 60 s.
    assert found.checkpoint == {"mode": "library", "every": "1m"}
    # Save 0.5 s and half an interval lost per hour, and the restart.
    assert found.overhead == pytest.approx((0.5 / 60) + (30 + 2.25) / 3600, rel=0.02)
    parts = {"interpreter": 0.1, "import_torch": 1.0, "setup": 0.3, "restore": 0.5, "first_step": 0.25, "total": 2.25}
    assert found.resume_s == pytest.approx(parts)


VERDICTS = [
    (drilled(launch(1, 0, 5), launch(2, 3, 9, killed=False)), Verdict.EXACT),
    (drilled(launch(1, 0, 5), launch(2, 0, 9, killed=False)), Verdict.NO_RESUME),
    (
        drilled(launch(1, 0, 5), launch(2, None, 0, killed=False, exit_code=1, complaint="KeyError: 1")),
        Verdict.NO_RESUME,
    ),
    (drilled(launch(1, 0, 5), launch(2, None, 0, killed=False, exit_code=76, refused=True)), Verdict.REFUSES),
    (drilled(launch(1, 0, 5), launch(2, 3, 1, exit_code=-9, killed=False), hung="too long"), Verdict.NOT_EXACT),
    (drilled(launch(1, 0, 5), launch(2, None, 0, exit_code=-9, killed=False), hung="too long"), Verdict.NO_RESUME),
]


@pytest.mark.parametrize(("run", "verdict"), VERDICTS, ids=[str(at) for at in range(len(VERDICTS))])
def test_the_verdict_on_a_drill(run: Drilled, verdict: Verdict) -> None:
    judgement = judge_drilled(ENDING, run, Aside())
    assert judgement.verdict is verdict
    assert judgement.reason


def test_another_way_to_the_same_end_is_not_exact() -> None:
    run = drilled(launch(1, 0, 5), launch(2, 3, 9, diverged_at=4), launch(3, 10, 2, killed=False))
    judgement = judge_drilled(ENDING, run, Aside())
    assert judgement.verdict is Verdict.NOT_EXACT
    first = judgement.first_difference
    assert first is not None
    assert (first.object, first.step) == ("parameters", 4)
    assert first.what == "differ from step 4 on in launch 2, and come together again"
    # Where two plain runs go different ways, a resumed one may.
    assert judge_drilled(ENDING, run, Aside(way=True)).verdict is Verdict.EXACT


ATTACHED = dataclasses.replace(ENDING, finals=({**(ENDING.finals[0] or {}), "attached": True},))
FAIR = [
    (Mode.SCRIPT, ENDING, launch(1, 0, 2), False),
    (Mode.LIBRARY, ATTACHED, launch(1, 0, 2), False),
    (Mode.SCRIPT, ENDING, launch(1, 0, 2, facts=SAVED), True),
    (Mode.SCRIPT, ENDING, launch(1, 0, 2, moments={"first_step": 1.5}, seconds=9.0), True),
    (Mode.SCRIPT, ENDING, launch(1, 0, 2, moments={"first_step": 1.5}, seconds=3.0), False),
    # Nobody tells whether they saved.
    (Mode.OFF, ENDING, launch(1, 0, 2), True),
    (Mode.LIBRARY, ENDING, launch(1, 0, 2), True),
]


@pytest.mark.parametrize(("mode", "plain", "first", "fair"), FAIR, ids=[str(at) for at in range(len(FAIR))])
def test_a_kill_before_the_first_save_says_nothing(mode: Mode, plain: Ending, first: Launched, fair: bool) -> None:
    assert was_fair(drilled(first, launch(2, 0, 3, killed=False)), mode, plain) is fair


def test_a_relaunch_that_fails_says_enough() -> None:
    failing = drilled(launch(1, 0, 2), launch(2, None, 0, killed=False, exit_code=1))
    assert was_fair(failing, Mode.SCRIPT, ENDING)
    assert was_fair(drilled(launch(1, 0, 2), launch(2, None, 0), hung="too long"), Mode.SCRIPT, ENDING)
