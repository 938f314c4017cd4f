"""Managers that the script has entered: what a save keeps of them, and whether a relaunch has entered the same.

The interpreter leaves the manager that was entered. If the save knows another object in its place, that is lost: it
would be left, and not what the save holds.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from everstep.train.script import frames, graph
from everstep.train.script.graph.poison import text_of
from everstep.train.script.holders import ENTERED, Entered

_PATH = re.compile(rf"{ENTERED}\d+(<part 0>)?")


class _Handler:
    """See `graph.register`."""

    def save(self, obj: Entered, context: Any) -> Any:
        return context.part(obj.manager) if obj.is_own else None

    def fill(self, obj: Entered | None, saved: Any, context: Any) -> Any:
        restored = None if saved is None else context.part(saved)
        if obj is None:
            return Entered(restored, is_own=saved is not None)
        obj.restored = restored
        return obj


class Watch:
    """Whether what the functions of a stack have entered is what a relaunch writes; to be made before it does."""

    def __init__(self, stack: Sequence[FrameType]) -> None:
        self._entered = [(frame, name, held) for frame in stack for name, held in _hidden(frame)]

    def lost(self) -> str:
        """Where the interpreter holds another manager than the saved one, with the reason; "" if nowhere."""
        for frame, name, held in self._entered:
            now = dict(_hidden(frame)).get(name)
            if now is not held or (held.is_own and held.restored is not held.manager):
                why = "is another object than before the save"
                if type(held.restored) is graph.Poison:
                    why = f"could not be restored ({text_of(held.restored)})"
                code, kind = frame.f_code, type(held.manager).__qualname__
                where = f"{code.co_name} ({os.path.basename(code.co_filename)})"
                return f"the manager ({kind}) of a `with` in {where} {why}"
        return ""


def holds(where: str) -> bool:
    """Whether an access path leads through what a ``with`` has entered."""
    return ENTERED in where


def readable(where: str) -> str:
    """An access path, for people."""
    return _PATH.sub("the manager of a `with`", where)


def install() -> None:
    """Make them part of the graph."""
    graph.register(Entered, _Handler())


def _hidden(frame: FrameType) -> Iterator[tuple[str, Entered]]:
    for name, value in frames.local_values(frame).items():
        if name.startswith(ENTERED) and type(value) is Entered:
            yield name, value
