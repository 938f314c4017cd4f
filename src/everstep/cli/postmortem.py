"""Why a job failed or never started, in its own last words, and where to read on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from everstep.cli import wording

if TYPE_CHECKING:
    from everstep.client.results import JobDetail

_RANK = re.compile(r"rank (\d+)\b")


@dataclass(frozen=True, slots=True)
class LastWords:
    """What a failed program wrote last: whose words they are, the words, the command that shows all of them."""

    whose: str
    text: str
    more: str


def last_words(detail: JobDetail) -> LastWords | None:
    """Of the rank, or the set-up, that made the job fail; None if it did not fail by a program of the user's."""
    if detail.phase != "failed":
        return None
    logs = f"everstep logs {detail.job}"
    for attempt in reversed(detail.attempts):
        if attempt.tail and attempt.cause not in ("preemption", "node_loss", "owner"):
            rank = _RANK.search(attempt.hint)
            who = f"rank {rank[1]} of attempt {attempt.attempt}" if rank else f"attempt {attempt.attempt}"
            more = f"{logs} --attempt {attempt.attempt}" + (f" --rank {rank[1]}" if rank else "")
            return LastWords(who, attempt.tail, more)
    for machine in reversed(detail.machines):
        first, _, tail = machine.failure.partition(": ")
        if first.startswith("setup exited"):
            return LastWords(f"setup on {machine.instance}", tail, f"{logs} --rank setup")
    return None


def no_output(detail: JobDetail, *, filtered: bool) -> str:
    """One line: why there is nothing to read."""
    if detail.attempts:
        which = "no such output" if filtered else "no output"
        return f"{detail.job} wrote {which}{'' if detail.ended else ' yet'}"
    if detail.ended:
        why = wording.first_line(detail.why)
        return f"{detail.job} never started, it {_ended(detail.phase)}" + (f": {why}" if why else "")
    waits = f", waits for {detail.wait}" if detail.wait else ""
    return f"{detail.job} has not started yet: {detail.phase}{waits}"


def _ended(phase: str) -> str:
    return {"failed": "failed", "cancelled": "was cancelled"}.get(phase, phase)
