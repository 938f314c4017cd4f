"""What the interpreter alone holds while a function of the script's waits for a call: nobody can save or set it.

These are the operands of an expression that were worked out before the call, the managers of ``with`` statements, and
exceptions that are being handled. A relaunch makes them anew on its way to the safe point. Where that may give
something else than it gave at first, there must be no save: the objects it is made from are those of the save by then,
not those of when it was made.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType, TracebackType
from typing import Any

from everstep.train.script.holders import Entered
from everstep.train.script.stores import ANYTHING
from everstep.train.script.unchanging import MISSING, looked_into, never_changes, passed_on, root
from everstep.train.script.waiting import Given, Manager, Needs, Pending

_ALWAYS_CHANGING = frozenset(["grad", "param_groups[]", "param_groups[][]"])
_CALL_ONCE = frozenset(["__import__", "eval", "exec", "getattr", "setattr", "super"])
_C_MODULES = frozenset(["_functools", "_operator", "builtins", "collections", "functools", "itertools"])
_MANAGERS = frozenset([
    "_io", "_thread", "accelerate", "bz2", "concurrent", "csv", "gzip", "h5py", "io", "lightning", "logging",
    "lzma", "mlflow", "multiprocessing", "numpy", "pytorch_lightning", "rich", "sqlite3", "tarfile", "tensorboard",
    "tensorboardX", "threading", "torch", "tqdm", "transformers", "wandb", "warnings", "zipfile",
])  # fmt: skip
"""Packages whose managers a relaunch may make anew: they note nothing that training changes, or it is put back."""
_OF_CONTEXTLIB = frozenset(["chdir", "closing", "nullcontext", "redirect_stderr", "redirect_stdout", "suppress"])
_FROM_EXPRESSION = "give the call a statement of its own"


@dataclass(frozen=True)
class Asked:
    """What a function that is entered again needs of its arguments, for what it holds to be what it was.

    Attributes:
        frame: the function.
        params: its parameters that matter.
    """

    frame: FrameType
    params: frozenset[str]


@dataclass(frozen=True)
class Answer:
    """Whether a frame can be entered again.

    Attributes:
        why: not, for people; "" if it can.
        asks: what that needs of the caller; None for nothing.
    """

    why: str
    asks: Asked | None = None


_FINE = Answer("")


def held_back(
    frame: FrameType,
    of: Pending,
    all_modules: Iterable[Pending],
    *,
    innermost: bool,
    asked: Asked | None = None,
    unwritten: bool = False,
) -> Answer:
    """Whether a frame can be entered again where it is.

    Args:
        frame: it waits for a call, or is at the head of a loop (``innermost``).
        of: its module. all_modules: those of the user.
        asked: by the function that it calls.
        unwritten: the frame was entered before the saved values were written: what is held is not made of them.
    """
    position = _position(frame)
    if position is None:
        return _FINE if innermost else Answer("where the interpreter does not tell what is going on")
    line, end = position
    if any(handler.around(frame.f_code, line) for handler in of.handlers):
        return Answer("in an `except`, which holds an exception: do it behind the `try`")
    for block in of.blocks:
        if block.around(frame.f_code, line) and not all(_is_held(frame, m) for m in block.managers):
            return Answer("in a `with` whose manager no variable holds: bind it before (`m = ...`, `with m:`)")
    if innermost:
        return _FINE
    doing = _doing(frame)
    if doing == "IMPORT_NAME":
        return _FINE
    if not doing.startswith(("CALL", "PRECALL", "INSTRUMENTED_CALL")) or end not in of.calls:
        return Answer(f"where it is called by no call (a property, an operator, a decorator): {_FROM_EXPRESSION}")
    known = _Known(frame, list(all_modules))
    params: set[str] = set()
    for operands in of.calls[end]:
        if operands.in_c or _calls_often(_resolved(frame, operands.callee)):
            callee = ".".join(operands.callee) or "a method of a constant"
            return Answer(f"called by {callee}, where a `for` could be continued")
        changing = operands.changing or known.refused(operands.needs)
        if unwritten and not changing:
            changing = known.written([operands.needs, *(given.needs for given in operands.given)])
        if changing:
            return Answer(f"behind `{changing}` in one expression, which may have changed: {_FROM_EXPRESSION}")
        params |= operands.needs.params
        for given in _wanted(operands.given, asked):
            changing = given.changing or known.refused(given.needs) or _made(given, asked)
            if changing:
                return Answer(f"with the argument `{changing}`, of which something is held while it may change")
            params |= given.needs.params
    return Answer("", Asked(frame, frozenset(params)) if params else None)


def handled(stack: Sequence[FrameType]) -> FrameType | None:
    """The function of ``stack`` in which an exception is being handled (``except``, ``finally``); None if in none."""
    error = sys.exc_info()[1]
    trace: TracebackType | None = None if error is None else error.__traceback__
    while trace is not None:
        if any(trace.tb_frame is frame for frame in stack):
            return trace.tb_frame
        trace = trace.tb_next
    return None


class _Known:
    """What all modules of the user assign to, and one frame."""

    def __init__(self, frame: FrameType, modules: Sequence[Pending]) -> None:
        self._frame = frame
        self._attributes = sum((Counter(m.stored_attributes) for m in modules), Counter(_ALWAYS_CHANGING))
        self._items = sum((Counter(m.stored_items) for m in modules), Counter(_ALWAYS_CHANGING))
        self._rebound = frozenset().union(*(m.stored_globals for m in modules))

    def refused(self, needs: Needs) -> str:
        """An operand that may not be what it was; "" if all are."""
        for name, own in needs.attributes.items():
            if self._attributes[name] > own:
                return name
        for name, own in needs.items.items():
            if self._items[name] > own:
                return name
        unsure = self._attributes[ANYTHING] > 0
        for path in needs.values:
            if (unsure and len(path) > 1) or not looked_into(self._frame, path, self._rebound):
                return ".".join(path)
        for path in needs.parts:
            if (unsure and len(path) > 1) or not passed_on(self._frame, path, self._rebound):
                return ".".join(path)
        for name in needs.objects:
            if never_changes(root(self._frame, name)):
                return name
        for name in needs.builtins:
            if root(self._frame, name) is not getattr(builtins, name):
                return name
        return ""

    def written(self, needs: Iterable[Needs]) -> str:
        """An operand that is what it was only since a relaunch writes values on its way; "" if there is none."""
        for each in needs:
            for name in sorted(each.written):
                if never_changes(root(self._frame, name)):
                    return name
            own = {**each.attributes, **each.items}
            for name, count in own.items():
                if count:
                    return name
        return ""


def _wanted(given: Sequence[Given], asked: Asked | None) -> Sequence[Given]:
    """The arguments for the parameters that matter; all where that cannot be told."""
    if asked is None:
        return ()
    code = asked.frame.f_code
    positional = code.co_varnames[: code.co_argcount]
    bound = positional[:1] in (("self",), ("cls",))
    places = {name: index - bound for index, name in enumerate(positional)}
    keyword = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    by_key = {one.key: one for one in given}
    if None in by_key or not asked.params <= {*positional, *keyword}:
        return given
    found = [by_key.get(name, by_key.get(places.get(name))) for name in asked.params]
    return [one for one in found if one is not None]


def _made(given: Given, asked: Asked | None) -> str:
    """An argument that is made for the call does for an object, which is filled as it was, but not for a number."""
    if not given.made or asked is None:
        return ""
    local = asked.frame.f_locals
    return next((name for name in sorted(asked.params) if never_changes(local.get(name))), "")


def _position(frame: FrameType) -> tuple[int, tuple[int, int]] | None:
    """First line, and end (line, column) of what the frame is executing."""
    for index, (line, end_line, _, end_column) in enumerate(frame.f_code.co_positions()):
        if index == frame.f_lasti // 2:
            return None if line is None or end_line is None or end_column is None else (line, (end_line, end_column))
    return None


def _doing(frame: FrameType) -> str:
    """The name of the instruction."""
    code, at = frame.f_code.co_code, frame.f_lasti
    while at > 0 and dis.opname[code[at]] == "CACHE":
        at -= 2
    return dis.opname[code[at]]


def _resolved(frame: FrameType, path: tuple[str, ...]) -> Any:
    """What a dotted name stands for in the frame; None if that cannot be told."""
    found = root(frame, path[0]) if path else MISSING
    for attribute in path[1:]:
        found = inspect.getattr_static(found, attribute, None)  # no code of the user's is run for this
    return None if found is MISSING else found


def _calls_often(called: Any) -> bool:
    """Whether it is written in C, and may call a function of the user's again and again."""
    if isinstance(called, BuiltinFunctionType | MethodDescriptorType):
        return called.__name__ not in _CALL_ONCE
    return isinstance(called, type) and called.__module__ in _C_MODULES and called.__name__ not in _CALL_ONCE


def _is_held(frame: FrameType, manager: Manager) -> bool:
    local = frame.f_locals
    entered = local.get(manager.hidden)
    if type(entered) is Entered and entered.is_own:
        return True
    value = local.get(manager.variable)
    makers = manager.makers
    return all(maker is not None and (not maker or _gives(_resolved(frame, maker), value)) for maker in makers)


def _gives(maker: Any, value: Any) -> bool:
    """Whether it matters not that a manager is made anew, or ``value`` is the manager."""
    if _makes_anew(maker):
        return True
    if isinstance(maker, type):
        return isinstance(value, maker) and hasattr(maker, "__exit__")
    # What a function of the script's enters may be something else than what it hands out; a library's open files.
    module = str(getattr(maker, "__module__", None) or "")
    return module.partition(".")[0] == "pathlib" and hasattr(type(value), "__exit__")


def _makes_anew(maker: Any) -> bool:
    module = str(getattr(maker, "__module__", None) or "")
    if module == "contextlib":
        return getattr(maker, "__name__", "") in _OF_CONTEXTLIB
    return module.partition(".")[0] in _MANAGERS


def is_wrapper_of_a_manager(frame: FrameType) -> bool | None:
    """Of a function of `contextlib`: whether it is a decorated function around which a manager is entered that may be
    made anew; None for anything else that `contextlib` does."""
    code: CodeType = frame.f_code
    if code.co_name != "inner":
        return None
    manager = frame.f_locals.get("self")
    return _makes_anew(getattr(manager, "func", None) or type(manager))
