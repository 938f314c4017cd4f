"""What a run works with; made by `everstep.train.attach`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from everstep.train.folder import Folder
from everstep.train.gang import Gang
from everstep.train.lineage import Position
from everstep.train.mirror import Mirror
from everstep.train.pace import Pace
from everstep.train.reports import Reporter
from everstep.train.requests import Requests, Terminations


@dataclass(frozen=True)
class Surroundings:
    """What a run works with.

    ``one_folder``: all ranks see the same checkpoint folder; only then is a checkpoint durable without a mirror.
    ``copy_at_once``: nothing is copied while training goes on.
    ``sync_beside``: makes durable what lies beside a checkpoint and belongs to it; called by each rank before the
    checkpoint is published, perhaps in another thread.
    """

    gang: Gang
    folder: Folder
    reporter: Reporter
    requests: Requests
    terminations: Terminations
    pace: Pace
    attempt: int
    base: Position | None
    keep: int
    one_folder: bool
    copy_at_once: bool = False
    mirror: Mirror | None = None
    sync_beside: Callable[[], None] | None = None

    @property
    def keeps_folder(self) -> bool:
        """True for the rank that publishes into the folder it sees: one per folder."""
        return self.gang.rank == 0 or (self.gang.leads_node and not self.one_folder)
