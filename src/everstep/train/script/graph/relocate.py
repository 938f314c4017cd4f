"""Paths in a saved graph: those below the run's folders get the names that the folders have where it goes on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from everstep.train.script.graph.records import Captured, Node

Move = Callable[[str], str]


def relocate(captured: Captured, move: Move) -> None:
    """Let texts and `pathlib` paths that are paths of the run be those of another place, in the save itself.

    Args:
        move: gives for an absolute path the one to write instead; the same for one that stays.
    """
    captured.nodes = [_node(node, move) for node in captured.nodes]
    captured.roots = [(key, names, moved(refs, move)) for key, names, refs in captured.roots]


def moved(value: Any, move: Move) -> Any:
    """A copy of plain containers with all texts in them moved; anything else is itself."""
    kind = type(value)
    if kind is str:
        return move(value) if value.startswith(os.sep) else value
    if kind in (list, tuple, set, frozenset):
        return kind(moved(item, move) for item in value)
    if kind is dict:
        return {moved(key, move): moved(item, move) for key, item in value.items()}
    return value


def _node(node: Node, move: Move) -> Node:
    kind, extra, refs = node
    if kind == "reduced" and extra[0] == "call":
        count = extra[1]
        parts = _parts(refs[1 : 1 + count], move)
        return kind, (extra[0], len(parts), *extra[2:]), [refs[0], *parts, *moved(refs[1 + count :], move)]
    return kind, moved(extra, move), moved(refs, move)


def _parts(parts: list[Any], move: Move) -> list[Any]:
    """Arguments of an object; a path of older Pythons is made from its parts."""
    if len(parts) > 1 and parts[0] == os.sep and all(type(part) is str for part in parts):
        return [os.sep, *move(os.path.join(*parts)).split(os.sep)[1:]]
    return list(moved(parts, move))
