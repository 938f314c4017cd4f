"""A script as text, run plainly and with a relaunch in the middle.

The text defines ``step(i)``, which changes what it wants, and ``show()``, which gives what must be the same at the end.
"""

from __future__ import annotations

import pickle
import random
import sys
import types
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from everstep.train.script import graph

NAME = "user_script"


class Script:
    """A fresh start of the script, as a new process would make it."""

    def __init__(self, source: str) -> None:
        RemovableHandle.next_id = 0
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        self.module = types.ModuleType(NAME)
        self.module.__file__ = f"/somewhere/{NAME}.py"
        sys.modules[NAME] = self.module
        exec(compile(source, self.module.__file__, "exec"), vars(self.module))

    def run(self, first: int, last: int) -> Script:
        sys.modules[NAME] = self.module
        for number in range(first, last):
            self.module.step(number)
        return self

    def show(self) -> str:
        with np.printoptions(threshold=100_000):
            torch.set_printoptions(threshold=100_000, precision=10)
            return repr(self.module.show())

    def space(self) -> graph.Space:
        return graph.Space(f"module {NAME}", dict(vars(self.module)))

    def capture(self, **settings: Any) -> graph.Captured:
        sys.modules[NAME] = self.module
        captured = graph.capture([self.space()], graph.Settings(**settings))
        return pickle.loads(pickle.dumps(captured))  # type: ignore[no-any-return]

    def restore(self, captured: graph.Captured) -> Script:
        sys.modules[NAME] = self.module
        [restored] = graph.restore(captured, [self.space()])
        for name in restored.gone:
            delattr(self.module, name)
        vars(self.module).update(restored.values)
        return self


def _without_restore(source: str) -> str:
    try:
        return Script(source).run(3, 6).show()
    except Exception as error:
        return f"it fails: {error}"


def relaunched(source: str, *, before: int = 3, after: int = 3) -> Script:
    """The script after a relaunch at step ``before``; random states are carried over as the session does it."""
    script = Script(source).run(0, before)
    captured = script.capture()
    assert captured.problems == []
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    script.run(before, before + 1)  # what was captured is a copy
    again = Script(source).restore(captured)
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return again.run(before, before + after)


def assert_exact(source: str, *, same_graph: bool = True) -> None:
    """A relaunch changes nothing, and the case can tell: without the restore the end is another one."""
    plain = Script(source).run(0, 6)
    shown, end = plain.show(), plain.capture()
    assert _without_restore(source) != shown, "this case would pass without any restore"
    again = relaunched(source)
    assert (now := again.show()) == shown, f"{now}\n{shown}"
    if not same_graph:
        return
    difference = graph.difference(end, again.capture())
    assert difference is None, difference
    assert graph.digest(end) == graph.digest(again.capture())
