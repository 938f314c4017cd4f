"""Loops at run time: what is active, what is over, and what is noted for a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from everstep.train.script.heads import Heads, Marker, Record
from everstep.train.script.rewrite import MARKER, rewrite
from everstep.train.script.steps import Steps


class Course:
    """Runs rewritten source whose ``step()`` counts one step; calls ``look`` at each safe point."""

    def __init__(self) -> None:
        self.steps = Steps()
        self.look: Callable[[Record], None] = lambda record: None
        self.heads = Heads(self.steps, lambda record: self.look(record))

    def step(self) -> None:
        self.steps.count += 1

    def run(self, source: str, **names: Any) -> None:
        rewritten = rewrite(source.encode(), "user.py", "user")
        names.update({MARKER: Marker(self.heads, rewritten), "step": self.step})
        exec(rewritten.code, names)


@pytest.fixture
def course() -> Course:
    return Course()


def where(heads: Heads) -> list[tuple[int, int]]:
    return [(record.loop.site.number, record.begun) for record in heads.stack if record.loop is not None]


def test_safe_points_are_heads_with_a_step_since_the_last(course: Course) -> None:
    seen = []
    course.look = lambda record: seen.append(where(course.heads))
    course.run("for a in range(2):\n  for b in range(2):\n    step()\n  for c in range(9): pass\n")
    inner = [[(0, 1), (1, 1)], [(0, 1), (1, 2)], [(0, 1)], [(0, 2), (1, 1)], [(0, 2), (1, 2)], [(0, 2)]]
    assert seen == inner


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(5):\n  step()\n  if i == 2: break\n",
        "while True:\n  step()\n  break\n",
        "def f():\n  while True:\n    for i in range(3):\n      step()\n      return i\nf()\n",
        "try:\n  for i in range(3):\n    step()\n    1 / 0\nexcept ZeroDivisionError: pass\n",
        "def f(n):\n  while n:\n    n -= 1\n    step()\n    f(n)\nf(3)\n",
    ],
)
def test_nothing_stays_active_however_a_loop_ends(course: Course, body: str) -> None:
    course.run(body)
    assert where(course.heads) == []


def test_loops_that_stepped_are_kept_with_how_they_ended(course: Course) -> None:
    course.run(
        "def f(n, step):\n"
        "  for i in range(n):\n"
        "    step()\n"
        "    if i == 2: return 'early', i\n"
        "f(2, lambda: None)\n"
        "f(2, step)\n"
        "f(9, step)\n"
        "while True:\n"
        "  step()\n"
        "  break\n"
        "try:\n"
        "  for i in range(3):\n"
        "    step()\n"
        "    1 / 0\n"
        "except ZeroDivisionError: pass\n"
    )
    ended = [(e.key[1], e.ordinal, e.how, e.value) for e in course.heads.stack[0].ended]
    assert ended == [
        (0, 1, "exhausted", None),
        (0, 2, "returned", ("early", 2)),
        (1, 0, "left", None),
        (2, 0, "raised", "ZeroDivisionError: division by zero"),
    ]
    assert course.heads.stack[0].ended[1].values["i"] == 2


def test_what_is_over_counts_for_one_pass_of_the_loop_around(course: Course) -> None:
    seen = []
    course.look = lambda record: seen.append([len(r.ended) for r in course.heads.stack])
    course.run("for a in range(2):\n  for b in range(1):\n    step()\n  for c in range(1):\n    step()\n")
    assert seen == [[0, 0, 0], [0, 1, 0], [0, 0], [0, 0, 0], [0, 1, 0], [0, 0]]


def test_outer_loops_note_the_random_state_before_each_pass(course: Course) -> None:
    torch.manual_seed(3)
    states = []

    def look(record: Record) -> None:
        outer = course.heads.stack[1]
        if record is not outer:
            assert outer.before is not None
            states.append((outer.before_at, outer.before.process["torch"][:64].tolist()))

    course.look = look
    names = {"draw": lambda: states.append(("drawn", torch.get_rng_state()[:64].tolist())) or torch.rand(1)}
    course.run("for a in range(3):\n  for b in range(2):\n    step()\n  draw()\n", **names)
    assert [number for number, _ in states] == [0, 0, "drawn", 1, 1, "drawn", 2, 2, "drawn"]
    assert states[0][1] == states[2][1], "nothing was drawn in the first pass before this"
    assert states[3][1] != states[0][1]


def test_all_loops_around_a_step_are_noted_whatever_was_around_an_earlier_one(course: Course) -> None:
    unnoted = []

    def look(record: Record) -> None:
        around = course.heads.stack[1:-1] if record is course.heads.stack[-1] else []
        unnoted.extend(
            where(course.heads) for outer in around if outer.begun > 1 and outer.before_at != outer.begun - 1
        )

    course.look = look
    f = "def f():\n  for i in range(2): step()\n"
    g = "def g():\n  for j in range(2): f()\n"
    course.run(f + g + "f()\nfor a in range(3): f()\nfor b in range(3):\n  g()\n  for c in range(3): g()\n")
    assert unnoted == []
    assert course.steps.count == 2 + 6 + 3 * 4 * 4


def test_a_loop_that_never_steps_is_noted_a_few_times_only(course: Course) -> None:
    noted = []
    course.look = lambda record: noted.append(course.heads.stack[-1].start is not None)
    course.run("def f():\n  for i in range(2): pass\nfor a in range(40): f()\nfor b in range(1): step()\n")
    assert noted == [True]


def test_in_a_forked_child_and_in_threads_nothing_is_recorded(course: Course) -> None:
    import threading

    seen = []
    course.look = seen.append
    source = "def work():\n  for i in range(3): step()\n  n = 0\n  while n < 3:\n    n += 1\n    step()\nrun(work)\n"

    def run(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    course.run(source, run=run)
    course.heads.inert = True
    course.run(source, run=lambda work: work())
    assert seen == []
    assert course.steps.count == 12
