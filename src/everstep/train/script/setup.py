"""What the setup of a script makes before its first step: large memory of it that a relaunch makes again."""

from __future__ import annotations

import contextlib
import time
from types import CodeType, FrameType

from everstep.train.script import graph, objects
from everstep.train.script.path import place, user_frames
from everstep.train.script.sources import Sources

_MOST_S = 2.0
"""Seconds that may be spent on looking; a script with many loops in its setup is saved in full beyond that."""


class Setup:
    """Notes the large memory that is there when an outermost loop is entered, until one of them takes steps.

    A relaunch enters that loop with the same objects, which it has made itself. What the loop makes is not noted: it
    would not be there.

    Args:
        sources: the user modules.
        bottom: the code that runs the script.

    Attributes:
        made: for ``graph.Settings.made_by_setup``.
    """

    def __init__(self, sources: Sources, bottom: CodeType) -> None:
        self.made: dict[graph.Memory, graph.Made] = {}
        self._sources = sources
        self._bottom = bottom
        self._spent_s = 0.0

    def entering(self, frame: FrameType | None) -> None:
        """An outermost loop in this frame is entered, and no step was done yet; None: it is not worth a look."""
        self.made = {}
        if frame is None or self._spent_s > _MOST_S:
            return
        began = time.monotonic()
        # Whether it matters that the stack cannot be entered again, or that an object raises when it is looked at, is
        # seen at the save.
        with contextlib.suppress(Exception):
            self.made = self._look(frame)
        self._spent_s += time.monotonic() - began

    def _look(self, frame: FrameType) -> dict[graph.Memory, graph.Made]:
        sources = self._sources
        stack = user_frames(frame, self._bottom, sources.is_mine, sources.rewritten)
        spaces = objects.spaces(sources.modules(), stack, [place(one) for one in stack])
        return graph.setup_digests(spaces, graph.Settings(is_user=sources.has))
