"""Access paths: how a human would reach an object of a saved graph."""

from __future__ import annotations

from collections import deque

from everstep.train.script.graph.kinds import by_name
from everstep.train.script.graph.records import Captured


def path_of(captured: Captured, wanted: int) -> str:
    """The shortest access path to a node, such as ``module train: model.layers[0]``."""
    came: dict[int, tuple[int, int] | str] = {}
    queue: deque[int] = deque()
    for key, names, references in captured.roots:
        for name, code in zip(names, references, strict=True):
            if type(code) is int and code not in came:
                came[code] = f"{key}: {name}"
                queue.append(code)
    while queue and wanted not in came:
        number = queue.popleft()
        for position, code in enumerate(captured.nodes[number][2]):
            if type(code) is int and code not in came:
                came[code] = (number, position)
                queue.append(code)
    return _text(captured, came, wanted)


def _text(captured: Captured, came: dict[int, tuple[int, int] | str], number: int) -> str:
    steps: list[str] = []
    while not isinstance(origin := came.get(number, "(unreachable)"), str):
        number, position = origin
        kind, extra, references = captured.nodes[number]
        steps.append(by_name(kind).step(extra, references, position))
    return origin + "".join(reversed(steps))
