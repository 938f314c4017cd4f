"""Handlers that other modules register, and the comparison of graphs."""

from __future__ import annotations

from typing import Any

import pytest

from everstep.train.script import graph
from tests.train.script.graph.relaunch import Script


class Reader:
    """State that only its handler knows; it must be made of a source that is complete."""

    __slots__ = ("place", "source")

    def __init__(self, source: Any, place: int = 0) -> None:
        assert source is not None
        self.source, self.place = source, place


class ReaderHandler:
    def save(self, obj: Reader, context: Any) -> Any:
        return context.part(obj.source), obj.place

    def fill(self, obj: Reader | None, saved: Any, context: Any) -> Reader:
        source = context.part(saved[0])
        if obj is None:
            assert source.items[0] == 1  # whatever it is made of is restored before
            obj = Reader(source)
        assert obj.source is source
        obj.place = saved[1]
        return obj


graph.register(Reader, ReaderHandler())

SOURCE = """
from tests.train.script.graph.test_registered import Reader
class Source:
    def __init__(self): self.items, self.reader = [0], None
source = Source()
reader = Reader(source)
pair = (reader, [reader])
extra = bound = None
"""


def test_registered_objects_are_filled_in_place() -> None:
    script = Script(SOURCE)
    script.module.reader.place = 7
    fresh = Script(SOURCE)
    before = fresh.module.reader
    again = fresh.restore(script.capture())
    assert again.module.reader is before
    assert again.module.reader.place == 7


def test_registered_objects_are_made_after_their_parts_and_may_be_known_to_them() -> None:
    script = Script(SOURCE)
    module = script.module
    module.source.items[0] = 1
    module.extra = module.source.reader = Reader(module.source, 5)
    module.bound = (module.extra, {module.extra: [module.extra]})
    again = Script(SOURCE).restore(script.capture()).module
    assert again.extra.place == 5
    assert again.source.reader is again.extra
    assert again.bound[0] is again.extra
    assert next(iter(again.bound[1])) is again.extra
    assert again.bound[1][again.extra][0] is again.extra
    assert again.extra.source is again.source


DIFFERENT = {
    "a number": ("x = {'a': [1, 2]}", "x = {'a': [1, 3]}", "module user_script: x['a'][1]: 2 and 3"),
    "a type": ("x = [1]", "x = [True]", "x[0]: 1 and True"),
    "a float's sign": ("x = 0.0", "x = -0.0", "x: 0.0 and -0.0"),
    "aliasing": ("x = [[], []]", "x = [[]] * 2", "the same object as another one in only one of the two"),
    "aliasing the other way": ("x = [[]] * 2", "x = [[], []]", "the same object as another one in only one of the two"),
    "a tensor's value": (
        "import torch\nx = [torch.ones(2)]",
        "import torch\nx = [torch.zeros(2)]",
        "x[0]: other values",
    ),
    "a tensor's dtype": ("import torch\nx = torch.ones(2)", "import torch\nx = torch.ones(2).half()", "float16"),
    "shared memory": (
        "import torch\na = torch.ones(4)\nx = a[:2]",
        "import torch\na = torch.ones(4)\nx = torch.ones(2)",
        "memory shared",
    ),
    "a name": ("x = 1", "y = 1", "x: only in the first"),
    "a key": ("x = {'a': 1}", "x = {'b': 1}", "x.keys()[0]: 'a' and 'b'"),
    "a length": ("x = [1]", "x = [1, 2]", "1 and 2 parts"),
    "an attribute": (
        "import types\nx = types.SimpleNamespace(lr=1)",
        "import types\nx = types.SimpleNamespace(lr=2)",
        "1 and 2",
    ),
    "an element of a set": ("x = {1, 2}", "x = {1, 3}", "2 and 3"),
    "a random state": (
        "import random\nx = random.Random(1)",
        "import random\nx = random.Random(2)",
        "module user_script: x",
    ),
    "a lambda": ("x = lambda: 1", "x = lambda: 2", "module user_script: x"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_difference_names_the_object(name: str) -> None:
    first, second, text = DIFFERENT[name]
    a, b = Script(first).capture(), Script(second).capture()
    found = graph.difference(a, b)
    assert found is not None
    assert text in found
    assert graph.digest(a) != graph.digest(b)
    assert graph.difference(a, Script(first).capture()) is None
    assert graph.digest(a) == graph.digest(Script(first).capture())
