"""Local variables of a running function, read and written from below it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from everstep.train.script.frames import local_values, position, set_locals, suspendable


def test_a_function_goes_on_with_what_was_written() -> None:
    def write(frame: FrameType | None) -> None:
        assert frame is not None
        assert local_values(frame)["plain"] == 1
        set_locals(frame, {"plain": 10, "new": 20, "cell": 30}, ["gone"], None)

    def function() -> tuple[Any, ...]:
        plain, cell, gone = 1, 2, 3

        def inner() -> int:
            return cell

        if plain == 0:
            new = 0
        write(sys._getframe())
        return plain, new, cell, inner(), "gone" in locals() and gone

    assert function() == (10, 20, 30, 30, sys.version_info >= (3, 13) and None)


def test_a_caller_further_up_is_written_too() -> None:
    def low() -> None:
        frame = sys._getframe(2)
        set_locals(frame, {"value": "written"}, [], None)

    def middle(call: Callable[[], None]) -> None:
        call()

    value = "first"
    middle(low)
    assert value == "written"


def test_positions_tell_where_in_a_line() -> None:
    frame = sys._getframe()
    here = position(frame), (frame.f_lineno, 11)
    assert here[0] == here[1]


def test_generators_are_suspendable() -> None:
    def generator() -> Any:
        yield 1

    assert suspendable(generator.__code__)
    assert not suspendable(test_generators_are_suspendable.__code__)
