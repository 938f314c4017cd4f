"""When trying on is no use: the text that the user gets then."""

from __future__ import annotations

from collections import Counter

from everstep.model.causes import InstanceEnd
from everstep.model.job import InstancePhase, InstanceState, JobPhase, JobState

_FATAL = ("bad_request",)
_STILLBORN_LIMIT = 5
"""So many machines of one place in a row that never came up: it is not bad luck, and every one was billed."""
_TAKEN = (InstanceEnd.PREEMPTED, InstanceEnd.MAX_LIFE)


def hopeless(job: JobState) -> str:
    """Why new machines cannot help this job; empty while they can.

    Args:
        job: a job that wants to run. What happened before its last submission or retry does not count.
    """
    # A move that fails leaves the job where it is.
    machines = [m for m in job.instances.values() if m.launch_no > job.old_launches and not m.move]
    refused = [m for m in machines if m.phase is InstancePhase.REFUSED and m.failure.startswith(_FATAL)]
    if refused and job.phase is JobPhase.ACQUIRING:
        return f"the provider refuses the request: {refused[-1].failure}"
    failed = [m for m in machines if m.failure.startswith("setup exited") and m.ready_at is None]
    # The machines of a gang fail together: what counts is how often one place was tried.
    tries = max(Counter(m.slot for m in failed).values()) if failed else 0
    if tries > job.task.recovery.max_restarts:
        return f"{failed[-1].instance}: {failed[-1].failure}"
    return _stillborn(machines)


def _stillborn(machines: list[InstanceState]) -> str:
    """A place whose newest machines all ended before they were ready, and not because the vendor took them (rule 9)."""
    ended = [m for m in machines if not m.alive and m.started_at is not None]
    if len(ended) < _STILLBORN_LIMIT:
        return ""
    in_a_row: Counter[object] = Counter()
    closed = set()
    for m in sorted(ended, key=lambda m: -m.launch_no):
        if m.slot in closed:
            continue
        if m.ready_at is not None or m.end in _TAKEN or m.notice is not None:
            closed.add(m.slot)
            continue
        in_a_row[m.slot] += 1
        if in_a_row[m.slot] >= _STILLBORN_LIMIT:
            why = m.leave_reason or m.failure or m.refusal or "they ended by themselves"
            return f"{_STILLBORN_LIMIT} machines in a row never became ready (the last: {why}); see 'everstep logs'"
    return ""
