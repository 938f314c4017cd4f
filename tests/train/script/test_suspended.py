"""Scripts that hold suspended generators: killed and started again, they go on exactly, or refuse with a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.model import handshake
from tests.train.script import scripts_for_generators as bodies
from tests.train.script.drill import Drill, survives
from tests.train.script.scripts_for_session import HEAD
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")


@pytest.fixture
def drill(scripts: Zygote, tmp_path: Path) -> Drill:
    return Drill(scripts, tmp_path)


def write(drill: Drill, body: str) -> None:
    (drill.place / "train.py").write_text(HEAD + bodies.LOADERS + body)


@pytest.mark.expensive(family="killed generators")
@pytest.mark.parametrize(
    ("body", "stops"),
    [
        (bodies.CYCLE, (4, 7, 9)),
        (bodies.CYCLE, (14,)),
        (bodies.TWO_LOADERS, (9, 13, 6)),
        (bodies.TWO_LOADERS, (23,)),
        (bodies.EPOCHS, (5, 4, 6)),
        (bodies.EPOCHS, (13,)),
        (bodies.DELEGATES, (5, 6, 7)),
        (bodies.DELEGATES, (12, 9)),
        (bodies.EXPRESSIONS, (5, 7)),
        (bodies.EXPRESSIONS, (14,)),
        (bodies.WRAPPED, (8, 14, 25)),
        (bodies.LOOPED, (7, 6)),
        (bodies.LOOPED, (13, 11)),
        (bodies.LOOPED, (24, 6)),
        (bodies.LOOPED, (31,)),
        (bodies.GUARDED, (5, 9)),
        (bodies.MADE_IN_A_PASS, (7, 7)),
        (bodies.SHARED_SCOPE, (8, 5)),
        (bodies.TRAINER, (6, 9)),
        (bodies.COMPILED, (8, 5)),
        (bodies.MANAGED, (5, 4, 9)),
    ],
)
def test_a_killed_script_ends_as_if_it_had_not_been(drill: Drill, body: str, stops: tuple[int, ...]) -> None:
    write(drill, body)
    survives(drill, *stops)


@pytest.mark.expensive(family="killed generators")
@pytest.mark.parametrize("stops", [(4, 7, 9), (15,)])
def test_with_workers(drill: Drill, stops: tuple[int, ...]) -> None:
    drill.env["WORKERS"] = "2"
    write(drill, bodies.CYCLE)
    survives(drill, *stops)


def test_training_within_a_generator(drill: Drill) -> None:
    drill.env["HOW"] = "next"
    write(drill, bodies.TRAINER)
    survives(drill, 6, 9, 13)


REFUSALS = {
    "a lock that is held": (bodies.LOCKED, "numbers at train.py", "is within a `with` (lock)"),
    "yield in an expression": (bodies.IN_AN_EXPRESSION, "numbers at train.py", "let `yield` be a statement"),
    "yield in finally": (bodies.IN_FINALLY, "numbers at train.py", "let `yield` be a statement"),
    "a for inside of a for": (bodies.NESTED_EXPRESSION, "<genexpr> at train.py", "write it as a function with `yield`"),
    "a library's": (bodies.OF_A_LIBRARY, "modules at module.py", "use a class with __iter__ and __next__"),
    "a variable of a function that runs": (bodies.SHARED_SCOPE_IN_A_PASS, "the variable scale", "before the loop"),
    "a function that sees one": (bodies.SHARED_SCOPE_OF_A_FUNCTION, "the variable scale", "before the loop"),
    "asynchronous": (bodies.COROUTINES, "data (async_generator)", "asynchronous generators cannot be saved"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_made_again_refuses_with_its_place_when_it_is_used(drill: Drill, name: str) -> None:
    body, what, remedy = REFUSALS[name]
    write(drill, body)
    assert drill.launch(9) == -9
    assert drill.launch() == handshake.EXIT_REFUSED, drill.said()
    assert what in drill.said()
    assert remedy in drill.said()


def test_a_generator_that_a_loop_draws_from_through_an_object_of_the_script_is_not_there_twice(drill: Drill) -> None:
    """The loop is advanced by itself; the variable refuses, instead of being one item behind."""
    held = "self.lock = __import__('threading').Lock(); self.lock.acquire(); self.next = next(source)"
    write(drill, bodies.HANDED_ON.replace("self.next = next(source)", held))
    assert drill.launch(9) == -9
    assert drill.launch() == handshake.EXIT_REFUSED, drill.said()
    assert "a loop goes over the generator cycle at train.py" in drill.said()


def test_a_generator_below_an_iterator_of_a_class_of_the_script_comes_back_with_it(drill: Drill) -> None:
    write(drill, bodies.HANDED_ON)
    survives(drill, 9, 5)


def test_a_stream_that_keeps_a_generator_is_not_advanced_twice(drill: Drill) -> None:
    """All that it has given so far is equal: a checksum would not notice. So no save is made there."""
    write(drill, bodies.STREAM)
    _, stdout = drill.plain()
    assert drill.launch(9) == -9
    assert drill.launch() == 0, drill.said()
    assert not drill.resumed()
    assert drill.log() == stdout


def test_a_wrapper_that_a_loop_has_left_is_the_one_it_went_over(drill: Drill) -> None:
    write(drill, bodies.NUMBERED)
    _, stdout = drill.plain()
    assert drill.launch(4) == -9
    assert drill.launch() == 0, drill.said()
    assert drill.resumed()
    assert drill.log() == stdout
