"""What the interpreter alone holds while a function of the script's waits for a call: nobody can save or set it.

These are the operands of an expression that were worked out before the call, and the managers of ``with`` statements.
A relaunch makes them anew on its way to the safe point. Where that may give something else than it gave at first, there
must be no save: the objects it is made from are those of the save by then, not those of when it was made.
"""

from __future__ import annotations

import builtins
import inspect
from collections import Counter
from collections.abc import Iterable
from types import BuiltinFunctionType, FrameType, MethodDescriptorType
from typing import Any

from everstep.train.script.operands import Pending

_ALWAYS_CHANGING = frozenset(["grad", "param_groups[]", "param_groups[][]"])
_CALL_ONCE = frozenset(["__import__", "eval", "exec", "getattr", "setattr", "super"])
_C_MODULES = frozenset(["_functools", "_operator", "builtins", "collections", "functools", "itertools"])
_MANAGERS = frozenset([
    "_io", "_thread", "accelerate", "bz2", "concurrent", "csv", "gzip", "h5py", "io", "lightning", "logging",
    "lzma", "mlflow", "multiprocessing", "numpy", "pytorch_lightning", "rich", "sqlite3", "tarfile", "tensorboard",
    "tensorboardX", "threading", "torch", "tqdm", "transformers", "wandb", "warnings", "zipfile",
])  # fmt: skip
"""Packages whose managers a relaunch may make anew: they note nothing that training changes, or it is put back."""
_OF_CONTEXTLIB = frozenset(["closing", "nullcontext", "redirect_stderr", "redirect_stdout", "suppress"])


def held_back(frame: FrameType, of: Pending, all_modules: Iterable[Pending], *, innermost: bool) -> str:
    """Why a frame cannot be entered again where it is, for people; "" if it can.

    Args:
        frame: it waits for a call, or is at the head of a loop (``innermost``).
        of: its module. all_modules: those of the user.
    """
    position = _position(frame)
    if position is None:
        return ""
    line, end = position
    for block in of.blocks:
        if block.around(frame.f_code, line) and not all(_is_held(frame, m) for m in block.managers):
            return "in a `with` whose manager no variable holds: bind it before (`m = ...`, `with m:`)"
    operands = None if innermost else of.calls.get(end)
    if operands is None:
        return ""
    if operands.in_c or _calls_often(_resolved(frame, operands.callee)):
        return f"called by {'.'.join(operands.callee) or 'a method of a constant'}, where a `for` could be continued"
    known = list(all_modules)
    attributes = sum((Counter(m.stored_attributes) for m in known), Counter(_ALWAYS_CHANGING))
    items = sum((Counter(m.stored_items) for m in known), Counter(_ALWAYS_CHANGING))
    stored = [name for name, own in operands.attributes.items() if attributes[name] > own]
    stored += [name for name, own in operands.items.items() if items[name] > own]
    changing = operands.changing or next(iter(stored), "")
    if changing:
        return f"behind `{changing}` in one expression, which may have changed: give the call a statement of its own"
    return ""


def _position(frame: FrameType) -> tuple[int, tuple[int, int]] | None:
    """First line, and end (line, column) of what the frame is executing."""
    code = frame.f_code
    if not hasattr(code, "co_positions"):
        return None
    for index, (line, end_line, _, end_column) in enumerate(code.co_positions()):
        if index == frame.f_lasti // 2:
            return None if line is None or end_line is None or end_column is None else (line, (end_line, end_column))
    return None


def _resolved(frame: FrameType, path: tuple[str, ...]) -> Any:
    """What a dotted name stands for in the frame; None if that cannot be told."""
    if not path:
        return None
    name, *attributes = path
    for space in (frame.f_locals, frame.f_globals, vars(builtins)):
        if name in space:
            found = space[name]
            break
    else:
        return None
    for attribute in attributes:
        found = inspect.getattr_static(found, attribute, None)  # no code of the user's is run for this
    return found


def _calls_often(called: Any) -> bool:
    """Whether it is written in C, and may call a function of the user's again and again."""
    if isinstance(called, BuiltinFunctionType | MethodDescriptorType):
        return called.__name__ not in _CALL_ONCE
    return isinstance(called, type) and called.__module__ in _C_MODULES and called.__name__ not in _CALL_ONCE


def _is_held(frame: FrameType, manager: tuple[str, tuple[tuple[str, ...] | None, ...]]) -> bool:
    variable, makers = manager
    value = frame.f_locals.get(variable) if variable else None
    if value is not None and hasattr(type(value), "__exit__"):
        return True  # what was entered is what the variable holds
    return all(maker is not None and (not maker or _makes_anew(_resolved(frame, maker))) for maker in makers)


def _makes_anew(maker: Any) -> bool:
    module = str(getattr(maker, "__module__", None) or "")
    if module == "contextlib":
        return getattr(maker, "__name__", "") in _OF_CONTEXTLIB
    return module.partition(".")[0] in _MANAGERS
