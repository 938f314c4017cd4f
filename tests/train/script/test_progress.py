"""The work left, told from the lengths of the loops."""

from __future__ import annotations

import pytest

from everstep.train.script.heads import Loop, Record
from everstep.train.script.progress import total
from everstep.train.script.rewrite import Site


def record(begun: int, length: int | None, began_at: int = 0) -> Record:
    made = Record(Loop(Site("user", 0, (1, 2), (), "f", "user.py")), None, 0, began_at)
    made.begun, made.length = begun, length
    return made


@pytest.mark.parametrize(
    ("stack", "count", "expected"),
    [
        ([record(3, 10)], 3, 10),
        ([record(1, 5), record(7, 20)], 7, 100),
        ([record(3, 5), record(7, 20)], 47, 100),
        ([record(3, 5, began_at=30), record(7, 20)], 77, 130),
        ([record(2, 4), record(8, 8)], 32, 64),
        ([record(2, 4)], 10, 20),
        ([record(3, 7)], 10, None),
        ([record(1, None), record(7, 20)], 7, None),
        ([record(9, 5)], 9, None),
    ],
    ids=[
        "one",
        "first epoch",
        "third epoch",
        "after a first phase",
        "two a pass",
        "five a pass",
        "uneven",
        "",
        "grown",
    ],
)
def test_total(stack: list[Record], count: int, expected: int | None) -> None:
    assert total(stack, count) == expected
