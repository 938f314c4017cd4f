from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from everstep.train.pace import Pace, parse_every
from everstep.train.requests import Requests, Terminations


class Control:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "control.json"
        self.requests = Requests(self.path, started_at=100.0)

    def write(self, **request: object) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps(request))
        temporary.replace(self.path)

    def look(self, now: float) -> tuple[bool, bool, bool]:
        self.requests.look(now, margin_s=2.0)
        return self.requests.save, self.requests.holding, self.requests.stop


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path)


def test_nothing_is_asked_without_a_file(control: Control) -> None:
    assert control.look(101.0) == (False, False, False)
    assert Requests(None, 0.0).save is False


def test_save_by_saves_twice_and_holds_until_a_later_request(control: Control) -> None:
    control.write(seq=1, save=True, save_by=120.0, stop=False)
    assert control.look(101.0) == (True, False, False)
    control.requests.saved()
    assert control.look(117.9) == (False, False, False)
    assert control.look(118.1) == (True, True, False)
    control.requests.saved()
    assert control.look(500.0) == (False, True, False)
    control.write(seq=2, save=False, save_by=None, stop=False)
    assert control.look(501.0) == (False, False, False)


def test_a_near_deadline_is_one_save(control: Control) -> None:
    control.write(seq=1, save=True, save_by=102.0, stop=False)
    assert control.look(101.0) == (True, True, False)


def test_a_seq_is_taken_once_and_never_backwards(control: Control) -> None:
    control.write(seq=5, save=True, save_by=None)
    assert control.look(101.0)[0]
    control.requests.saved()
    control.write(seq=5, save=True, save_by=None, stop=False)
    assert not control.look(102.0)[0]
    control.write(seq=4, save=True, save_by=None)
    assert not control.look(103.0)[0]


def test_a_deadline_before_our_time_does_not_hold(control: Control) -> None:
    control.write(seq=1, save=True, save_by=99.0)
    assert control.look(101.0) == (True, False, False)


def test_stop_and_hazard_are_taken(control: Control) -> None:
    control.write(seq=1, save=True, save_by=None, stop=True, hazard_per_h=2.5)
    assert control.look(101.0) == (True, False, True)
    assert control.requests.hazard_per_h == 2.5


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"seq": "x"}', "null"])
def test_an_unreadable_file_asks_for_nothing_until_it_is_readable(control: Control, content: str) -> None:
    control.path.write_text(content)
    assert control.look(101.0) == (False, False, False)
    control.write(seq=1, save=True)
    assert control.look(101.1)[0]


def test_sigterm_is_noted_and_given_back() -> None:
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("before"))
    try:
        terminations = Terminations()
        terminations.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        assert terminations.asked
        terminations.release()
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == ["before"]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_auto_pace_measures_first_and_then_follows_the_local_rule() -> None:
    pace = Pace(None, 1.0, now=0.0, save_cost_s=None)
    assert pace.due(0.1)
    pace.saved(0.6, 0.5)
    assert pace.interval_s() == pytest.approx((2 * 0.5 * 3600) ** 0.5, rel=1e-6)
    assert not pace.due(60.5)
    assert pace.due(60.7)
    pace.expect(4.0)
    assert pace.interval_s() == pytest.approx(30.0, rel=1e-6)
    pace.expect(None)
    assert pace.interval_s() == pytest.approx(30.0, rel=1e-6)


def test_fixed_pace_and_a_cost_known_from_an_earlier_attempt() -> None:
    assert Pace(7.0, 1.0, now=0.0, save_cost_s=None).interval_s() == 7.0
    assert not Pace(None, 1.0, now=0.0, save_cost_s=0.5).due(0.1)


@pytest.mark.parametrize(("text", "every_s"), [("auto", None), ("", None), ("0", 0.0), ("90", 90.0)])
def test_every(text: str, every_s: float | None) -> None:
    assert parse_every(text) == every_s


@pytest.mark.parametrize("text", ["10m", "-1", "nan", "never"])
def test_every_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match="'auto' or seconds"):
        parse_every(text)
