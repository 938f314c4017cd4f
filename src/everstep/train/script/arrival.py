"""What a relaunch writes into the script's objects on its way, and at the safe point."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from everstep.model import handshake
from everstep.train.loaders import WrongData
from everstep.train.opening import restored
from everstep.train.script import batches, graph, loopgraph, objects, states, streams, surroundings
from everstep.train.script.again import Again
from everstep.train.script.grounds import KEY, Grounds
from everstep.train.script.heads import Record
from everstep.train.script.managers import Watch
from everstep.train.script.path import Path, Place, Stranger, common_prefix, place, user_frames
from everstep.train.script.refusal import refuse
from everstep.train.script.session import Parts, Session
from everstep.train.script.unseen import unseen

_Restore = Callable[[Sequence[graph.Space]], list[graph.Restored]]


class Arriving:
    """Writes a save back.

    Args:
        parts: what the session works with.
        session: told when the safe point is restored.
        saved: the state of the save.
        began: monotonic seconds when the relaunch began.
        again: writes nothing before the safe point if this is the second try.

    Attributes:
        path: the way to the safe point.
    """

    def __init__(self, parts: Parts, session: Session, saved: dict[str, Any], began: float, again: Again) -> None:
        self._parts = parts
        self._session = session
        self._saved = saved
        self._restoring = graph.Restoring(saved["graph"])
        self._began = began
        self._again = again
        self._wrote_early = False
        self.path: Path = saved["path"]

    @unseen()
    def early(self, frame: FrameType) -> None:
        """Write the saved values for the first time, so that conditions on the way see them."""
        if self._again.is_second:
            return
        self._wrote_early = True
        try:
            stack, places = self._frames(frame, on_the_way=True)
        except Stranger:
            stack, places = [], []
        common = common_prefix(self.path.places, places)
        self._write(self._restoring.early, stack[:common], places[:common])

    @unseen()
    def arrive(self, record: Record) -> None:
        """The safe point is reached: files, objects, random states and switches are those of the save."""
        saved, parts = self._saved, self._parts
        assert record.frame is not None
        stack, places = self._arrived(record.frame)
        self._import_missing()
        parts.output.restored(saved["output"])
        records = self._session.heads.stack[1:]
        entered = Watch(stack)
        self._write(self._restoring.final, stack, places, records if record in records else [*records, record])
        lost = entered.lost()
        if lost:
            refuse(f"the saved objects do not fit what the script builds: {lost}; bind it to a variable first")
        self._set_modes()
        for active in records:
            active.began_at = active.counted = -1
        parts.steps.count = record.counted = saved["step"]
        parts.pace.save_cost_s = saved["save_cost_s"]
        self._session.resumed(saved["step"], self._restoring.made_by_setup)
        batches.live()
        states.restore(saved["states"])
        parts.reporter.step = saved["step"]
        parts.reporter.fact(handshake.FACT_RESTORED, **restored(saved["opened"], self._began))
        # What was read would stay in memory as long as the script runs.
        del saved["graph"], self._restoring

    def _set_modes(self) -> None:
        differs = surroundings.set_modes(self._saved["modes"])
        if differs:
            refuse(f"the script arrives at the saved loop with other switches ({differs}); set them before its loops")

    def try_again(self, ended: str) -> None:
        """The script ended before the safe point: begin anew if that may help. Returns if not."""
        alone, asked = self._parts.gang.world_size == 1, self._parts.terminations.asked
        if self._wrote_early and alone and not asked and self._again.possible:
            self._parts.reporter.say(f"on its way to the saved loop {ended}; it is tried once more in another way")
            self._again.start(self._parts.output.end)

    def never(self, ended: str) -> None:
        """The script ended before the safe point."""
        turn = self.path.turns[-1]
        file = os.path.basename(self._saved["sources"][turn.key[0]].path)
        refuse(
            f"the loop at {file}:{turn.lines[0]}, in which the save was made, was not reached again: "
            f"{ended}. What the script does before must not depend on anything outside; start afresh with another --dir"
        )

    def _arrived(self, frame: FrameType) -> tuple[list[FrameType], list[Place]]:
        try:
            stack, places = self._frames(frame, unwritten=self._again.is_second)
        except Stranger as error:
            refuse(f"the saved loop is reached from elsewhere: {error}")
        same = common_prefix(self.path.places, places) == len(places) == len(self.path.places)
        if not same:
            there = " > ".join(f"{p.function}:{p.line}" for p in self.path.places)
            here = " > ".join(f"{p.function}:{p.line}" for p in places)
            refuse(f"the saved loop is reached by another way: it was {there}, now it is {here}")
        return stack, places

    def _frames(self, frame: FrameType, **options: bool) -> tuple[list[FrameType], list[Place]]:
        sources, bottom = self._parts.sources, self._parts.bottom
        stack = user_frames(frame, bottom, sources.is_mine, sources.rewritten, **options)
        return stack, [place(one) for one in stack]

    def _import_missing(self) -> None:
        """User modules that were imported in passes that are not done again."""
        for name in self._saved["sources"]:
            if name not in self._parts.sources.modules():
                importlib.import_module(name)

    def _write(
        self, restore: _Restore, stack: list[FrameType], places: list[Place], records: Sequence[Record] = ()
    ) -> None:
        modules = self._parts.sources.modules()
        spaces = objects.spaces(modules, stack, places)
        in_graph = [at for at, turn in enumerate(self.path.turns) if turn.in_graph] if records else []
        grounds = Grounds(records, in_graph)
        spaces += [loopgraph.fresh(records, in_graph)] if in_graph else []
        spaces += [grounds.space(), streams.space()] if records else []
        try:
            restored = restore(spaces)
        except graph.Unrestorable as error:
            refuse(f"the saved objects do not fit what the script builds: {error}")
        objects.write(restored, modules, stack, places)
        loopgraph.write(
            records,
            in_graph,
            {name: value for one in restored for name, value in one.values.items() if one.key == loopgraph.KEY},
        )
        if records:
            streams.write(restored)
            self._write_grounds(grounds, restored)

    def _write_grounds(self, grounds: Grounds, restored: Sequence[graph.Restored]) -> None:
        values = {name: value for one in restored if one.key == KEY for name, value in one.values.items()}
        try:
            grounds.write(values, self._saved["graph"])
        except WrongData as error:
            refuse(f"a loop cannot go on over what it went over: {error}")
