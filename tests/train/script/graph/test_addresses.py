"""Numbers and texts that are addresses: translated where they can be, else they refuse when they are used."""

from __future__ import annotations

import pytest

from everstep.train.script import graph
from tests.train.script.graph.relaunch import Script, assert_exact

START = """
import torch
class Box: n = 0
a, b = Box(), torch.ones(3)
extra = []
"""

TRANSLATED = {
    "in a key": "keyed = {(id(a), 'n'): 0}\nkey = lambda: (id(a), 'n')",
    "in a key within a key": "keyed = {((1, (id(b),)), 'n'): 0}\nkey = lambda: ((1, (id(b),)), 'n')",
    "as a key": "keyed = {id(b): 0}\nkey = lambda: id(b)",
    "as a value": "keyed, owner = {id(a): 0}, id(a)\nkey = lambda: owner",
    "as an attribute": "keyed = {id(b): 0}\nb.own = id(b)\nkey = lambda: b.own",
    "the hash of a tensor": "keyed = {hash(b): 0}\nkey = lambda: hash(b)",
}


@pytest.mark.parametrize("name", TRANSLATED)
def test_an_id_is_that_of_the_object_in_its_place(name: str) -> None:
    body = """
def step(i):
    a.n += i
    keyed[key()] = keyed.get(key(), 0) + i
def show(): return a.n, list(keyed.values())
"""
    assert_exact(START + TRANSLATED[name] + body)


def test_of_an_object_that_is_made_anew() -> None:
    body = """
keyed, made = {}, []
def step(i):
    if i == 1: made.append(Box()); keyed[id(made[0]), 1] = 0; keyed[2] = id(made[0])
    if i > 1: keyed[id(made[0]), 1] += i
def show(): return len(keyed), keyed[id(made[0]), 1], keyed[2] == id(made[0])
"""
    assert_exact(START + body)


PROBLEMS = {
    "the memory of a tensor as a key": ("thing = {b.data_ptr(): 1}", "data_ptr"),
    "the memory of a tensor as a value": ("thing = b.data_ptr()", "data_ptr"),
    "and in a tuple": ("thing = {(b.data_ptr(), 1): 1}", "data_ptr"),
    "the hash of an object as a key": ("thing = {hash(a): 1}", "hash"),
    "an id in a text": ("thing = {f'p{id(b)}': 1}", "in a text"),
    "a set of tuples": ("thing = {(id(a), 1)}", "addresses of objects"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_only_follows_from_an_address_refuses(name: str) -> None:
    source, why = PROBLEMS[name]
    source = START + source + "\nkept = {'thing': thing}\ndef show(): return str(kept['thing'])\n"
    captured = Script(source).capture()
    assert captured.problems
    assert all(why in problem.why and problem.where for problem in captured.problems)
    again = Script(source).restore(captured)
    with pytest.raises(graph.Poisoned, match="could not be restored"):
        again.show()


def test_other_large_numbers_stay_what_they_are() -> None:
    body = """
import random
numbers = {random.getrandbits(46): n for n in range(99)}
at = [1 << 40, 140234567890123, -(1 << 45)]
texts = {"12345678901234": 1, "run 202401011200": 2}
def step(i):
    numbers[1 << (33 + i)] = i
    at.append(random.getrandbits(47))
def show(): return sorted(numbers.items()), at, texts
"""
    assert_exact(START + body)
