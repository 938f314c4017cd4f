"""What cannot be rebuilt is named at the save and refuses at its first use; nothing passes silently."""

from __future__ import annotations

import operator
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from everstep.train.script import graph
from tests.train.script.graph.relaunch import Script

PROBLEMS = {
    "a started generator": (
        "def numbers():\n    yield from range(9)\nthing = numbers()\nnext(thing)\n",
        "generator",
        "iterate over it with `for`",
    ),
    "a generator inside of others": (
        "thing = enumerate(x for x in range(9))\nnext(thing)\n",
        "generator",
        "cannot be saved",
    ),
    "a lock that is held": ("import threading\nthing = threading.Lock()\nthing.acquire()\n", "_thread.lock", "held"),
    "a recursive lock that is held": (
        "import threading\nthing = threading.RLock()\nthing.acquire()\n",
        "_thread.RLock",
        "held",
    ),
    "a socket": ("import socket\nthing = socket.socket()\n", "socket.socket", "does not pickle"),
    "a pipe": ("import os\nthing = os.fdopen(os.pipe()[0])\n", "_io.TextIOWrapper", "cannot be opened again"),
    "a simple queue": ("import queue\nthing = queue.SimpleQueue()\n", "_queue.SimpleQueue", "does not pickle"),
    "a function of ctypes": ("import ctypes\nthing = ctypes.CDLL(None).abs\n", "_FuncPtr", "does not pickle"),
    "a view into memory": ("thing = memoryview(bytearray(3))\n", "memoryview", "does not pickle"),
    "an object that fails to be taken apart": (
        "import functools\nclass Odd(functools.partial):\n"
        "    def __reduce_ex__(self, p): raise ZeroDivisionError('odd')\nthing = Odd(print)\n",
        "user_script.Odd",
        "odd",
    ),
    "quantized per channel": (
        "import torch, warnings\nwarnings.simplefilter('ignore')\n"
        "thing = torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8)\n",
        "torch.Tensor",
        "per channel",
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_problem_is_named_and_refuses(name: str) -> None:
    source, what, why = PROBLEMS[name]
    script = Script(source + "def show(): return thing\nholder = [thing]\n")
    captured = script.capture()
    [problem] = captured.problems
    assert what in problem.what
    assert why in problem.why
    assert problem.where.startswith("module user_script: thing")
    fresh = Script(source + "def show(): return thing\nholder = [thing]\n")
    things = [script.module.thing, fresh.module.thing]
    again = fresh.restore(captured)
    assert type(again.module.thing) is graph.Poison
    assert again.module.holder[0] is again.module.thing
    with pytest.raises(graph.Poisoned, match="module user_script: thing"):
        again.module.thing.anything  # noqa: B018
    # The next save says it again.
    assert [p.what for p in again.capture().problems] == ["everstep.train.script.graph.poison.Poison"]
    for thing in things:
        if hasattr(thing, "close"):
            thing.close()


USES: list[Callable[[Any], object]] = [
    bool, len, iter, next, str, repr, hash, int, float, list, abs, dir, format, pickle.dumps, operator.index,
    operator.neg, lambda p: p(), lambda p: p.x, lambda p: p[0], lambda p: 1 in p, lambda p: p + 1, lambda p: 1 + p,
    lambda p: p == 1,
    lambda p: p < 1, lambda p: setattr(p, "x", 1), lambda p: delattr(p, "x"), lambda p: operator.setitem(p, 0, 1),
    lambda p: isinstance(p, dict), lambda p: torch.add(torch.ones(1), p), lambda p: torch.ones(1) * p,
    lambda p: torch.stack([p]), lambda p: p.__enter__(), lambda p: f"{p}", lambda p: [*p], lambda p: {**p}, os.fspath,
    lambda p: max(p, 1), lambda p: isinstance(1, p), lambda p: operator.iadd(p, 1), lambda p: p @ p, lambda p: 2**p,
    lambda p: sum([p]),
]  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_every_use_of_poison_refuses(use: Callable[[Any], object]) -> None:
    poison = graph.Poison("module train: g", "generator", "it is not over")
    with pytest.raises(graph.Poisoned, match=r"module train: g \(generator\) could not be restored: it is not over"):
        use(poison)


def test_with_refuses() -> None:
    poison: Any = graph.Poison("a", "b", "c")
    with pytest.raises(graph.Poisoned), poison:
        pass


def test_poison_can_be_kept_passed_and_dropped() -> None:
    poison = graph.Poison("a", "b", "c")
    kept = [poison, (poison,), {"p": poison}]
    assert kept[0] is poison
    del kept, poison


def test_the_session_decides_how_to_refuse() -> None:
    texts: list[str] = []
    graph.refuse_with(texts.append)
    try:
        with pytest.raises(graph.Poisoned):
            len(graph.Poison("a", "b", "c"))  # type: ignore[arg-type]
    finally:
        graph.refuse_with(_raise)
    assert texts == ["a (b) could not be restored: c"]


def _raise(text: str) -> None:
    raise graph.Poisoned(text)


def test_a_gradient_does_not_go_back_over_the_save() -> None:
    source = """
import torch
w = torch.ones(2, requires_grad=True)
h = w * 2
"""
    script = Script(source)
    script.module.h = script.module.w * 3
    again = Script(source).restore(script.capture())
    assert again.module.h.tolist() == [3.0, 3.0]
    assert again.module.h.requires_grad
    with pytest.raises(graph.Poisoned, match="detach it"):
        again.module.h.sum().backward()


def test_a_poisoned_part_poisons_what_is_made_of_it() -> None:
    source = "def f(x): return x\ng = (n for n in range(3))\nnext(g)\n"
    script = Script(source)
    script.module.mapped = map(script.module.f, script.module.g)
    again = Script(source).restore(script.capture())
    assert type(again.module.g) is graph.Poison
    assert type(again.module.mapped) is graph.Poison


def test_a_local_class_that_was_not_made_this_time_refuses() -> None:
    source = "def make():\n    class Local: pass\n    return Local()\nthing = None\n"
    script = Script(source)
    script.module.thing = script.module.make()
    again = Script(source).restore(script.capture())
    with pytest.raises(graph.Poisoned, match="define it at module level"):
        again.module.thing.x  # noqa: B018


def test_exhausted_generators_come_back_exhausted() -> None:
    source = "g = iter(x for x in range(1))\n"
    script = Script(source)
    list(script.module.g)
    captured = script.capture()
    assert captured.problems == []
    assert list(Script(source).restore(captured).module.g) == []


def test_paths_name_the_object() -> None:
    source = """
class Reader:
    def __init__(self): self.parts = {"a": [1, (x for x in range(3))]}
reader = Reader()
next(reader.parts["a"][1])
"""
    [problem] = Script(source).capture().problems
    assert problem.where == "module user_script: reader.parts['a'][1]"
    assert "user_script.py:3" in problem.why


@pytest.mark.filterwarnings("ignore:Guards may run slower")  # torch says so on Python 3.13.0
def test_compiled_in_place_and_refused_when_exchanged() -> None:
    source = """
import torch
net = torch.nn.Linear(2, 2)
fast = torch.compile(net, backend="eager")
@torch.compile(backend="eager")
def double(x): return x * 2
"""
    script = Script(source)
    with torch.no_grad():
        script.module.net.weight.fill_(7)
    script.module.double.mark = 1
    captured = script.capture()
    assert captured.problems == []
    again = Script(source).restore(captured)
    assert again.module.fast._orig_mod is again.module.net
    assert again.module.fast(torch.ones(1, 2)).detach()[0, 0] > 13
    assert again.module.double(torch.ones(1)).item() == 2
    script.module.fast = torch.compile(torch.nn.Linear(2, 2), backend="eager")
    script.module.slow = script.module.fast
    late = Script(source.replace("fast =", "quick =")).restore(script.capture())
    with pytest.raises(graph.Poisoned, match=r"call torch\.compile before"):
        late.module.fast(torch.ones(1, 2))
