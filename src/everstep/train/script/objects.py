"""The script's objects: the spaces they are reached from, captured at a save and written back in a relaunch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import FrameType, ModuleType
from typing import Any

from everstep.train.script import frames, graph
from everstep.train.script.comprehensions import HIDDEN
from everstep.train.script.path import Place
from everstep.train.script.rewrite import MARKER

_OF_COMPILED_CODE = re.compile(
    r"__(compiled_fn|resume_at|import|builtins_dict_|gen_rand_values|warnings_warn_wrapper|comprehension)_\w"
    r"|___(context_manager|unnamed_scope)_\w"
    r"|\w*_\d{9,}_c\d+$"
)
"""Names that `torch.compile` puts into the globals of what it compiled; a relaunch compiles afresh."""


def spaces(modules: dict[str, ModuleType], stack: Sequence[FrameType], places: Sequence[Place]) -> list[graph.Space]:
    """The globals of the user modules, and the locals of the functions that are running, outermost first."""
    found = [graph.Space(f"module {name}", _globals(module)) for name, module in modules.items()]
    for depth, (frame, place) in enumerate(zip(stack, places, strict=True)):
        if not _is_module(frame):
            key = f"frame {depth} {place.module}.{place.function}"
            values = frames.local_values(frame)
            own = {name: value for name, value in values.items() if not name.startswith(HIDDEN)}
            found.append(graph.Space(key, own))
    return found


def write(
    restored: Sequence[graph.Restored],
    modules: dict[str, ModuleType],
    stack: Sequence[FrameType],
    places: Sequence[Place],
) -> None:
    """Bind the restored values to their names, and unbind the names that had gone."""
    by_key = {one.key: one for one in restored}
    for name, module in modules.items():
        one = by_key.get(f"module {name}")
        if one is not None:
            _write_globals(vars(module), one)
    for depth, (frame, place) in enumerate(zip(stack, places, strict=True)):
        one = by_key.get(f"frame {depth} {place.module}.{place.function}")
        if one is not None and not _is_module(frame):
            unbound = graph.Poison(f"{place.module}.{place.function}", "local variable", "it had been deleted")
            frames.set_locals(frame, one.values, one.gone, unbound)


def _is_module(frame: FrameType) -> bool:
    return frame.f_locals is frame.f_globals


def _globals(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if not _is_foreign(name)}


def _is_foreign(name: str) -> bool:
    return name == MARKER or _is_dunder(name) or _OF_COMPILED_CODE.match(name) is not None


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _write_globals(names: dict[str, Any], one: graph.Restored) -> None:
    for name in one.gone:
        names.pop(name, None)
    names.update(one.values)
