"""Where training is: the user's functions that are running, and the loops that are active in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from everstep.train.script import frames
from everstep.train.script.pending import Asked, handled, held_back, is_wrapper_of_a_manager
from everstep.train.script.rewrite import MARKER, Rewritten
from everstep.train.script.states import States

Key = tuple[str, int]
"""A loop: module and number."""

_WRAPPERS = tuple(
    name.replace("/", os.sep)
    for name in (
        "/click/core.py",
        "/click/decorators.py",
        "/rich_click/rich_command.py",
        "/typer/core.py",
        "/typer/main.py",
        "/absl/app.py",
        "/fire/core.py",
        "/hydra/main.py",
        "/hydra/_internal/utils.py",
        "/hydra/_internal/hydra.py",
        "/hydra/core/utils.py",
        "/torch/utils/_contextlib.py",
        "/torch/autograd/profiler.py",
        "/torch/autograd/grad_mode.py",
        "/torch/amp/autocast_mode.py",
        "/torch/distributed/elastic/multiprocessing/errors/__init__.py",
        "/contextlib.py",
        "/functools.py",
        "/runpy.py",
        "/everstep/train/script/sources.py",
    )
)
"""Files whose frames may stand between user frames: they hold nothing that a relaunch does not make again."""


@dataclass(frozen=True)
class Place:
    """One running function of the user's.

    Attributes:
        module: its module.
        function: its qualified name.
        instruction: what it executes; the same in a relaunch, since source and Python are the same.
        line: for people.
    """

    module: str
    function: str
    instruction: int
    line: int


_CONTEXTLIB = f"{os.sep}contextlib.py"


# Not frozen: making one that is takes three times as long, in each pass of the loop around it.
@dataclass
class Ended:
    """A loop that took steps and is over. Never changed.

    Attributes:
        key: the loop.
        ordinal: how many times it had been entered before, in the same pass of the loop around it.
        how: ``exhausted``, ``left`` (by break), ``returned`` or ``raised``.
        value: what it returned (plain, see `plain`) or the text of what it raised.
        states: random states at its end.
        values: plain local variables at its end.
    """

    key: Key
    ordinal: int
    how: str
    value: Any
    states: States
    values: dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """One active loop.

    Attributes:
        key: the loop.
        ordinal: how many times it had been entered before, in the same pass of the loop around it.
        depth: index of the function it is in.
        begun: passes begun.
        start: random states before its iterator was made.
        before: random states before the last pass; None for the innermost, of which no pass is under way.
        item: checksum of the item of the last pass, "" where it was not noted.
        length: of what it iterates over.
        position: of its iterator, see `advance`; None for ``while``.
        lines: where it stands, for people.
        ended: loops inside that took steps and are over, in this pass.
        in_graph: its iterator comes back with the objects, see `loopgraph`.
    """

    key: Key
    ordinal: int
    depth: int
    begun: int
    start: States
    before: States | None
    item: str
    length: int | None
    position: dict[str, Any] | None
    lines: tuple[int, int]
    ended: tuple[Ended, ...]
    in_graph: bool = False


@dataclass(frozen=True)
class Path:
    """A safe point: functions and loops, outermost first, and what was over before the outermost loop."""

    places: tuple[Place, ...]
    turns: tuple[Turn, ...]
    ended: tuple[Ended, ...]


class Stranger(Exception):
    """Between the user's frames stands one that cannot be entered again; the text names it."""


class HeldBack(Stranger):
    """A training function is called where the interpreter alone holds something: in a comprehension, an expression, a
    ``with``."""


def user_frames(
    innermost: FrameType,
    bottom: CodeType,
    is_mine: Callable[[str], bool],
    sources: dict[str, Rewritten],
    *,
    on_the_way: bool = False,
    unwritten: bool = False,
) -> list[FrameType]:
    """The frames of user modules from the script's own to ``innermost``.

    Args:
        innermost: the frame of the loop at whose head we are.
        bottom: the code that started the script.
        is_mine: whether a file is the user's.
        sources: of the user modules.
        on_the_way: nothing is saved here, so it does not matter what the interpreter holds.
        unwritten: the functions were entered before the saved values were written.

    Raises:
        Stranger: a frame in between is neither the user's nor a known wrapper, or cannot be entered again.
    """
    found: list[FrameType] = []
    asked: Asked | None = None
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code is not bottom:
        code = frame.f_code
        if MARKER in frame.f_globals and is_mine(code.co_filename):
            _check_enterable(frame, sources, innermost=frame is innermost)
            if not on_the_way:
                asked = _check_held_back(frame, sources, asked, innermost=frame is innermost, unwritten=unwritten)
            found.append(frame)
        elif not _wraps(code.co_filename):
            raise Stranger(f"{code.co_filename}:{frame.f_lineno} in {code.co_name}")
        elif code.co_filename.endswith(_CONTEXTLIB) and not (on_the_way or is_wrapper_of_a_manager(frame)):
            raise HeldBack(f"{_below(frame)} under a manager that no variable holds: enter it by `with`, by a variable")
        frame = frame.f_back
    handling = None if on_the_way else handled(found)
    if handling is not None:
        raise HeldBack(f"{_at(handling)} while an exception is being handled: do it behind the `try`")
    return found[::-1]


def place(frame: FrameType) -> Place:
    """Where a frame is."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    return Place(frame.f_globals["__name__"], name, frame.f_lasti, frame.f_lineno)


def same_call(a: Place, b: Place) -> bool:
    """True if both are the same function at the same instruction."""
    return (a.module, a.function, a.instruction) == (b.module, b.function, b.instruction)


def same_function(a: Place, b: Place) -> bool:
    """True if both are the same function, wherever it is."""
    return (a.module, a.function) == (b.module, b.function)


def common_prefix(saved: Sequence[Place], now: Sequence[Place]) -> int:
    """How many functions, from the outermost, run now as they ran then: all but the last at the same call."""
    count = 0
    for there, here in zip(saved, now, strict=False):
        if not same_function(there, here):
            break
        count += 1
        if not same_call(there, here):
            break
    return count


def _check_enterable(frame: FrameType, sources: dict[str, Rewritten], *, innermost: bool) -> None:
    code = frame.f_code
    where = f"{code.co_filename}:{frame.f_lineno}"
    if frames.suspendable(code):
        raise Stranger(f"{where} in the generator or coroutine {code.co_name}")
    if code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"):
        raise HeldBack(f"{where} in a comprehension, where a `for` statement could be continued")
    source = sources[frame.f_globals["__name__"]]
    at = None if innermost or not source.comprehensions else frames.position(frame)
    # Python 3.12 and newer do most comprehensions without a frame of their own (PEP 709). While a module is in one, its
    # `f_locals` are no longer its globals.
    if at is not None and any(span.holds(*at) for span in source.comprehensions):
        raise HeldBack(f"{where} in a comprehension, where a `for` statement could be continued")
    is_module = frame.f_locals is frame.f_globals
    if not is_module and not code.co_flags & frames.CO_OPTIMIZED:
        raise Stranger(f"{where} in the body of a class")


def _check_held_back(
    frame: FrameType, sources: dict[str, Rewritten], asked: Asked | None, **options: bool
) -> Asked | None:
    """What the frame needs of its caller."""
    mine = sources[frame.f_globals["__name__"]].pending
    answer = held_back(frame, mine, (s.pending for s in sources.values()), asked=asked, **options)
    if answer.why:
        raise HeldBack(f"{_at(frame)} {answer.why}")
    return answer.asks


def _at(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _below(frame: FrameType) -> str:
    """The place in the script from which a wrapper is called."""
    caller = frame.f_back
    while caller is not None and MARKER not in caller.f_globals:
        caller = caller.f_back
    return _at(caller or frame)


def _wraps(filename: str) -> bool:
    return filename.startswith("<frozen importlib") or filename.endswith(_WRAPPERS)
