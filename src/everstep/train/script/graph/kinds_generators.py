"""Suspended generators of the user's own functions, and generator expressions: made anew where they were.

See `everstep.train.script.reentrant` for how a generator is led to the ``yield`` where it was suspended. A generator
expression with one ``for`` has no state but the iterator that it goes over: between two items it is as it was at first.
"""

from __future__ import annotations

import contextlib
import ctypes
import dis
import inspect
import io
import os
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from everstep.train.script import frames
from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.kinds_code import fingerprint
from everstep.train.script.graph.poison import Poison, use
from everstep.train.script.graph.records import MISSING, Captured
from everstep.train.script.graph.scopes import check_shared
from everstep.train.script.holders import Held, Manager
from everstep.train.script.reentrant import AT, PREFIX, TO
from everstep.train.script.rewrite import MARKER, Rewritten

_Generator = types.GeneratorType
_OVER = ".0"
"""The variable of a generator expression that holds what it goes over."""

_HARMLESS = (
    io.IOBase,
    contextlib.nullcontext,
    contextlib.closing,
    torch.no_grad,
    torch.enable_grad,
)
"""Managers that are nothing but an object: entering them has no effect that a relaunch would have to repeat."""


@dataclass(frozen=True)
class Suspended:
    """A suspended generator, without the objects that it holds.

    Attributes:
        module: of its function.
        code: fingerprint of its code.
        name: qualified name.
        at: number of the ``yield``; 0 if it has not begun, or is an expression.
        instruction: where it is; -1 if it has not begun, or is an expression.
        free: variables of functions around it.
        own: its variables that functions within it see.
        names: its other variables that are bound.
        holders: hidden variables, see `everstep.train.script.holders`.
    """

    module: str
    code: str
    name: str
    at: int
    instruction: int
    free: tuple[str, ...]
    own: tuple[str, ...]
    names: tuple[str, ...]
    holders: tuple[str, ...]

    def cells(self) -> int:
        """How many of the parts are cells: they come first."""
        return len(self.free) + len(self.own)


class _SuspendedKind(Kind):
    """Parts: free cells, own cells, values of the variables, per holder what it holds and where that came from."""

    name = "suspended generator"

    def take(self, thing: Any, saving: Saving) -> Taken:
        place = f"{thing.__name__} at {os.path.basename(thing.gi_code.co_filename)}:{thing.gi_code.co_firstlineno}"
        if thing.gi_running:
            raise Hopeless(f"the generator {place} is running; save between its items")
        if saving.settings.in_loop(thing):
            raise Hopeless(f"a loop goes over the generator {place}, and advances it by itself")
        return _apart(thing, place)

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        saved: Suspended = extra
        if fresh.gi_running or fingerprint(fresh.gi_code) != saved.code:
            return None
        cells, values = frames.cells(fresh), dict(fresh.gi_frame.f_locals)
        if cells is None:
            return None
        _replaced[id(fresh)] = fresh
        parts: list[object] = [cells.get(name, MISSING) for name in (*saved.free, *saved.own)]
        parts += [values.get(name, MISSING) for name in saved.names]
        for name in saved.holders:
            holder = values.get(name)
            parts += [holder.inner, holder.source] if isinstance(holder, Held) else [MISSING, MISSING]
        return parts

    def anew(self, extra: Any) -> bool:
        return True

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs[: len(extra.free)]

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        saved: Suspended = extra
        code, names = _code(saved)
        check_shared(saved.module, saved.name, saved.free, refs, filling)
        cells = tuple(filling.value(ref) for ref in refs[: len(saved.free)])
        made = _begun(code, names, cells, saved)
        made.__name__, made.__qualname__ = saved.name.rpartition(".")[2], saved.name
        if saved.instruction >= 0:
            _enter(made, names[MARKER], saved)
        _made.append(made)
        return made

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        saved: Suspended = extra
        values = [filling.value(ref) for ref in refs[saved.cells() :]]
        bound = thing.gi_frame.f_locals
        wanted: dict[str, Any] = dict(zip(saved.names, values, strict=False))
        held = iter(values[len(saved.names) :])
        for name in saved.holders:
            holder: Held = bound[name]
            holder.inner, holder.source = next(held), next(held)
        if saved.at:
            wanted |= {TO: 0, AT: saved.at}
        known = {*wanted, *saved.holders, *saved.free, *saved.own}
        gone = [name for name in bound if name not in known]
        frames.set_locals(thing.gi_frame, wanted, gone, None)

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        saved: Suspended = extra
        names = [*saved.free, *saved.own, *saved.names]
        if position < len(names):
            return f".gi_frame.f_locals[{names[position]!r}]"
        number, source = divmod(position - len(names), 2)
        return f".<what its loop {number} goes over>" if not source else f".<the loader of its loop {number}>"


def _apart(generator: Any, place: str) -> Taken:
    frame, code = generator.gi_frame, generator.gi_code
    marker = frame.f_globals.get(MARKER)
    module = frame.f_globals.get("__name__", "")
    if not isinstance(getattr(marker, "rewritten", None), Rewritten) or _find(marker, fingerprint(code)) is None:
        raise Hopeless(
            f"a generator ({place}) that is not over cannot be saved unless its function is one of the script's; "
            "iterate over it with `for`, or use a class with __iter__ and __next__"
        )
    cells, values = frames.cells(generator), dict(frame.f_locals)
    if cells is None:
        raise Hopeless(f"the variables of the generator {place} cannot be told apart")
    at, instruction = 0, -1
    holders: tuple[str, ...] = ()
    if inspect.getgeneratorstate(generator) == inspect.GEN_SUSPENDED:
        if _OVER in code.co_varnames:
            values = _of_expression(generator, values, place)
        else:
            at, instruction, holders = _where(generator, values, marker, place)
    free = code.co_freevars
    own = tuple(name for name in cells if name not in free)
    ours = (name for name in code.co_varnames if name in values and name not in cells)
    names = tuple(name for name in ours if not name.startswith(PREFIX))
    saved = Suspended(module, fingerprint(code), generator.__qualname__, at, instruction, free, own, names, holders)
    parts = [cells[name] for name in (*free, *own)] + [values[name] for name in names]
    for name in holders:
        parts += [values[name].inner, values[name].source]
    return saved, parts


def _of_expression(generator: Any, values: dict[str, Any], place: str) -> dict[str, Any]:
    at = generator.gi_frame.f_lasti
    loops = [one for one in dis.get_instructions(generator.gi_code) if one.opname == "FOR_ITER"]
    around = [one for one in loops if one.offset < at < one.argval]
    if len(around) != 1:
        raise Hopeless(
            f"a generator expression ({place}) with a `for` inside of a `for` that is not over cannot be saved; write "
            "it as a function with `yield`"
        )
    return {_OVER: values[_OVER]}


def _where(generator: Any, values: dict[str, Any], marker: Any, place: str) -> tuple[int, int, tuple[str, ...]]:
    """Number of the ``yield``, instruction, holders."""
    if TO not in values or AT not in values:
        raise Hopeless(
            f"a generator ({place}) that is not over cannot be saved here: a `yield` of it is a part of an expression, "
            "of `except`, `finally` or `match`, or it uses locals() or eval(); let `yield` be a statement or all of an "
            "assignment, or use a class with __iter__ and __next__"
        )
    found = marker.rewritten.yields[values[AT] - 1]
    for name in found.holders:
        holder = values.get(name)
        if not isinstance(holder, Held):
            raise Hopeless(f"the generator {place} has lost a variable")
        if isinstance(holder, Manager) and not isinstance(holder.inner, _HARMLESS):
            kind = type(holder.inner).__qualname__
            raise Hopeless(
                f"the generator {place} is within a `with` ({kind}); put the `with` around its caller's loop"
            )
    return found.number, generator.gi_frame.f_lasti, found.holders


def _code(saved: Suspended) -> tuple[types.CodeType, dict[str, Any]]:
    module = sys.modules.get(saved.module)
    names = {} if module is None else vars(module)
    code = None if MARKER not in names else _find(names[MARKER], saved.code)
    if code is None:
        raise Hopeless(f"there is no generator function {saved.name} in {saved.module} any more")
    return code, names


_FOUND: dict[int, tuple[Rewritten, dict[str, types.CodeType]]] = {}


def _find(marker: Any, wanted: str) -> types.CodeType | None:
    """The code with this fingerprint in a rewritten module."""
    rewritten: Rewritten = marker.rewritten
    if id(rewritten) not in _FOUND:
        _FOUND[id(rewritten)] = rewritten, {fingerprint(code): code for code in _below(rewritten.code)}
    return _FOUND[id(rewritten)][1].get(wanted)


def _below(code: types.CodeType) -> Iterator[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_flags & inspect.CO_GENERATOR:
                yield constant
            yield from _below(constant)


def _begun(code: types.CodeType, names: dict[str, Any], cells: tuple[Any, ...], saved: Suspended) -> Any:
    """A generator of this code that has not begun; its arguments stand for nothing."""
    function = types.FunctionType(code, names, code.co_name, None, cells or None)
    count = code.co_argcount
    if _OVER in code.co_varnames:
        return function(iter(()))
    return function(*[None] * count, **dict.fromkeys(code.co_varnames[count : count + code.co_kwonlyargcount]))


def _enter(generator: Any, marker: Any, saved: Suspended) -> None:
    """Lead it to its ``yield``; nothing of the user's runs."""
    cls = type(marker)
    cls.entering = saved.at
    try:
        next(generator)
    finally:
        cls.entering = 0
    if generator.gi_frame.f_lasti != saved.instruction:
        _keep(generator)
        raise Hopeless("it was suspended at another place of the same line")


_replaced: dict[int, Any] = {}
"""Generators of the relaunch that others take the place of, until the last of them is in place."""


_made: list[Any] = []
"""What this restore has made."""


def not_for_good() -> None:
    """What the restore has made will be made again: nothing happens when that is dropped meanwhile."""
    _replaced.update((id(generator), generator) for generator in _made)
    _made.clear()


class _Gone:
    """What a holder of a replaced generator has: nothing happens when that is dropped, and its use refuses."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __next__(self) -> Any:
        use(Poison(self._name, "generator", "another one has taken its place, but something still draws from it"))

    def __exit__(self, *how: object) -> None:
        """Nothing."""


def let_go() -> None:
    """The last restore is done: generators that were replaced may be dropped, without a trace.

    Dropping closes them, which would run a ``finally`` and leave a ``with`` once too often, and what they delegate to
    may be in use.
    """
    for generator in _replaced.values():
        values = {} if generator.gi_frame is None else generator.gi_frame.f_locals
        if not values.get(AT):
            continue
        rewritten: Rewritten = generator.gi_frame.f_globals[MARKER].rewritten
        if rewritten.yields[values[AT] - 1].guarded:
            _keep(generator)
            continue
        for holder in values.values():
            if issubclass(type(holder), Held):
                holder.inner, holder.source = _Gone(generator.__qualname__), None
    _replaced.clear()
    _made.clear()


def _keep(generator: Any) -> None:
    """Nobody ever closes it, not even the end of the process."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(generator))


def mark_own_cells(captured: Captured) -> None:
    """The cells of a suspended generator's own variables come from the generator, see `_CellKind`."""
    for owner, (kind, extra, references) in enumerate(captured.nodes):
        if kind != "suspended generator":
            continue
        for name, cell in zip(extra.own, references[len(extra.free) :], strict=False):
            _, _, content = captured.nodes[cell]
            captured.nodes[cell] = ("cell", name, [*content, owner])


def install() -> None:
    """Make these kinds known."""
    kinds.add(_SuspendedKind())
