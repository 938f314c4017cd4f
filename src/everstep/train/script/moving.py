"""A save that goes on in other folders than it was made in: its paths become those of this launch."""

from __future__ import annotations

import dataclasses
from typing import Any

from everstep.train.script.graph.relocate import Move, moved, relocate
from everstep.train.script.output import Place
from everstep.train.script.path import Ended, Path


def move_here(saved: dict[str, Any], place: Place) -> None:
    """Change a save in place, but for what its files are. What lies outside of the run's folders stays there."""
    move = place.mover(saved["output"]["files"].get("place"))
    if move is None:
        return
    saved["modes"] = {**saved["modes"], "folder": move(saved["modes"]["folder"])}
    saved["arguments"] = moved(saved["arguments"], move)
    saved["sources"] = {
        name: dataclasses.replace(source, path=move(source.path)) for name, source in saved["sources"].items()
    }
    saved["path"] = _path(saved["path"], move)
    relocate(saved["graph"], move)


def _path(path: Path, move: Move) -> Path:
    turns = tuple(dataclasses.replace(turn, ended=_ended(turn.ended, move)) for turn in path.turns)
    return dataclasses.replace(path, turns=turns, ended=_ended(path.ended, move))


def _ended(loops: tuple[Ended, ...], move: Move) -> tuple[Ended, ...]:
    return tuple(
        dataclasses.replace(loop, value=moved(loop.value, move), values=moved(loop.values, move)) for loop in loops
    )
