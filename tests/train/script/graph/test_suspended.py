"""Generators, saved before each of their items and made anew in a fresh start, go on as if nothing had been."""

from __future__ import annotations

import dataclasses
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from everstep.train.script import graph
from everstep.train.script.heads import Heads, Marker
from everstep.train.script.rewrite import MARKER, rewrite
from everstep.train.script.steps import Steps

NAME = "user_generators"
ITEMS = 22


class Start:
    """A fresh start of a script that makes ``data``."""

    def __init__(self, source: str) -> None:
        self.module = types.ModuleType(NAME)
        self.module.__file__ = f"/somewhere/{NAME}.py"
        rewritten = rewrite(source.encode(), self.module.__file__, NAME)
        vars(self.module)[MARKER] = Marker(Heads(Steps(), lambda record: None), rewritten)
        sys.modules[NAME] = self.module
        exec(rewritten.code, vars(self.module))

    def items(self, count: int) -> list[str]:
        return [repr(next(self.module.data, "over")) for _ in range(count)]

    def capture(self) -> graph.Captured:
        sys.modules[NAME] = self.module
        return pickle.loads(pickle.dumps(graph.capture([self._space()])))  # type: ignore[no-any-return]

    def restore(self, captured: graph.Captured) -> Start:
        sys.modules[NAME] = self.module
        [restored] = graph.restore(captured, [self._space()])
        for name in restored.gone:
            delattr(self.module, name)
        vars(self.module).update(restored.values)
        return self

    def _space(self) -> graph.Space:
        return graph.Space(f"module {NAME}", {k: v for k, v in vars(self.module).items() if k != MARKER})


def plain(source: str) -> list[str]:
    names: dict[str, Any] = {"__name__": NAME}
    exec(compile(source, "plain.py", "exec"), names)
    return [repr(next(names["data"], "over")) for _ in range(ITEMS)]


EXACT = {
    "a loop without end, unpacking": """
def cycle(rows):
    "A docstring."
    while True:
        for a, (b, *c) in rows:
            yield a, b, c
data = cycle([(1, (2, 3)), (4, (5, 6, 7)), (8, (9,))])
""",
    "several yields, branches, a result": """
def batches():
    total = 0
    for epoch in range(3):
        for i in range(4):
            total += i
            if i % 2:
                yield 'odd', epoch, i, total
            elif i == 2:
                yield 'two'
                total *= 2
            yield total
        yield 'end of epoch'
    return total
def outer():
    yield (yield_from_result := 0)
    result = yield from batches()
    yield 'result', result
data = outer()
""",
    "else of loops": """
def g():
    for epoch in range(4):
        for i in range(3):
            yield epoch, i
            if i == 1 and epoch == 2:
                break
        else:
            yield 'done', epoch
            n = epoch
            while n < 3:
                n += 1
                yield n
            else:
                yield 'while over'
data = g()
""",
    "delegates": """
def inner(n):
    got = 0
    for i in range(n):
        got += i
        yield got
    return got
def outer():
    while True:
        result = yield from inner(4)
        yield 'result', result
        yield from [1, 2, 3]
        yield from enumerate(inner(2))
data = outer()
""",
    "recursion": """
def walk(tree):
    if isinstance(tree, int):
        yield tree
    else:
        for branch in tree:
            yield from walk(branch)
data = walk([1, [2, [3, 4]], [[5]], 6, [7, [8, [9, 10]]]])
""",
    "methods, inherited": """
class Base:
    def __init__(self):
        self.n = 0
    def items(self):
        for i in range(3):
            self.n += 1
            yield [i * j for j in range(self.n)]
class Data(Base):
    def __iter__(self):
        while True:
            for x in self.items():
                yield x, self.n
    def items(self):
        try:
            for x in super().items():
                yield sum(x)
        finally:
            self.n += 10
source = Data()
data = iter(source)
""",
    "managers": """
import contextlib
def g():
    for epoch in range(3):
        with contextlib.nullcontext((1, 2)) as (a, b), contextlib.nullcontext(epoch) as c:
            for i in range(3):
                yield a, b, c, i
                a += 1
        yield 'out'
data = g()
""",
    "variables that functions share": """
def make():
    n = 0
    def g(k):
        nonlocal n
        m = k
        def bump():
            nonlocal m
            m += 1
            return m
        kept = []
        while n < 15:
            n += 1
            kept.append(lambda: (n, m))
            yield bump(), m, n, kept[0](), [m + i for i in range(2)]
    return g
data = make()(3)
""",
    "all kinds of arguments": """
def g(a, /, b, *c, d, e=5, **f):
    for i in range(4):
        yield a, b, c, d, e, f
        c = c + (i,)
        if i == 1:
            del e
            e = 7
data = g(1, 2, 3, d=4, z=9)
""",
    "expressions": """
base = [1, 2, 3]
def main():
    double = lambda x: x * 2
    return (double(x) + len(base) for x in range(10) if x % 3)
data = (y * y for y in main())
""",
    "beneath iterators of the library": """
import itertools
def cycle(items):
    while True:
        yield from items
data = enumerate(itertools.islice(zip(cycle([1, 2, 3]), map(lambda v: v * v, cycle(range(5)))), 20))
""",
    "one generator, held twice": """
def numbers():
    yield from range(100)
rows = numbers()
def both():
    for row in rows:
        yield row, next(rows)
data = both()
""",
}


@pytest.mark.parametrize("name", EXACT)
def test_a_generator_goes_on_from_every_place(name: str) -> None:
    source = EXACT[name]
    expected = plain(source)
    assert Start(source).items(ITEMS) == expected
    assert len(set(expected)) > 1
    for taken in range(ITEMS):
        start = Start(source)
        start.items(taken)
        captured = start.capture()
        assert captured.problems == []
        again = Start(source).restore(captured)
        more = (ITEMS - taken) // 2
        assert again.items(more) == expected[taken : taken + more]
        captured = again.capture()
        assert captured.problems == []
        assert Start(source).restore(captured).items(ITEMS - taken - more) == expected[taken + more :]


@pytest.mark.parametrize("name", EXACT)
def test_a_generator_that_was_put_back_is_equal_to_the_one_that_ran(name: str) -> None:
    one = Start(EXACT[name])
    one.items(3)
    captured = one.capture()
    again = Start(EXACT[name]).restore(captured)
    again.items(2)
    one.items(2)
    assert graph.difference(one.capture(), again.capture()) is None


def test_what_is_sent_in_and_thrown_in_arrives() -> None:
    source = """
def inner():
    got = 0
    while True:
        try:
            got = yield got
        except KeyError:
            got = 'thrown'
def outer():
    yield from inner()
data = outer()
"""
    start = Start(source)
    start.items(1)
    assert start.module.data.send(5) == 5
    again = Start(source).restore(start.capture())
    assert again.module.data.send(7) == 7
    assert again.module.data.throw(KeyError()) == "thrown"
    again.module.data.close()
    assert again.items(1) == ["'over'"]


def test_what_the_fresh_start_made_is_dropped_without_its_finally() -> None:
    source = """
said = []
def g():
    try:
        for i in range(9):
            yield i
    finally:
        said.append('over')
data = g()
next(data)
"""
    start = Start(source)
    start.items(3)
    again = Start(source).restore(start.capture())
    assert again.module.said == []
    assert again.items(1) == ["4"]
    again.module.data.close()
    assert again.module.said == ["over"]


def test_a_loader_that_only_the_loop_knows() -> None:
    source = """
import torch
from torch.utils.data import DataLoader
from everstep.train.script import batches, loaderkind
batches.install(replaying=False)
loaderkind.install()
def g():
    for epoch in range(3):
        for batch in DataLoader(list(range(9)), 2):
            yield batch.tolist()
data = g()
"""
    from everstep.train.script import batches

    try:
        expected = Start(source).items(12)
        start = Start(source)
        start.items(7)
        assert Start(source).restore(start.capture()).items(5) == expected[7:]
    finally:
        batches.uninstall()


def test_another_place_of_the_same_yield_is_refused() -> None:
    source = "def g():\n    for i in range(9):\n        yield i\ndata = g()\n"
    start = Start(source)
    start.items(2)
    captured = start.capture()
    [number] = [n for n, (kind, _, _) in enumerate(captured.nodes) if kind == "suspended generator"]
    kind, saved, references = captured.nodes[number]
    captured.nodes[number] = (kind, dataclasses.replace(saved, instruction=saved.instruction + 2), references)
    assert type(Start(source).restore(captured).module.data) is graph.Poison


def test_a_function_that_is_not_there_any_more_is_refused() -> None:
    start = Start("def g():\n    for i in range(9):\n        yield i\ndata = g()\n")
    start.items(2)
    other = Start("def g():\n    for i in range(8):\n        yield i\ndata = g()\n")
    assert type(other.restore(start.capture()).module.data) is graph.Poison


PROBLEMS = {
    "yield in an expression": ("def g():\n    while True:\n        print((yield 1))\ndata = g()\n", "let `yield` be"),
    "yield in an augmented assignment": (
        "def g():\n    x = 0\n    while x < 9:\n        x += yield x\ndata = g()\n",
        "let",
    ),
    "yield in except": (
        "def g():\n    while True:\n        try:\n            1 / 0\n"
        "        except ZeroDivisionError:\n            yield 1\n"
        "data = g()\n",
        "let `yield` be",
    ),
    "locals()": ("def g():\n    while True:\n        yield len(locals())\ndata = g()\n", "locals()"),
    "a lock": (
        "import threading\nlock = threading.Lock()\n"
        "def g():\n    with lock:\n        while True:\n            yield 1\ndata = g()\n",
        "within a `with` (lock)",
    ),
    "two loops in an expression": ("data = (a * b for a in range(3) for b in range(3))\n", "a function with `yield`"),
    "a generator of a library": ("import os\ndata = os.walk('/')\n", "cannot be saved"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_cannot_be_made_anew_is_a_problem_once_it_has_begun(name: str) -> None:
    source, why = PROBLEMS[name]
    start = Start(source)
    start.items(1)
    problems = start.capture().problems
    assert any(problem.where == f"module {NAME}: data" and why in problem.why for problem in problems)
    if "lock" in source:
        start.module.data.close()


def test_what_the_fresh_start_delegated_to_stays_open(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("".join(f"{row}\n" for row in range(30)))
    source = f"""
def lines(path):
    with open(path) as file:
        for line in file:
            yield line
def twice(path):
    for _ in range(2):
        yield from lines(path)
data = twice({str(tmp_path / "rows.txt")!r})
next(data)
"""
    start = Start(source)
    start.items(12)
    captured = start.capture()
    assert captured.problems == []
    # As on the way of a relaunch: written once, and then again into what that has made.
    again = Start(source).restore(captured).restore(captured)
    assert again.items(3) == [repr(f"{row}\n") for row in (13, 14, 15)]
    again.module.data.close()
    start.module.data.close()
