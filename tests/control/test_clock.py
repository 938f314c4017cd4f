"""UTC anchored once: never back, and every step of the system clock seen once."""

from __future__ import annotations

import time

import pytest

from everstep.control.clock import SystemClock


class Hands:
    """The two clocks of a machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.utc = 1_000_000.0
        self.mono = 50.0
        monkeypatch.setattr(time, "time", lambda: self.utc)
        monkeypatch.setattr(time, "monotonic", lambda: self.mono)

    def pass_(self, seconds: float) -> None:
        self.utc += seconds
        self.mono += seconds


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    return Hands(monkeypatch)


def test_a_step_of_the_system_clock_does_not_move_ours(hands: Hands) -> None:
    clock = SystemClock()
    hands.pass_(10.0)
    hands.utc += 3600.0
    assert clock.now() == 1_000_010.0
    assert clock.stepped_s() == 3600.0


def test_a_step_forward_is_followed(hands: Hands) -> None:
    clock = SystemClock()
    hands.utc += 3600.0
    clock.reanchor()
    assert clock.now() == 1_003_600.0
    assert clock.stepped_s() == 0.0


def test_a_step_back_is_known_and_no_step_again_though_we_do_not_go_back(hands: Hands) -> None:
    clock = SystemClock()
    hands.utc -= 3600.0
    assert clock.stepped_s() == -3600.0
    clock.reanchor()
    assert clock.now() == 1_000_000.0
    hands.pass_(60.0)
    assert clock.stepped_s() == 0.0
    assert clock.now() == 1_000_060.0


def test_a_clock_that_steps_back_and_forth_is_right_in_the_end(hands: Hands) -> None:
    clock = SystemClock()
    for step in (-3600.0, 3600.0, 7200.0, -60.0):
        hands.utc += step
        assert clock.stepped_s() == step
        before = clock.now()
        clock.reanchor()
        assert clock.now() >= before
        assert clock.stepped_s() == 0.0
    assert clock.now() == 1_000_000.0 + 7200.0
