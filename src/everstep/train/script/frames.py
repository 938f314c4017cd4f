"""The local variables of a running function: read, and written so that the function goes on with them."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable, Mapping
from types import CodeType, FrameType
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
