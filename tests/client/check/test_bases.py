"""Where a relaunch went on, by what is seen of its steps."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from everstep.client.check.bases import counts_alike, diverged_at, find_base
from everstep.client.check.evidence import Facts, Step, Trail


def steps(*marks: int, before: int = 0) -> list[Step]:
    """Steps with these marks; with ``before``: each begins where the last one ended."""
    begins = [before, *marks] if before else [0] * len(marks)
    return [Step(float(at), mark, begun) for at, (mark, begun) in enumerate(zip(marks, begins, strict=False))]


PLAIN = steps(11, 12, 13, 14, 15, 16)
STILL = steps(7, 7, 7, 7, 8, 9)
FORGOT = steps(11, 12, 13, 14, before=10)


@pytest.mark.parametrize(
    ("plain", "own", "most", "hint", "base"),
    [
        (PLAIN, steps(14, 15), 4, None, 3),
        # Not behind what was reached.
        (PLAIN, steps(14, 15), 2, None, None),
        (PLAIN, steps(99, 15), 4, None, None),
        (PLAIN, [], 4, 2, None),
        # Standing still: what follows tells, and where nothing does, the hint, else the last.
        (STILL, steps(7, 7, 8, 9), 3, None, 2),
        (STILL, steps(7), 3, 1, 1),
        (STILL, steps(7), 3, None, 3),
        # The weights came back, and the first step is another one.
        (FORGOT, [Step(0.0, 99, 12)], 3, None, 2),
        # On a GPU nothing is seen.
        (steps(0, 0, 0), steps(0), 2, 1, None),
    ],
)
def test_the_fingerprints_tell_where_a_launch_went_on(
    plain: list[Step], own: list[Step], most: int, hint: int | None, base: int | None
) -> None:
    assert find_base(plain, own, most, hint) == base


@pytest.mark.parametrize(
    ("own", "base", "at"),
    [
        (steps(14, 15, 16), 3, None),
        (steps(14, 99, 16), 3, 5),
        (steps(14, 0, 16), 3, None),
        (steps(14, 15, 16, 17), 3, None),
        (steps(99), None, None),
    ],
)
def test_the_first_step_that_is_another_one(own: list[Step], base: int | None, at: int | None) -> None:
    assert diverged_at(PLAIN, own, base) == at


def test_wrong_weights_that_one_step_makes_right_are_seen() -> None:
    plain = steps(5, 5, 5, 5, before=1)
    begun_anew = [Step(0.0, 5, 1), Step(1.0, 5, 5)]
    assert find_base(plain, begun_anew, 3, hint=2) == 2
    assert diverged_at(plain, begun_anew, 2) == 2
    assert diverged_at(plain, [replace_before(begun_anew[0], 5), begun_anew[1]], 2) is None


def replace_before(step: Step, before: int) -> Step:
    return step._replace(before=before)


def test_batches_are_told_from_steps_of_the_optimizer() -> None:
    now = time.monotonic()
    plain = [Step(now - 10 + at, 1) for at in range(10)]
    told = Facts(step=10, step_at=time.time())
    assert counts_alike(plain, told)
    assert not counts_alike(plain, replace(told, step=40))
    # The report is written now and then: what was done until then counts.
    assert counts_alike(plain, replace(told, step=6, step_at=time.time() - 4.5))
    assert not counts_alike(plain, replace(told, step=1))
    assert not counts_alike(plain, Facts())


def test_a_pass_backward_is_no_step_where_there_is_an_optimizer(tmp_path: Path) -> None:
    path = tmp_path / "trail"
    path.write_text("1.0 backward\n2.0 backward\n")
    trail = Trail(path).follow()
    assert (len(trail.steps), len(trail.optimized)) == (2, 0)
    with path.open("a") as file:
        file.write("3.0 step 0 7 6\n")
    assert list(trail.follow().steps) == list(trail.optimized) == [Step(3.0, 7, 6)]
