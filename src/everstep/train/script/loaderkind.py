"""Loader iterators that the script holds itself (``it = iter(loader)``), as part of the object graph."""

from __future__ import annotations

from typing import Any

from everstep.train.loaders import WrongData
from everstep.train.script import graph
from everstep.train.script.batches import Batches
from everstep.train.script.refusal import refuse


class _BatchesHandler:
    """Puts the iterator that the relaunch made to the saved position; see `graph.register`."""

    def save(self, obj: Batches, context: Any) -> Any:
        saved = obj.position()
        if saved["problem"]:
            raise graph.Hopeless(saved["problem"])
        parts = [context.part(part) for part in obj.parts()]
        return saved, None if obj.loader is None else context.part(obj.loader), parts

    def fill(self, obj: Batches | None, saved: Any, context: Any) -> Any:
        position, loader, *parts = saved  # saves of earlier versions have no parts
        if obj is None and loader is None:
            raise graph.Hopeless("it is made in a pass that is not done again; make it before the loop")
        try:
            if obj is None:
                obj = Batches(context.part(loader), position)
            obj.restore(position)
            if parts:
                obj.put_parts([context.part(part) for part in parts[0]], own=False)
            obj.drain()
        except WrongData as error:
            refuse(f"an iterator over a DataLoader cannot go on where it was: {error}")
        return obj


def install() -> None:
    """Make them part of the graph."""
    graph.register(Batches, _BatchesHandler())
