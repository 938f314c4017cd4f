"""The local variables of a running function: read, and written so that the function goes on with them."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterable, Mapping
from types import CellType, CodeType, FrameType, GeneratorType
from typing import Any

CO_OPTIMIZED = 0x1
_SUSPENDABLE = 0x20 | 0x80 | 0x100 | 0x200  # generators, coroutines, and both


def local_values(frame: FrameType) -> dict[str, Any]:
    """The local variables that are bound now, closure cells included, by name."""
    return dict(frame.f_locals)


def set_locals(frame: FrameType, values: Mapping[str, Any], gone: Iterable[str], unbound: Any) -> None:
    """Bind local variables of a function that runs now, as if it had assigned them itself.

    Args:
        frame: of a function, not of a module or a class body.
        values: by name; closure cells are filled in place, so that inner functions see it.
        gone: names to unbind.
        unbound: what stands for an unbound name where Python has no way to unbind it (3.13 and newer).
    """
    if sys.version_info >= (3, 13):
        written = frame.f_locals
        for name in gone:
            if name in written:
                written[name] = unbound
        written.update(values)
        return
    written = frame.f_locals
    for name in gone:
        written.pop(name, None)
    written.update(values)
    # The dictionary is a copy; the interpreter copies it back, and unbinds what is missing in it.
    ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(1))


def cells(generator: GeneratorType[Any, Any, Any]) -> dict[str, CellType] | None:
    """The closure cells of a generator that does not run, by the names of its variables: its own, then free ones.

    None if they cannot be told apart.
    """
    code, frame = generator.gi_code, generator.gi_frame
    own = [name for name in code.co_varnames if name in code.co_cellvars and sys.version_info >= (3, 11)]
    names = [*own, *(name for name in code.co_cellvars if name not in own), *code.co_freevars]
    holder: object = generator if sys.version_info >= (3, 11) else frame
    found = [thing for thing in gc.get_referents(holder) if type(thing) is CellType] if names else []
    if len(found) != len(names) or frame is None:
        return None if names else {}
    result = dict(zip(names, found, strict=True))
    values = frame.f_locals
    return result if all(_content(cell) is values.get(name, _NONE) for name, cell in result.items()) else None


_NONE = object()


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        return _NONE


def suspendable(code: CodeType) -> bool:
    """True for the code of generators and coroutines, whose frames cannot be entered again."""
    return bool(code.co_flags & _SUSPENDABLE)


def position(frame: FrameType) -> tuple[int, int] | None:
    """Line (from 1) and column (from 0) of what the frame is executing; None where the interpreter does not tell."""
    code = frame.f_code
    if not hasattr(code, "co_positions"):
        return None
    for index, (line, _end, column, _end_column) in enumerate(code.co_positions()):
        if index == frame.f_lasti // 2:
            return (line, column) if line is not None and column is not None else None
    return None
