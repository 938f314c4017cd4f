"""What agents tell that is no journal line, and what decisions see of it."""

from __future__ import annotations

from everstep.brain.plan import Heard
from everstep.control.telemetry import MOST_WARNINGS, Telemetry
from everstep.model.ids import InstanceId

ME = InstanceId("i-1")


def progress(t: Telemetry, now: float, attempt: int, step: int, total: int | None = None) -> bool:
    return t.progress(ME, now, attempt=attempt, step=step, total=total, metrics={})


def test_the_first_progress_of_an_attempt_its_first_move_and_a_new_total_are_news() -> None:
    t = Telemetry({})
    news = [progress(t, 1.0, 1, 1), progress(t, 2.0, 1, 2), progress(t, 3.0, 1, 3, 9), progress(t, 4.0, 1, 4, 9)]
    assert news == [True, True, True, False]
    assert progress(t, 5.0, 2, 3, 9)


def test_the_first_progress_after_a_heartbeat_of_a_new_attempt_is_news() -> None:
    t = Telemetry({})
    progress(t, 1.0, 1, 45)
    t.word(ME, 2.0)
    t.alive(ME, attempt=2, ranks_alive=1)
    assert progress(t, 3.0, 2, 41)


def test_a_machine_in_its_grace_is_not_heard_and_is_judged_when_the_grace_is_over() -> None:
    heard: dict[InstanceId, Heard] = {}
    t = Telemetry(heard)
    t.grace(ME, 900.0)
    assert heard == {}
    assert t.end_grace(899.0) == []
    assert t.end_grace(900.0) == [ME]
    assert heard == {ME: Heard(900.0)}
    assert t.end_grace(901.0) == []


def test_one_word_ends_the_grace() -> None:
    heard: dict[InstanceId, Heard] = {}
    t = Telemetry(heard)
    t.grace(ME, 900.0)
    t.word(ME, 5.0)
    assert heard == {ME: Heard(5.0)}
    assert t.end_grace(1000.0) == []


def test_a_machine_that_is_forgotten_is_heard_no_more() -> None:
    heard: dict[InstanceId, Heard] = {}
    t = Telemetry(heard)
    progress(t, 1.0, 1, 1)
    t.forget(ME)
    assert (heard, t.observed) == ({}, {})
    t.alive(ME, attempt=1, ranks_alive=1)
    assert heard == {}


def test_warnings_are_kept_once_each_and_not_without_end() -> None:
    t = Telemetry({})
    t.word(ME, 1.0)
    for _ in range(2):
        t.alive(ME, attempt=1, ranks_alive=1, warnings=["the disk is full", "a folder was left out"])
    t.alive(ME, attempt=1, ranks_alive=1, warnings=[f"message {number} refused" for number in range(100)])
    assert t.observed[ME].warnings[:3] == ["the disk is full", "a folder was left out", "message 0 refused"]
    assert len(t.observed[ME].warnings) == MOST_WARNINGS
