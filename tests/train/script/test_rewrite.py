"""Rewritten modules do what the source says, and report their loops."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from typing import Any

import pytest

from everstep.train.script.holders import Entrances
from everstep.train.script.rewrite import MARKER, Rewritten, rewrite


class Recorder(Entrances):
    """Stands for the marker of a run that is not resumed: notes what is reported and changes nothing."""

    forced = False

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def loop(self, number: int, iterable: Iterable[Any]) -> Iterable[Any]:
        self.seen.append(("loop", number))
        return iterable

    def head(self, number: int) -> bool:
        self.seen.append(("head", number))
        return True

    def over(self, number: int) -> None:
        self.seen.append(("over", number))

    def exhausted(self, number: int) -> bool:
        return True

    def leaving(self, value: Any) -> Any:
        return value

    def returned(self, number: int) -> bool:
        return False


def run(source: str) -> tuple[dict[str, Any], Recorder, Rewritten]:
    rewritten = rewrite(source.encode(), "user.py", "user")
    recorder = Recorder()
    names: dict[str, Any] = {MARKER: recorder}
    exec(rewritten.code, names)
    return names, recorder, rewritten


SOURCE = '''"""A docstring."""
from __future__ import annotations
out = []
for a in range(3):
    while True:
        a += 1
        if a % 2:
            continue
        break
    else:
        out.append("never")
    out.append(a)
else:
    out.append("else")

def find(items, wanted):
    for i, item in enumerate(items):
        if item == wanted:
            return i
    return None

def numbers():
    for i in range(2):
        yield i

class Data:
    def __getitem__(self, at):
        for _ in range(3):
            at += 1
        return at
    def fit(self):
        return [find("abc", c) for c in "cx"]

out += [find([5, 6], 6), *numbers(), Data()[1], *Data().fit()]
while out and (last := out[-1]) is None:
    out.pop()
'''


def test_it_computes_what_the_source_computes() -> None:
    plain: dict[str, Any] = {}
    exec(compile(SOURCE, "user.py", "exec"), plain)
    names, _, _ = run(SOURCE)
    assert names["out"] == plain["out"] == [2, 2, 4, "else", 1, 0, 1, 4, 2]
    assert names["__doc__"] == "A docstring."


def test_loops_are_numbered_in_source_order_and_know_their_place() -> None:
    _, recorder, rewritten = run(SOURCE)
    assert [(s.number, s.lines, s.parents, s.function) for s in rewritten.sites] == [
        (0, (4, 14), (), "<module>"),
        (1, (5, 11), (0,), "<module>"),
        (2, (17, 19), (), "find"),
        (3, (35, 36), (), "<module>"),
    ]
    opened = [number for what, number in recorder.seen if what == "loop"]
    assert opened == [0, 2, 2, 2]
    assert recorder.seen.count(("over", 1)) == 3


@pytest.mark.parametrize(
    "function",
    [
        "def numbers():\n    for i in x: yield i",
        "async def main():\n    for i in x: pass",
        "def forward(self):\n    for i in x: pass",
        "def my_collate(batch):\n    for i in x: pass",
        "@torch.compile(fullgraph=True)\ndef f():\n    for i in x: pass",
        "@functools.partial(torch.jit.script)\ndef f():\n    for i in x: pass",
        "y = [i for i in []]",
    ],
)
def test_some_functions_are_left_alone(function: str) -> None:
    assert rewrite(function.encode(), "user.py", "user").sites == ()


def test_a_function_inside_is_not_its_generator() -> None:
    source = b"def f():\n    def g():\n        yield 1\n    for i in g(): pass"
    assert [site.function for site in rewrite(source, "user.py", "user").sites] == ["f"]


def test_tracebacks_show_the_lines_of_the_source() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run("x = 1\nfor i in range(2):\n    x = (i +\n        1 / 0)\n")
    assert traceback.extract_tb(caught.value.__traceback__)[-1].lineno == 4


def test_comprehensions_are_known_by_where_they_are() -> None:
    spans = rewrite(b"x = 1\ny = [f(i)\n     for i in z]\n", "user.py", "user").comprehensions
    assert [span.holds(2, 5) for span in spans] == [True]
    assert [span.holds(1, 4) for span in spans] == [False]


def test_the_digest_is_of_the_bytes() -> None:
    assert rewrite(b"x = 1", "a.py", "a").digest == rewrite(b"x = 1", "b.py", "b").digest
    assert rewrite(b"x = 1", "a.py", "a").digest != rewrite(b"x =  1", "a.py", "a").digest
