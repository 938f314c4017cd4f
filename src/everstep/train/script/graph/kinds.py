"""Kinds of objects: how each is taken apart, made, and written in place; and the choice of the kind for an object."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from everstep.train.script.graph.records import MISSING, Settings

if TYPE_CHECKING:
    from everstep.train.script.graph.memory import Claims, Place, Targets

# What an object is taken apart into: plain data that describes it, and the objects it refers to.
Taken = tuple[Any, Sequence[object]]


class Hopeless(Exception):
    """This object cannot be rebuilt; the text says why and what helps."""


class Saving(Protocol):
    """What a kind is given while a graph is captured."""

    settings: Settings
    memory: Claims

    def is_user(self, module: str | None) -> bool:
        """Whether a module is the user's."""


class Filling(Protocol):
    """What a kind is given while a graph is restored."""

    memory: Targets

    def value(self, code: Any) -> Any:
        """The object or value that a reference stands for."""

    def paired(self, code: Any) -> bool:
        """Whether a reference stands for an object that the relaunch had made itself."""

    def running(self, module: str, function: str) -> bool:
        """Whether a function (qualified name) was running at the save, outside of generators."""


class Kind:
    """How objects of one kind are saved and restored; the default is one that has no parts.

    Attributes:
        name: written into the save.
        whole: made from its parts at once and never written in place (a tuple); others are made empty and filled.
        calls: making it runs code with its parts, which must not be poison.
        late: made and filled when everything else is.
    """

    name: ClassVar[str]
    whole: ClassVar[bool] = False
    calls: ClassVar[bool] = False
    late: ClassVar[bool] = False

    def pick(self, thing: Any) -> Kind:
        """The kind for this very object, when its type alone does not tell."""
        return self

    def take(self, thing: Any, saving: Saving) -> Taken:
        """Take it apart. Raises `Hopeless` when it cannot be rebuilt."""
        return None, ()

    def find(self, extra: Any) -> object:
        """The fresh object by its name alone, whatever the paths; MISSING if that is not how this kind is found."""
        return MISSING

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        """The parts of a fresh object in the order of ``refs``, MISSING where it has none; None: not its partner."""
        return None

    def anew(self, extra: Any) -> bool:
        """It is made anew even if there is a fresh one on its path, which only lends its parts."""
        return False

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        """The parts that must exist before it can be made."""
        return refs if self.whole else []

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        """A new one, filled only if the kind is whole. Raises `Hopeless`."""
        raise Hopeless("it was not there when the script was started again, and cannot be made anew")

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        """Write the saved state into it."""

    def shown(self, extra: Any) -> tuple[Any, Place | None]:
        """What of its plain data is equal in two processes, and the place of its bytes."""
        return extra, None

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        """How an access path goes on to the part at this position."""
        return f"<{position}>"


class Handler(Protocol):
    """What another module registers for its own classes."""

    def save(self, obj: Any, context: Any) -> Any:
        """What comes back, as plain data; other objects of the graph as ``context.part(object)``."""

    def fill(self, obj: Any, saved: Any, context: Any) -> Any:
        """Write into ``obj``, or make a new one if it is None; gives the object.

        ``context.part(token)`` gives the other objects back; their own contents may not be written yet.
        """


_BY_NAME: dict[str, Kind] = {}
_RULES: list[tuple[Callable[[type], bool], Kind]] = []
_CHOSEN: dict[type, Kind] = {}


def add(kind: Kind, applies: Callable[[type], bool] | None = None) -> Kind:
    """Make a kind known; of the rules that apply to a type, the first one counts."""
    if kind.name in _BY_NAME:
        raise ValueError(f"there is a kind {kind.name!r} already")
    _BY_NAME[kind.name] = kind
    if applies is not None:
        _RULES.append((applies, kind))
    return kind


def add_first(kind: Kind, applies: Callable[[type], bool]) -> None:
    """Make a kind known that goes before all others; one of the same name is replaced."""
    _BY_NAME[kind.name] = kind
    _RULES[:] = [(rule, other) for rule, other in _RULES if other.name != kind.name]
    _RULES.insert(0, (applies, kind))
    _CHOSEN.clear()


def by_name(name: str) -> Kind:
    """The kind with this name."""
    return _BY_NAME[name]


def kind_of(thing: object) -> Kind:
    """The kind of an object."""
    cls = type(thing)
    kind = _CHOSEN.get(cls)
    if kind is None:
        kind = _CHOSEN[cls] = next(kind for applies, kind in _RULES if applies(cls))
    return kind.pick(thing)


def exactly(*classes: type) -> Callable[[type], bool]:
    """A rule for these classes alone."""
    known = frozenset(classes)
    return lambda cls: cls in known


def below(*classes: type) -> Callable[[type], bool]:
    """A rule for these classes and what is derived from them."""
    return lambda cls: issubclass(cls, classes)
