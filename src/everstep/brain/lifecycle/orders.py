"""What each machine should be doing now: a function of the job's state, so that a restarted server knows it at once."""

from __future__ import annotations

from typing import Any

from everstep.brain.checkpoint.hazard import gang_hazard_per_h
from everstep.model import handshake as h
from everstep.model.causes import Cause
from everstep.model.gang import Slot
from everstep.model.job import AttemptState, GangPhase, Goal, InstancePhase, InstanceState, JobPhase, JobState

_AT_WORK = (GangPhase.CHECKING, GangPhase.RUNNING)
_OVER = (JobPhase.RELEASING, JobPhase.PAUSED, JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED)


class Briefing:
    """The orders of all machines of a job. What they have in common is made once, however large the gang is.

    Args:
        state: the job.
        before: of an earlier state; what is equal to it is taken from there, so that comparing the two is quick.
    """

    def __init__(self, state: JobState, before: Briefing | None = None) -> None:
        """See the class."""
        self._state = state
        attempt = state.attempt
        self._ranks = {} if attempt is None else {token: rank for rank, token in enumerate(attempt.members)}
        self._working = _working(state, attempt) if attempt is not None and attempt.phase in _AT_WORK else {}
        self._places = _places(state)
        self._beside = [_peer(rank, m) for rank, m in enumerate(self._places.values())]
        if before is not None:
            kept = before._working
            self._working = {k: kept[k] if k in kept and kept[k] == v else v for k, v in self._working.items()}
            self._beside = before._beside if before._beside == self._beside else self._beside

    def orders(self, machine: InstanceState) -> dict[str, Any]:
        """See ``orders``."""
        state, rank = self._state, self._ranks.get(machine.token)
        document = _resting(state, machine, member=rank is not None)
        if state.phase in _OVER and not _kept(state):
            return {**document, h.ORDERS_PHASE: h.PHASE_RELEASE, h.ORDERS_STOP: _stop(state, save=False)}
        if machine.phase in (InstancePhase.BOOTING, InstancePhase.JOINED):
            return {**document, h.ORDERS_PHASE: h.PHASE_PREPARE, h.ORDERS_PEERS: self._gang_of(machine)}
        attempt = state.attempt
        if attempt is None or rank is None or attempt.phase is GangPhase.ENDED:
            return {**document, h.ORDERS_STOP: _stop(state, save=False)}
        if attempt.phase is GangPhase.STOPPING:
            # Not where the user goes back: a save collects, perhaps the very checkpoint that comes next.
            save = state.goal in (Goal.RUN, Goal.PAUSE) and not state.base_wanted
            return {**document, h.ORDERS_STOP: _stop(state, save=save)}
        return {**document, **self._working, h.ORDERS_NODE_RANK: rank}

    def _gang_of(self, machine: InstanceState) -> list[dict[str, Any]]:
        """The gang that the machine is set up for, by slot and itself in its own; empty until all have joined."""
        mine = self._places.get(machine.slot)
        if mine is None or mine.token == machine.token:
            return self._beside
        return [_peer(rank, machine if m is mine else m) for rank, m in enumerate(self._places.values())]


def orders(state: JobState, machine: InstanceState) -> dict[str, Any]:
    """The orders document of a machine (``ORDERS_*`` of the handshake), without ``version`` and without secrets.

    Args:
        state: the job.
        machine: one of ``state.instances``.
    """
    return Briefing(state).orders(machine)


def same_orders(before: JobState, after: JobState) -> bool:
    """Whether nothing that orders are made of differs. Quick: False may only mean that it is not known."""
    old, new = before.attempt, after.attempt
    return (
        old is not None
        and new is not None
        # Machines are compared as objects: events that are about none leave them alone.
        and before.instances is after.instances
        and before.task is after.task
        and before.phase is after.phase
        and before.goal is after.goal
        and before.why == after.why
        and before.save == after.save
        and before.execs == after.execs
        and before.keep_until == after.keep_until
        and before.base_wanted == after.base_wanted
        and _work_of(old) == _work_of(new)
        and (new.phase not in _AT_WORK or _hazard_per_h(before, old) == _hazard_per_h(after, new))
    )


def _work_of(a: AttemptState) -> tuple[Any, ...]:
    """What orders tell of an attempt or depend on, but for its hazard."""
    return a.no, a.phase, a.members, a.master_port, a.base_wanted, a.base_since, a.begun_at, a.cause


def outputs_due(state: JobState, machine: InstanceState) -> bool:
    """Whether this machine brings outputs home before it leaves (rule 10).

    A shared checkpoint folder outlives the machines; what the task names, and a checkpoint folder on the machine's own
    disk, do not. Of the nodes of a gang the one of rank 0 does it, or each its own when nothing is shared.
    """
    attempt = state.attempt
    return attempt is not None and machine.token in attempt.members and _outputs_due(state, attempt, machine)


def _outputs_due(state: JobState, attempt: AttemptState, machine: InstanceState) -> bool:
    """The same, of a member of the attempt."""
    if machine.phase is InstancePhase.ENDED:
        return False
    if state.goal is Goal.CANCEL or attempt.cause is Cause.SETUP_FAILED or machine.joined_at is None:
        return False
    if state.goal is Goal.PAUSE and machine.volume is not None:
        return False  # the disk is kept, and what is on it
    if machine.shared_folder and not state.task.outputs:
        return False
    return not machine.shared_folder or attempt.members[0] == machine.token


def _kept(state: JobState) -> bool:
    return state.keep_until is not None


def _execs(state: JobState) -> list[dict[str, str]]:
    return [{"id": exec_id, "command": command} for exec_id, command in state.execs]


def _resting(state: JobState, machine: InstanceState, *, member: bool) -> dict[str, Any]:
    return {
        h.ORDERS_PHASE: h.PHASE_HOLD,
        h.ORDERS_ATTEMPT: state.attempt_no or None,
        h.ORDERS_SPEC: _spec(state, machine, member=member),
        h.ORDERS_NODE_RANK: None,
        h.ORDERS_PEERS: [],
        h.ORDERS_MASTER: None,
        h.ORDERS_BASE: "",
        h.ORDERS_BASE_SINCE: 0,
        h.ORDERS_SAVE: None,
        h.ORDERS_STOP: None,
        h.ORDERS_EXEC: _execs(state) if _kept(state) else [],
        h.ORDERS_HAZARD_PER_H: 0.0,
    }


def _working(state: JobState, attempt: AttemptState) -> dict[str, Any]:
    """What the members of an attempt that is checked or runs are all told."""
    members = [state.instances[token] for token in attempt.members]
    save = state.save
    return {
        h.ORDERS_PHASE: h.PHASE_CHECK if attempt.phase is GangPhase.CHECKING else h.PHASE_RUN,
        h.ORDERS_ATTEMPT: attempt.no,
        h.ORDERS_PEERS: [_peer(rank, m) for rank, m in enumerate(members)],
        h.ORDERS_MASTER: {"address": members[0].address, "port": attempt.master_port},
        h.ORDERS_BASE: attempt.base_wanted,
        h.ORDERS_BASE_SINCE: attempt.base_since,
        h.ORDERS_SAVE: None if save is None else {"seq": save.seq, "by": save.by},
        h.ORDERS_EXEC: _execs(state),
        h.ORDERS_HAZARD_PER_H: _hazard_per_h(state, attempt),
    }


def _hazard_per_h(state: JobState, attempt: AttemptState) -> float:
    """As of the newest save: that is when the next one is planned, by machines that have grown older."""
    members = [state.instances[token] for token in attempt.members]
    return gang_hazard_per_h(members, attempt.saves[-1].at if attempt.saves else attempt.begun_at)


def _peer(rank: int, machine: InstanceState) -> dict[str, Any]:
    return {"rank": rank, "address": machine.address, "probe_port": machine.probe_port}


def _places(state: JobState) -> dict[Slot, InstanceState]:
    """By slot the newest machine that has joined and can be counted on; empty while a slot has none.

    One of a move that is not ready as a whole comes last.
    """
    found: dict[Slot, InstanceState] = {}
    for m in state.instances.values():
        if m.joined_at is None or m.doomed:
            continue
        other = found.get(m.slot)
        if other is None or (other.move == 0, other.launch_no) < (m.move == 0, m.launch_no):
            found[m.slot] = m
    slots = state.task.gang.slots
    return {slot: found[slot] for slot in slots} if all(slot in found for slot in slots) else {}


def _stop(state: JobState, *, save: bool) -> dict[str, Any]:
    # Ranks of an attempt that already failed have nothing left to save together: they go at once.
    grace = state.task.stop_grace_s if save else 0.0
    return {"save": save, "grace_s": grace, "reason": state.why or "the attempt ended"}


def _spec(state: JobState, machine: InstanceState, *, member: bool) -> dict[str, Any]:
    task, attempt = state.task, state.attempt
    group = task.gang.groups[machine.slot.group]
    folder, shared = checkpoint_place(state, machine)
    every = task.checkpoint.every_s
    return {
        h.SPEC_JOB: state.id,
        h.SPEC_TASK_NAME: task.name,
        h.SPEC_SETUP: task.setup,
        h.SPEC_RUN: task.run,
        h.SPEC_ARGV: list(task.argv) or None,
        h.SPEC_RANKS_PER_NODE: group.ranks_per_node,
        h.SPEC_NUM_NODES: task.gang.size,
        h.SPEC_ENVS: dict(task.envs),
        h.SPEC_SECRET_NAMES: list(task.secret_names),
        h.SPEC_WORKDIR: task.workdir_digest,
        h.SPEC_FILE_MOUNTS: {
            m.target: {"workdir": m.digest} if m.digest else {"source": m.source} for m in task.mounts
        },
        h.SPEC_CHECKPOINT_DIR: folder,
        h.SPEC_CHECKPOINT_SHARED: shared,
        h.SPEC_CHECKPOINT_EVERY: "auto" if every is None else f"{every:g}",
        h.SPEC_CHECKPOINT_KEEP: task.checkpoint.keep,
        h.SPEC_CHECKPOINT_MIRROR: mirror_place(state),
        **({h.SPEC_CHECKPOINT_AUDIT: task.checkpoint.audit} if task.checkpoint.audit else {}),
        h.SPEC_CHECKPOINT_MODE: task.checkpoint.mode.value,
        h.SPEC_ON_NOTICE: task.checkpoint.on_notice,
        h.SPEC_OUTPUTS: list(state.task.outputs),
        h.SPEC_RELEASE_OUTPUTS: member and attempt is not None and _outputs_due(state, attempt, machine),
        h.SPEC_SLOT: machine.slot.index,
        h.SPEC_STOP_GRACE_S: task.stop_grace_s,
    }


def mirror_place(state: JobState) -> str:
    """The second place of checkpoints, of this job alone: another job's are never its own. Empty = none."""
    mirror = state.task.checkpoint.mirror.rstrip("/")
    return f"{mirror}/{state.id}" if mirror else ""


def checkpoint_place(state: JobState, machine: InstanceState) -> tuple[str, bool]:
    """Folder of the checkpoints on a machine, and whether all machines see the same one.

    Empty = the agent's choice on its disk.
    """
    wanted = state.task.checkpoint.dir
    if machine.shared_folder:
        root = f"{machine.shared_folder}/{state.id}/checkpoints"
        if not wanted:
            return root, True
        return wanted, wanted.startswith(machine.shared_folder + "/")
    return wanted, state.task.gang.size == 1
