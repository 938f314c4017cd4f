"""Plain Python objects come back, with their aliasing."""

from __future__ import annotations

import pytest

from tests.train.script.graph.relaunch import assert_exact

CASES = {
    "numbers and text": """
count, name, ratio = 0, "", 0.0
def step(i):
    global count, name, ratio
    count, name, ratio = count + 1, name + str(i), ratio - 0.0 * i + 0.1
def show(): return count, name, ratio
""",
    "class attributes": """
class Meter:
    total = 0
    seen = []
    class Inner:
        deep = {}
class Child(Meter):
    pass
def step(i):
    Meter.total += i
    Meter.seen.append(i)
    Meter.Inner.deep[i] = i
    Child.total = Meter.total + 1
    Child.extra = i
def show(): return Meter.total, Meter.seen, Meter.Inner.deep, Child.total, Child.extra, Child.seen is Meter.seen
""",
    "class attribute deleted": """
class Options:
    first = True
def step(i):
    if hasattr(Options, "first") and i == 1:
        del Options.first
def show(): return hasattr(Options, "first")
""",
    "a method exchanged in the loop": """
class Model:
    def rate(self): return 1
def slow(self): return 2
model = Model()
def step(i):
    if i == 1: Model.rate = slow
def show(): return model.rate()
""",
    "enums are found, never written": """
import enum
class Phase(enum.Enum):
    WARM = "warm"
    HOT = "hot"
class Flags(enum.Flag):
    A = 1
    B = 2
phase, flags, by_phase = Phase.WARM, Flags.A, {}
def step(i):
    global phase, flags
    phase = Phase.HOT if i % 2 else Phase.WARM
    flags = Flags.A | Flags.B if i > 2 else Flags.B
    by_phase[phase] = i
def show(): return phase is Phase.HOT, flags, by_phase, list(Phase), [Phase("hot") is Phase.HOT]
""",
    "iterators kept on objects": """
import itertools
class Loader:
    def __init__(self):
        self.items = list(range(40))
        self.it = iter(self.items)
        self.pairs = zip(iter(range(30)), itertools.count(5, 2))
        self.cycle = itertools.cycle("abcd")
        self.chain = itertools.chain([1, 2], (3, 4), range(20))
        self.numbered = enumerate(self.items)
        self.mapped = map(str, iter(range(20)))
        self.some = filter(None, iter(range(20)))
        self.slice = itertools.islice(itertools.count(), 2, 30, 3)
        self.back = reversed(self.items)
        self.short = iter([1, 2])
loader = Loader()
got = []
def step(i):
    row = [next(x) for x in (loader.it, loader.pairs, loader.cycle, loader.chain, loader.numbered)]
    got.append(row + [next(x) for x in (loader.mapped, loader.some, loader.slice, loader.back)])
    got.append(next(loader.short, "end"))
    loader.items[20] = i
def show(): return got, next(loader.it), list(loader.it)[-5:]
""",
    "two names for one iterator": """
items = list(range(20))
it = iter(items)
same = it
other = [it]
got = []
def step(i): got.append((next(it), next(same), next(other[0])))
def show(): return got
""",
    "aliasing": """
a = []
b = a
c = {"a": a, "self": None}
c["self"] = c
t = (a, [a])
def step(i):
    global b
    if i == 1: b = [a]
    a.append(i)
def show(): return a, b[0] is a, c["a"] is a, t[0] is t[1][0] is a, c["self"] is c
""",
    "swapped objects": """
class Net:
    def __init__(self, n): self.n = n
x, y = Net(1), Net(2)
both = [x, y]
def step(i):
    global x, y
    if i % 2 == 0: x, y = y, x
    x.n += i
def show(): return x.n, y.n, both[0].n, both[1].n, [n is x for n in both]
""",
    "rebound, deleted and new names": """
old = [1]
gone = 1
def step(i):
    global old, new, gone
    old = {"made": i}
    new = [old]
    if i == 0: del gone
def show(): return old, new[0] is old, "gone" in globals()
""",
    "objects made in the loop": """
class Node:
    def __init__(self, value, parent): self.value, self.parent, self.children = value, parent, []
root = Node(0, None)
here = root
def step(i):
    global here
    child = Node(i, here)
    here.children.append(child)
    here = child
def show():
    walk, n = [], here
    while n: walk.append((n.value, len(n.children))); n = n.parent
    return walk
""",
    "dataclasses": """
from dataclasses import dataclass, field
@dataclass
class Config:
    lr: float = 1.0
    seen: list = field(default_factory=list)
@dataclass(frozen=True)
class Point:
    x: int
    y: tuple = ()
@dataclass(slots=True)
class Slim:
    x: int
    y: object = None
@dataclass(frozen=True, slots=True)
class Thin:
    x: int
config, point, slim, thin = Config(), Point(0), Slim(0), Thin(0)
points = {point}
frozen = frozenset({point, (Point(7), thin)})
by_point = {}
def step(i):
    global point, thin, frozen
    config.lr *= 0.5; config.seen.append(i)
    point = Point(i, (slim,)[:0]); points.add(point); by_point[Point(i), i] = thin
    slim.x += i; slim.y = [config]
    thin = Thin(i)
    frozen = frozen | {Point(i), (Point(i), thin)}
def show():
    return config, point, sorted(p.x for p in points), slim, thin, Point(1) in points, by_point[Point(2), 2], \
        slim.y[0] is config, Point(2) in frozen, (Point(2), Thin(2)) in frozen, len(frozen)
""",
    "slots": """
class Base:
    __slots__ = ("a", "__hidden")
    def __init__(self): self.__hidden = 0
    def up(self): self.__hidden += 1; return self.__hidden
class Slim(Base):
    __slots__ = ("b",)
class Wide(Slim):
    pass
s, w, n = Slim(), Wide(), 0
s.a = 1
def step(i):
    global n
    s.b = [s]; w.c = s; n = s.up() + w.up()
    if i == 1: del s.a
def show(): return n, hasattr(s, "a"), s.b[0] is s, w.c is s
""",
    "named tuples and typed containers": """
from collections import namedtuple
from typing import NamedTuple
Pair = namedtuple("Pair", "a b")
class Row(NamedTuple):
    x: int
    y: list = []
class MyList(list):
    def append(self, x): super().append(x * 2)
class MyDict(dict):
    def __setitem__(self, k, v): super().__setitem__(k, v + 1)
class MyTuple(tuple): pass
class MyInt(int): pass
class MyStr(str): pass
pair, row, l, d, t, n, s = Pair(1, []), Row(0), MyList(), MyDict(), MyTuple(), MyInt(1), MyStr("a")
def step(i):
    global pair, row, t, n, s
    l.append(i); l.tag = i; d[i] = i; d.owner = l
    pair = Pair(i, l); row = Row(i, pair); t = MyTuple((pair, i)); t.mark = i
    n = MyInt(n + i); n.note = i; s = MyStr(s + "b")
def show():
    return pair, row, l, l.tag, d, d.owner is l, t, t.mark, row.y is pair, pair.b is l, n, n.note, s, type(s).__name__
""",
    "collections": """
from collections import Counter, OrderedDict, defaultdict, deque, ChainMap, UserDict
counts, order, groups, window = Counter(), OrderedDict(), defaultdict(lambda: [0]), deque(maxlen=2)
chain, user, nested = ChainMap({}, {1: 1}), UserDict(), defaultdict(lambda: defaultdict(int))
def step(i):
    counts[i % 2] += 1; order[i] = i; order.move_to_end(0); groups[i % 2].append(i); window.append(groups[0])
    chain[i] = i; user[i] = i; nested[i]["x"] += 1
def show():
    return counts, list(order), dict(groups), window, chain, user, groups["new"], nested[2]["x"], nested["n"]["m"]
""",
    "sets": """
numbers, words, fixed = set(range(5)), {"a"}, frozenset({1})
class Thing: pass
one = Thing()
things = {one}
order = []
def step(i):
    global fixed
    numbers.discard(i); numbers.add(i * 37 % 101); words.add("w%d" % i); fixed = fixed | {i, (i, "x")}
    t = Thing(); t.n = i; things.add(t)
    order.append(list(numbers))
def show(): return order, sorted(words), sorted(map(str, fixed)), one in things, len(things)
""",
    "weak references": """
import weakref
class Thing:
    def __init__(self, n): self.n = n
kept = [Thing(0)]
names, values, some = weakref.WeakKeyDictionary(), weakref.WeakValueDictionary(), weakref.WeakSet()
latest, dead = weakref.ref(kept[0]), None
def step(i):
    global latest, dead
    t = Thing(i)
    kept.append(t)
    names[t] = i; values[i] = t; some.add(t)
    latest = weakref.ref(t)
    dead = weakref.ref(Thing(9))
def show():
    return latest().n, latest() is kept[-1], dead(), [names[k] for k in kept[1:]], values[3] is kept[4], len(some)
""",
    "vars of an object": """
import argparse
args = argparse.Namespace(lr=1.0, epochs=3)
config = vars(args)
class Holder: pass
holder = Holder()
holder.own = vars(holder)
def step(i):
    args.lr *= 0.5
    config["seen"] = i
    holder.n = i
def show(): return args, config is vars(args), holder.own is vars(holder), holder.own["n"]
""",
    "globals by hand": """
names = globals()
def step(i): names["made_%d" % i] = i; globals()["last"] = i
def show(): return [n for n in names if n.startswith("made")], last, names is globals()
""",
    "dates, paths, numbers": """
import datetime, decimal, fractions, pathlib, uuid, re, array, types
when, path, money, part = datetime.datetime(2020, 1, 1), pathlib.Path("a"), decimal.Decimal(1), fractions.Fraction(1, 3)
raw, view, space, pattern = bytearray(b"a"), array.array("d", [1.0]), types.SimpleNamespace(n=0), None
same = raw
tables = {}
def step(i):
    global when, path, money, part, pattern
    when += datetime.timedelta(days=1); path = path / str(i); money += decimal.Decimal("0.1"); part *= 2
    raw.extend(b"%d" % i); view.append(i); space.n += 1; space.me = space; pattern = re.compile("a%d" % i)
    tables[path, when] = uuid.UUID(int=i)
    tables[i] = slice(i, None), range(i), i + 2j, ..., NotImplemented, type(i), int
def show(): return when, path, money, part, raw, same is raw, view, space.n, space.me is space, pattern, tables
""",
    "random generators": """
import random
import numpy as np
import torch
from random import shuffle, random as draw
rng, old, new = random.Random(3), np.random.RandomState(3), np.random.default_rng(3)
tg = torch.Generator().manual_seed(3)
bits, sub = new.bit_generator, np.random.Generator(np.random.PCG64(5))
children = []
class Mine(random.Random):
    def pick(self): return self.random()
mine = Mine(4)
got = []
def step(i):
    got.append([rng.random(), rng.gauss(0, 1), old.randn(), new.normal(), torch.rand(1, generator=tg).item(), draw()])
    got.append([bits.random_raw(), sub.integers(100), np.random.rand(), torch.rand(1).item()])
    got.append([mine.pick(), mine.gauss(0, 1)])
    children.append(new.spawn(1)[0])
    got.append([c.random() for c in children])
    items = list(range(9)); shuffle(items); got.append(items)
def show(): return got
""",
    "recursive structures": """
a = []
a.append(a)
class Pair: pass
p, q = Pair(), Pair()
p.other, q.other = q, p
loop = ([],)
loop[0].append(loop)
def step(i):
    a.append(i); p.n = i
    global loop
    loop = ([i],)
    loop[0].append(loop)
def show(): return a[1:], a[0] is a, p.other.other is p, p.n, loop[0][1] is loop, loop[0][0]
""",
    "objects with code in their attributes": """
class Careful:
    def __init__(self): self.__dict__["values"] = {}
    def __getattr__(self, name):
        try: return self.__dict__["values"][name]
        except KeyError: raise AttributeError(name)
    def __setattr__(self, name, value): self.values[name] = value
    def __getstate__(self): raise RuntimeError("never pickled")
    def __eq__(self, other): raise RuntimeError("never compared")
    __hash__ = object.__hash__
    def __len__(self): return 0
    def __bool__(self): raise RuntimeError("never asked")
c = Careful()
keyed = {c: 0}
def step(i): c.n = i; keyed[c] += i
def show(): return c.n, keyed[c]
""",
    "context variables, locks and events at rest": """
import threading, queue
lock, rlock, event, box = threading.Lock(), threading.RLock(), threading.Event(), queue.Queue()
local = {"lock": lock}
def step(i):
    with lock, rlock: box.put(i)
    if i == 2: event.set()
def show():
    with lock: items = [box.get_nowait() for _ in range(box.qsize())]
    return items, event.is_set(), local["lock"] is lock
""",
    "exceptions that were kept": """
errors = []
def step(i):
    try: raise ValueError("bad %d" % i)
    except ValueError as e: errors.append(e)
def show(): return [str(e) for e in errors]
""",
    "sentinels of a library": """
import dataclasses, functools
late = []
NOTHING = object()
class Box:
    def __init__(self): self.value = NOTHING
boxes = [Box()]
def step(i):
    b = Box(); boxes.append(b)
    if i > 2: b.value = dataclasses.MISSING
    late.append(functools._initial_missing)
def show():
    found = [b.value is NOTHING for b in boxes], [b.value is dataclasses.MISSING for b in boxes]
    return [x is functools._initial_missing for x in late], found
""",
}

# Iterators over dicts and sets come back as iterators over what was left.
SAME_BEHAVIOUR = {
    "iterators over dicts": """
table = {n: -n for n in range(20)}
its = [iter(table), iter(table.items()), iter(table.values()), iter(set(range(20))), iter(frozenset(range(20)))]
rows = []
def step(i): rows.append([next(it) for it in its])
def show(): return rows, [list(it) for it in its]
""",
}


@pytest.mark.parametrize("name", SAME_BEHAVIOUR)
def test_goes_on_as_it_would_have(name: str) -> None:
    assert_exact(SAME_BEHAVIOUR[name], same_graph=False)


@pytest.mark.parametrize("name", CASES)
def test_comes_back(name: str) -> None:
    assert_exact(CASES[name])
