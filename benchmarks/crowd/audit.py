"""Whether everything that was acknowledged is in the journal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from everstep.control.kernel import Kernel
from everstep.model import events as ev
from everstep.model import handshake as h
from everstep.model.ids import JOB_STREAMS, DeploymentId, JobId
from everstep.store.registry import open_store

_PAGE = 5_000
_CHECKED = {h.MSG_SAVED: ev.CheckpointSaved, h.MSG_ENDED: ev.RanksEnded, h.MSG_STARTED: ev.RanksStarted}
"""Kinds whose every message makes a line of its own, unless its attempt is over."""

Acked = tuple[str, str, str, int | None, int | None, float]
"""Job, instance, kind, attempt, step, UTC seconds of the acknowledgement."""


@dataclass
class Findings:
    """What the journal says.

    Attributes:
        lines: lines of jobs.
        acknowledged: messages that were looked for.
        fenced: of these, messages of an attempt that had a successor by then: ignored on purpose.
        lost: of these, not to be found.
        quarantined: jobs that met a move which no table lists.
    """

    lines: int = 0
    acknowledged: int = 0
    fenced: int = 0
    lost: int = 0
    quarantined: int = 0


async def audit(journal: Path, acked: Iterable[Acked]) -> Findings:
    """Folds the whole journal and looks for every acknowledged message."""
    kernel, found = Kernel(DeploymentId("audit")), Findings()
    told: set[tuple[str, str, str, int | None, int | None]] = set()
    begun: dict[str, dict[int, float]] = defaultdict(dict)
    store, seq = open_store(f"sqlite:///{journal}"), 0
    while records := await store.read(after=seq, limit=_PAGE):
        seq = records[-1].seq
        for record in records:
            if not record.stream.startswith(JOB_STREAMS):
                continue
            found.lines += 1
            job, event = JobId(record.stream.removeprefix(JOB_STREAMS)), ev.decode(record.kind, record.body)
            kernel.replay(job, event, record.at)
            begun[job].setdefault(kernel.states[job].attempt_no, record.at)
            for kind, cls in _CHECKED.items():
                if isinstance(event, cls):
                    step = getattr(event, "step", None)
                    told.add((job, event.instance, kind, event.attempt, step))
    await store.close()
    for job_id, instance, kind, attempt, step, at in acked:
        if kind not in _CHECKED:
            continue
        found.acknowledged += 1
        if (job_id, instance, kind, attempt, step) in told:
            continue
        if any(no > (attempt or 0) and since <= at for no, since in begun[job_id].items()):
            found.fenced += 1
        else:
            found.lost += 1
    found.quarantined = sum(1 for state in kernel.states.values() if state.quarantined)
    return found
