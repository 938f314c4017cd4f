"""How much work there is, where the loops show it."""

from __future__ import annotations

from collections.abc import Sequence

from everstep.train.script.heads import Record


def total(stack: Sequence[Record], count: int) -> int | None:
    """Steps there will be, if every active loop tells its length; None if one does not, or it does not come out even.

    The passes done so far have taken so many steps each; the passes left are expected to take as many.

    Args:
        stack: the active loops, outermost first; the last has just ended a pass.
        count: steps so far.
    """
    passes, done = 1, 0
    for depth, record in enumerate(stack):
        if record.length is None or record.length < record.begun:
            return None
        passes *= record.length
        finished = record.begun - (depth < len(stack) - 1)
        done = done * record.length + finished
    if done <= 0:
        return None
    before = max(0, stack[0].began_at)
    steps, uneven = divmod((count - before) * passes, done)
    return None if uneven else before + steps
