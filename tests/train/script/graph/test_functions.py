"""Functions come back with what they keep: cells, defaults, attributes, caches."""

from __future__ import annotations

import pytest

from tests.train.script.graph.relaunch import assert_exact

CASES = {
    "closure cells": """
def counter():
    n, seen = 0, []
    def count(i):
        nonlocal n
        n += i
        seen.append(n)
        return n, list(seen)
    return count
count = counter()
last = None
def step(i):
    global last
    last = count(i)
def show(): return last
""",
    "default arguments": """
def remember(i, seen=[], *, more={}):
    seen.append(i); more[i] = i
    return list(seen), dict(more)
last = None
def step(i):
    global last
    last = remember(i)
def show(): return last
""",
    "attributes of functions": """
def log(i):
    log.calls = getattr(log, "calls", 0) + i
def step(i): log(i)
def show(): return log.calls
""",
    "decorated functions": """
import functools
def counted(function):
    calls = 0
    @functools.wraps(function)
    def inner(*a):
        nonlocal calls
        calls += 1
        inner.calls = calls
        return function(*a) + calls
    return inner
@counted
def work(i): return i
class Model:
    @counted
    def work(self, i): return i
    @staticmethod
    @counted
    def plain(i): return i
    @property
    @counted
    def value(self): return 1
total = 0
def step(i):
    global total
    total += work(i) + Model().work(i) + Model.plain(i) + Model().value
def show(): return total, work.calls
""",
    "partials and methods": """
import functools, operator
class Model:
    def __init__(self): self.n = 0
    def add(self, k=1): self.n += k; return self.n
    @classmethod
    def make(cls): return cls()
model = Model()
add = model.add
bound = functools.partial(model.add, k=2)
append = [].append
get = operator.attrgetter("n")
make = Model.make
calls = []
def step(i):
    global bound, later
    add(); bound(); append(i)
    bound = functools.partial(model.add, k=i)
    later = model.add
    calls.append(lambda k=i: (k, i, model.n))
def show(): return model.n, get(model), append.__self__, bound.keywords, later() - add(), [c() for c in calls], make().n
""",
    "lambdas made in the loop": """
scale = 2
rules, table = [], {}
def step(i):
    offset = i
    rules.append(lambda x: x * scale + offset)
    def inner(x, extra=[i]):
        extra.append(x)
        return rules[-1](x), extra
    table[i] = inner
def show(): return [r(1) for r in rules], [f(5) for f in table.values()], [f(6) for f in table.values()]
""",
    "caches of functions": """
import functools
calls = []
@functools.lru_cache(maxsize=3)
def bounded(*a, **k): calls.append(("bounded", a, tuple(k))); return [a, k]
@functools.cache
def unbounded(a): calls.append(("unbounded", a)); return [a]
@functools.lru_cache(maxsize=8, typed=True)
def typed(a, b=1): calls.append(("typed", a)); return [a]
def make(base):
    @functools.lru_cache
    def scaled(x): calls.append(x); return x * base
    return scaled
scaled = make(3)
kept = []
def step(i):
    kept.append(bounded(i, k=i)); kept.append(unbounded(i)); kept.append(typed(i, b=2)); kept.append(typed(float(i)))
    bounded(0, k=0); unbounded(0); typed(0, b=2); kept.append(scaled(i))
    kept[0].append(i)
def show(): return calls, kept, [bounded(0, k=0) is kept[0], bounded(5, k=5) is kept[-4]], scaled(2), calls
""",
}


@pytest.mark.parametrize("name", CASES)
def test_comes_back(name: str) -> None:
    assert_exact(CASES[name])
