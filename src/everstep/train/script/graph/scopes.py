"""Variables that functions share with the function around them, where one of both is made anew.

A function that was made in a pass of a loop which is not done again is built with closure cells of its own. That is
right if the function around it is over, or never assigns the variable again. Otherwise each would see a variable of
its own from then on, without a word.
"""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.train.script.graph.kinds import Filling, Hopeless
from everstep.train.script.rewrite import MARKER


def check_shared(module: str, name: str, free: Sequence[str], refs: Sequence[Any], filling: Filling) -> None:
    """Raises `Hopeless` if a function shares a variable that may be assigned again with one that is running.

    Args:
        module: whose globals it sees.
        name: its qualified name.
        free: names of its free variables.
        refs: of their cells.
        filling: of this restore.
    """
    apart = [variable for variable, ref in zip(free, refs, strict=False) if not filling.paired(ref)]
    if not apart:
        return
    around = name.split(".<locals>.")[:-1]
    scopes = [".<locals>.".join(around[:end]) for end in range(1, len(around) + 1)]
    running = [scope for scope in scopes if filling.running(module, scope)]
    for variable in apart:
        for scope in running:
            if _may_be_assigned(module, scope, variable):
                raise Hopeless(
                    f"it sees the variable {variable} of {scope}, which is running, and was made in a pass of a loop "
                    "that is not done again; make it before the loop, or give it the value as an argument"
                )


def _may_be_assigned(module: str, scope: str, variable: str) -> bool:
    """False if the variable of this function has its one value when functions within it are made."""
    rewritten = getattr(getattr(sys.modules.get(module), MARKER, None), "rewritten", None)
    if rewritten is None:
        return True
    last = scope.rpartition(".")[2]
    for code in _below(rewritten.code):
        if code.co_name == last and getattr(code, "co_qualname", scope) == scope and variable in code.co_cellvars:
            stores = [one for inner in (code, *_below(code)) for one in _stores(inner, variable)]
            is_argument = variable in code.co_varnames[: _arguments(code)]
            if any(stores) or len(stores) + is_argument != 1:
                return True
    return False


def _arguments(code: types.CodeType) -> int:
    stars = bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return code.co_argcount + code.co_kwonlyargcount + stars


def _stores(code: types.CodeType, variable: str) -> Iterator[bool]:
    """Per place that assigns or deletes the variable, whether it is in a loop or in a function within."""
    if variable not in (*code.co_cellvars, *code.co_freevars):
        return
    steps = list(dis.get_instructions(code))
    back = [
        (one.argval, one.offset)
        for one in steps
        if (one.opcode in dis.hasjrel or one.opcode in dis.hasjabs) and one.argval <= one.offset
    ]
    for one in steps:
        if one.opname in ("STORE_DEREF", "DELETE_DEREF") and one.argval == variable:
            looped = any(first <= one.offset <= last for first, last in back)
            yield looped or one.opname == "DELETE_DEREF" or variable in code.co_freevars


def _below(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _below(constant)
