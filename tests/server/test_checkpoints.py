"""What the server says of checkpoints is what the library does in the folder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.brain.lifecycle.beginning import superseded
from everstep.model.errors import Conflict, NotFound
from everstep.model.job import AttemptState, GangPhase, JobState, Saved
from everstep.model.task import CheckpointSpec, Task
from everstep.server.checkpoints import checkpoints, restorable
from everstep.train.lineage import Listing, Position, Record, candidates, garbage
from tests.server import fakes


def job(*attempts: AttemptState, keep: int = 3) -> JobState:
    task = Task(name="t", run="x", checkpoint=CheckpointSpec(keep=keep))
    return fakes.job("j-1", fakes.machine("i-1"), task=task, attempts=attempts)


def attempt(no: int, *steps: int, base: str | None = None) -> AttemptState:
    return fakes.attempt(no, "i-1", saves=tuple(Saved(s, 1.0) for s in steps), restored_at=1.0, base=base)


def shown(state: JobState) -> list[tuple[int, int]]:
    return [(c.attempt, c.step) for c in checkpoints(state) if c.restorable]


@dataclass
class Folder:
    """A checkpoint folder as the library keeps it, and the job that the server makes of its reports."""

    keep: int
    listing: Listing = field(default_factory=Listing)
    attempts: list[AttemptState] = field(default_factory=list)

    def begin(self, choice: int) -> None:
        """A new attempt begins from one of the candidates (0: the newest)."""
        offered = candidates(self.listing)
        base = offered[min(choice, len(offered) - 1)] if offered else None
        no = len(self.attempts) + 1
        self.listing = dataclasses.replace(
            self.listing, records={**self.listing.records, no: Record(no, base, 1)}, claims=self.listing.claims | {no}
        )
        self.attempts.append(attempt(no, base=None if base is None else str(base)))

    def save(self, steps: int) -> None:
        """The newest attempt saves so many steps further on, then collects."""
        newest = self.attempts[-1]
        base = self.listing.records[newest.no].base
        last = newest.saves[-1].step if newest.saves else base.step if base is not None else 0
        self.attempts[-1] = dataclasses.replace(newest, saves=(*newest.saves, Saved(last + steps, 1.0)))
        manifests = self.listing.manifests | {Position(newest.no, last + steps)}
        self.listing = dataclasses.replace(self.listing, manifests=manifests)
        gone = garbage(self.listing, newest.no, self.keep)
        self.listing = dataclasses.replace(self.listing, manifests=manifests - set(gone))


_MOVES = st.lists(
    st.one_of(st.tuples(st.just("begin"), st.integers(0, 3)), st.tuples(st.just("save"), st.integers(1, 3)))
)


@given(st.integers(1, 4), _MOVES)
def test_what_is_shown_as_restorable_is_what_the_library_would_begin_from(
    keep: int, moves: list[tuple[str, int]]
) -> None:
    folder = Folder(keep)
    folder.begin(0)
    for move, number in moves:
        folder.begin(number) if move == "begin" else folder.save(number)
    short = [*(superseded(a, keep) for a in folder.attempts[:-1]), folder.attempts[-1]]
    for state in (job(*folder.attempts, keep=keep), job(*short, keep=keep)):
        assert shown(state) == sorted((p.attempt, p.step) for p in candidates(folder.listing))
        assert {(c.attempt, c.step) for c in checkpoints(state) if c.kept} == {
            (p.attempt, p.step) for p in folder.listing.manifests
        }


def test_an_attempt_that_was_followed_remembers_few_of_its_saves() -> None:
    before = attempt(1, *range(10, 170, 10))
    assert [save.step for save in superseded(before, 3).saves] == [10, 140, 150, 160]
    assert superseded(attempt(1, 10, 20), 3) == attempt(1, 10, 20)
    told_late = attempt(1, 50, 10, 60, 20, 30)
    assert [save.step for save in superseded(told_late, 1).saves] == [50, 60, 30], "first, newest, last told"


def test_an_attempt_that_never_restored_froze_and_deleted_nothing() -> None:
    lost = fakes.attempt(2, "i-1")
    assert shown(job(attempt(1, 10, 20), lost)) == [(1, 10), (1, 20)]
    coming = fakes.attempt(2, "i-1", base_wanted="1:10")
    assert shown(job(attempt(1, 10, 20), coming)) == [(1, 10)]
    failed = dataclasses.replace(coming, phase=GangPhase.ENDED)
    assert shown(job(attempt(1, 10, 20), failed)) == [(1, 10), (1, 20)], "of its end nothing follows for the others"


def test_the_base_outlives_what_is_newer_than_it() -> None:
    state = job(attempt(1, 10, 20), attempt(2, 30, 40, 50, base="1:20"), keep=2)
    assert shown(state) == [(1, 20), (2, 40), (2, 50)]


@pytest.mark.parametrize(
    ("step", "number", "error", "text"),
    [
        (10, None, Conflict, "checkpoint 1:10 of job j-1 was deleted (keep 1); these steps can be restored: 20, 40"),
        (11, None, NotFound, "job j-1 has no checkpoint of step 11; these steps can be restored: 20, 40"),
        (40, 1, NotFound, "job j-1 has no checkpoint of step 40 of attempt 1; these steps can be restored: 20, 40"),
    ],
)
def test_a_refusal_names_what_can_be_restored(step: int, number: int | None, error: type[Exception], text: str) -> None:
    state = job(attempt(1, 10, 20, 30), attempt(2, 40, base="1:20"), keep=1)
    assert restorable(state, 20, None) == "1:20"
    assert restorable(state, 40, 2) == "2:40"
    with pytest.raises(error) as caught:
        restorable(state, step, number)
    assert str(caught.value) == text


def test_one_that_was_superseded_and_is_still_there_is_no_base_either() -> None:
    state = job(attempt(1, 10, 20, 30), attempt(2, base="1:20"))
    with pytest.raises(Conflict, match=r"1:30 of job j-1 is not visible: its attempt was superseded; .*: 10, 20$"):
        restorable(state, 30, None)


def test_of_many_the_nearest_are_named() -> None:
    state = job(attempt(1, *range(10, 100, 10)), keep=9)
    around = {0: "10, 20, 30, 40, 50, 60", 52: "30, 40, 50, 60, 70, 80", 9999: "40, 50, 60, 70, 80, 90"}
    for step, steps in around.items():
        with pytest.raises(NotFound, match=rf"of step {step}; the nearest steps that can be restored: {steps}$"):
            restorable(state, step, None)


def test_without_any_it_says_so() -> None:
    with pytest.raises(NotFound, match=r"^job j-1 has no checkpoint of step 5; there is none$"):
        restorable(job(), 5, None)
