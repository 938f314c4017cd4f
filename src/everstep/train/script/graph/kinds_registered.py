"""Kinds that other modules bring for classes of their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Handler, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.kinds_containers import padded


def register(cls: type, handler: Handler) -> None:
    """Let a handler save and restore the instances of a class, and of classes derived from it; it goes before all else.

    ``handler.save(obj, context)`` gives plain data; ``context.part(other)`` makes another object part of the graph and
    gives a token for it. It raises `Hopeless` when the object cannot be rebuilt. It must not change ``obj``.
    ``handler.fill(obj, saved, context)`` is called when everything else is restored, with the fresh object on the same
    access path, or with None to make one; it gives the object. ``context.part(token)`` gives the other objects back.
    """
    kinds.add_first(_RegisteredKind(cls, handler), kinds.below(cls))


class _RegisteredKind(Kind):
    late = True

    def __init__(self, cls: type, handler: Handler) -> None:
        self.name = f"registered {cls.__module__}.{cls.__qualname__}"  # type: ignore[misc]
        self._handler = handler

    def take(self, thing: Any, saving: Saving) -> Taken:
        context = _Saving()
        saved = self._handler.save(thing, context)
        return saved, context.parts

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        context = _Saving()
        try:
            self._handler.save(fresh, context)
        except Hopeless:
            return None
        return padded(context.parts, len(refs))

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return self._handler.fill(None, extra, _Filling(refs, filling))

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        if self._handler.fill(thing, extra, _Filling(refs, filling)) is not thing:
            raise TypeError(f"the handler of {self.name} must give back the object that it was given")

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        return f"<part {position}>"


class _Saving:
    """What a handler is given at a save."""

    def __init__(self) -> None:
        self.parts: list[object] = []

    def part(self, thing: object) -> int:
        """Make an object a part; gives a token for it."""
        self.parts.append(thing)
        return len(self.parts) - 1


class _Filling:
    """What a handler is given at a restore."""

    def __init__(self, refs: list[Any], filling: Filling) -> None:
        self._refs = refs
        self._filling = filling

    def part(self, token: int) -> Any:
        """The object that a token stands for."""
        return self._filling.value(self._refs[token])
