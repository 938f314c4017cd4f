from __future__ import annotations

import os
import signal

import pytest

from everstep.cli.demo.interrupts import deferred, ended_by_signals


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_ending_signal_is_an_interrupt(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        send(number)
    assert signal.getsignal(number) is before


def test_a_deferred_signal_takes_effect_at_the_end() -> None:
    reached = []

    def work() -> None:
        with deferred():
            send(signal.SIGTERM)
            send(signal.SIGINT)
            reached.append("the end")
        reached.append("beyond")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached == ["the end"]


def test_without_a_signal_nothing_happens() -> None:
    with deferred():
        pass


def test_an_error_inside_wins_over_the_signal() -> None:
    def work() -> None:
        with deferred():
            send(signal.SIGINT)
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        work()
