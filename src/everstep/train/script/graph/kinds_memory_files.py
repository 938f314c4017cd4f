"""Files in memory (``io.StringIO``, ``io.BytesIO``), in place: something may write to them, such as ``sys.stdout``."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Kind, Saving, Taken


class _MemoryFileKind(Kind):
    """Their contents, and where they are read or written. Plain data: the class, and None for a closed one."""

    name = "memory file"

    def take(self, thing: Any, saving: Saving) -> Taken:
        if thing.closed:
            return (type(thing).__name__, None), ()
        *state, attributes = thing.__getstate__()
        return (type(thing).__name__, tuple(state)), (attributes,)

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        if type(fresh).__name__ != extra[0] or fresh.closed:
            return None
        return () if extra[1] is None else fresh.__getstate__()[-1:]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return io.StringIO() if extra[0] == "StringIO" else io.BytesIO()

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        if extra[1] is None:
            thing.close()
        else:
            thing.__setstate__((*extra[1], filling.value(refs[0])))

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return ".__dict__"


def install() -> None:
    """Make this kind known."""
    kinds.add(_MemoryFileKind(), kinds.exactly(io.StringIO, io.BytesIO))
