"""The ``__dict__`` of an object that is reached by itself, as in ``config = vars(args)``."""

from __future__ import annotations

from typing import Any

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Kind


class _AttributesKind(Kind):
    """Made by its owner, whose only part it is; written with it."""

    name = "attributes"

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return " of "


def install() -> None:
    """Make this kind known."""
    kinds.add(_AttributesKind())
