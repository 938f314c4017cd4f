"""When a new attempt begins, and with which machine in which rank."""

from __future__ import annotations

from dataclasses import replace

from everstep.brain.lifecycle.gang import REFUSED, end_unknown
from everstep.brain.lifecycle.moves import movers_ready, unfinished
from everstep.model.events import AttemptsSkipped
from everstep.model.gang import Slot
from everstep.model.handshake import OUTCOME_FAILED
from everstep.model.job import AttemptState, GangPhase, InstancePhase, InstanceState, JobPhase, JobState


def replacements_ready(s: JobState, attempt: AttemptState) -> bool:
    """Some member is doomed, and every slot of a doomed member has a prepared successor; or a move can be made."""
    doomed = [s.instances[t] for t in attempt.members if s.instances[t].doomed]
    if not doomed:
        return movers_ready(s)
    return all(prepared(s, m.slot) is not None for m in doomed)


def prepared(s: JobState, slot: Slot) -> InstanceState | None:
    """The machine that a new attempt would use for the slot: the newest that is ready and not doomed.

    One of a move that is not ready as a whole comes last.
    """
    # The phase first: most machines of a long job are not there any more.
    ready = [m for m in s.instances.values() if m.phase is InstancePhase.READY and m.slot == slot and not m.doomed]
    return max(ready, key=lambda m: (not unfinished(s, m), m.launch_no), default=None)


def may_begin(s: JobState) -> bool:
    """Every slot has a prepared machine, and no budget stands in the way (rule 4: restart first, cause later)."""
    if s.quarantined or any(prepared(s, slot) is None for slot in s.task.gang.slots):
        return False
    attempt = s.attempt
    if attempt is None or attempt.settled_at is not None or not attempt.failed:
        return True
    # Restart first, cause later: but with no restart left, a failure that may be the user's own waits for its cause.
    if OUTCOME_FAILED not in attempt.ended.values() or any(s.instances[t].doomed for t in attempt.members):
        return True  # no program failed, or it had reason to
    if attempt.hint.startswith(REFUSED):
        return False  # the same again would be refused again
    # Each failure whose cause is open may be one, too.
    doubtful = sum(1 for a in s.attempts if a.settled_at is None and OUTCOME_FAILED in a.ended.values())
    return s.user_failures + doubtful <= s.task.recovery.max_restarts


def superseded(a: AttemptState, keep: int) -> AttemptState:
    """An attempt that another one follows, without the saves that nobody can ask for any more.

    It collected after each of its saves, so of its own no more than the ``keep`` newest steps are left to begin from.
    The first and the last to be told stay too. A job that is preempted a hundred times remembers a hundred attempts.
    """
    newest = {save.step for save in sorted(a.saves, key=lambda save: save.step)[-max(keep, 1) :]}
    first, last = a.saves[:1], a.saves[-1:]
    saves = tuple(save for save in a.saves if save.step in newest or save in first or save in last)
    return a if len(saves) == len(a.saves) else replace(a, saves=saves)


def _unheard(a: AttemptState | None) -> tuple[str, int]:
    """The wish for a base that an attempt ended without having told that it goes on from somewhere: base, since when.

    The next one is told, too. If the wish was heard after all, the ranks see that there (``train.lineage.Wish``).
    """
    return ("", 0) if a is None or a.restored_at is not None else (a.base_wanted, a.base_since)


def begin(s: JobState, now: float) -> JobState:
    """A new attempt on the prepared machines, with the next number."""
    members = ranked(s)
    no = max(s.attempt_no, s.attempt_floor) + 1
    base, since = (s.base_wanted, no) if s.base_wanted else _unheard(s.attempt)
    attempt = AttemptState(
        no=no,
        members=tuple(m.token for m in members),
        master_port=members[0].port,
        begun_at=now,
        base_wanted=base,
        base_since=since,
        phase=GangPhase.CHECKING if len(members) > 1 else GangPhase.RUNNING,
    )
    phase = JobPhase.CHECKING if len(members) > 1 else JobPhase.RUNNING
    before = (*s.attempts[:-1], *(superseded(a, s.task.checkpoint.keep) for a in s.attempts[-1:]))
    return replace(
        s, phase=phase, attempts=(*before, attempt), base_wanted="", why="", waiting_since=None, wait="", execs=()
    )


def skipped(s: JobState, e: AttemptsSkipped, now: float) -> JobState:
    """Attempts that we know nothing of: ours is a memory, and the next one gets a number that nobody has seen."""
    s = replace(s, attempt_floor=max(s.attempt_floor, e.to))
    attempt = s.attempt
    if not e.running or attempt is None or attempt.phase is GangPhase.ENDED or attempt.no > e.to:
        return s
    return replace(s, attempts=(*s.attempts[:-1], end_unknown(attempt, e.text, now)))


def ranked(s: JobState) -> list[InstanceState]:
    """The prepared machines in order of node rank.

    Survivors keep their rank where they can. When the master is lost the lowest surviving rank takes its place, and the
    newcomer takes the rank that falls vacant (rule 7).
    """
    chosen = [m for slot in s.task.gang.slots if (m := prepared(s, slot)) is not None]
    former = {} if s.attempt is None else {token: rank for rank, token in enumerate(s.attempt.members)}
    ranks: list[InstanceState | None] = [None] * len(chosen)
    newcomers = []
    for machine in chosen:
        rank = former.get(machine.token)
        if rank is None or rank >= len(ranks):
            newcomers.append(machine)
        else:
            ranks[rank] = machine
    first = next((r for r, m in enumerate(ranks) if m is not None), None)
    if first:
        ranks[0], ranks[first] = ranks[first], None
    fill = iter(newcomers)
    return [m if m is not None else next(fill) for m in ranks]
