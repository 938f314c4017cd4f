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
        (3, (32, 32), (), "Data.fit.<locals>.__everstep_comprehension_0__"),
        (4, (35, 36), (), "<module>"),
    ]
    opened = [number for what, number in recorder.seen if what == "loop"]
    assert opened == [0, 2, 3, 2, 2]
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


OWN = """
def f(i):
    return i
"""


@pytest.mark.parametrize(
    "text",
    [
        "[f(i) for i in range(3)]",
        "[(f(i), j) for i in range(3) if i for j in range(i) if j or i > 1]",
        "[[f(i) for i in range(2)] for j in range(2)]",
        "[f(i) for i in [f(j) for j in range(3)]]",
        "(lambda n: [f(i) for i in range(n)])(2)",
        "[f(i) for i in (1, 2)] if (n := 3) else [f(7) for _ in ()]",
        "[f(a) for (a, *b) in ((1, 2), (3, 4))] + [f(a) for a in (8, 9)]",
    ],
)
def test_comprehensions_that_call_functions_of_the_script_are_loops_that_give_the_same(text: str) -> None:
    source = f"{OWN}\ndef g():\n    return {text}\n\nout = g(), {text}\n"
    names: dict[str, Any] = {}
    exec(source, names)
    made, _, rewritten = run(source)
    assert made["out"] == names["out"]
    assert bool(rewritten.sites) != text.startswith("(lambda")


@pytest.mark.parametrize(
    "text",
    [
        "[len(i) for i in z]",
        "[i.item() for i in z]",
        "[(last := f(i)) for i in z]",
        "[f(i) for i in i]",
        "[f(locals()) for i in z]",
        "{i: f(i) for i in z}",
        "sum(f(i) for i in z)",
    ],
)
def test_other_comprehensions_are_left_as_they_are(text: str) -> None:
    rewritten = rewrite(f"{OWN}\nclass A:\n    y = [f(i) for i in z]\ny = {text}\n".encode(), "user.py", "user")
    assert rewritten.sites == ()


def test_an_error_in_a_comprehension_is_shown_where_it_is() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run(f"{OWN}\nx = [\n    f(1) /\n    i\n    for i in (1, 0)]\n")
    assert [frame.lineno for frame in traceback.extract_tb(caught.value.__traceback__)][-2:] == [5, 6]


def test_the_digest_is_of_the_bytes() -> None:
    assert rewrite(b"x = 1", "a.py", "a").digest == rewrite(b"x = 1", "b.py", "b").digest
    assert rewrite(b"x = 1", "a.py", "a").digest != rewrite(b"x =  1", "a.py", "a").digest
