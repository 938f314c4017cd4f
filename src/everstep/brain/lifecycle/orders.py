"""What each machine should be doing now: a function of the job's state, so that a restarted server knows it at once."""

from __future__ import annotations

from typing import Any

from everstep.brain.checkpoint.hazard import gang_hazard_per_h
from everstep.model import handshake as h
from everstep.model.causes import Cause
from everstep.model.job import AttemptState, GangPhase, Goal, InstancePhase, InstanceState, JobPhase, JobState

_OVER = (JobPhase.RELEASING, JobPhase.PAUSED, JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED)


def orders(state: JobState, machine: InstanceState) -> dict[str, Any]:
    """The orders document of a machine (``ORDERS_*`` of the handshake), without ``version`` and without secrets.

    Args:
        state: the job.
        machine: one of ``state.instances``.
    """
    attempt = state.attempt
    member = attempt is not None and machine.token in attempt.members
    document = _resting(state, machine)
    if state.phase in _OVER and not _kept(state):
        return {**document, h.ORDERS_PHASE: h.PHASE_RELEASE, h.ORDERS_STOP: _stop(state, save=False)}
    if machine.phase in (InstancePhase.BOOTING, InstancePhase.JOINED):
        return {**document, h.ORDERS_PHASE: h.PHASE_PREPARE}
    if attempt is None or not member or attempt.phase is GangPhase.ENDED:
        return {**document, h.ORDERS_STOP: _stop(state, save=False)}
    if attempt.phase is GangPhase.STOPPING:
        return {**document, h.ORDERS_STOP: _stop(state, save=state.goal in (Goal.RUN, Goal.PAUSE))}
    return {**document, **_working(state, attempt, machine)}


def outputs_due(state: JobState, machine: InstanceState) -> bool:
    """Whether this machine brings outputs home before it leaves (rule 10).

    A shared checkpoint folder outlives the machines; what the task names, and a checkpoint folder on the machine's own
    disk, do not. Of the nodes of a gang the one of rank 0 does it, or each its own when nothing is shared.
    """
    attempt = state.attempt
    if attempt is None or machine.token not in attempt.members or machine.phase is InstancePhase.ENDED:
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


def _resting(state: JobState, machine: InstanceState) -> dict[str, Any]:
    return {
        h.ORDERS_PHASE: h.PHASE_HOLD,
        h.ORDERS_ATTEMPT: state.attempt_no or None,
        h.ORDERS_SPEC: _spec(state, machine),
        h.ORDERS_NODE_RANK: None,
        h.ORDERS_PEERS: [],
        h.ORDERS_MASTER: None,
        h.ORDERS_BASE: "",
        h.ORDERS_SAVE: None,
        h.ORDERS_STOP: None,
        h.ORDERS_EXEC: _execs(state) if _kept(state) else [],
        h.ORDERS_HAZARD_PER_H: 0.0,
    }


def _working(state: JobState, attempt: AttemptState, machine: InstanceState) -> dict[str, Any]:
    members = [state.instances[token] for token in attempt.members]
    save = state.save
    return {
        h.ORDERS_PHASE: h.PHASE_CHECK if attempt.phase is GangPhase.CHECKING else h.PHASE_RUN,
        h.ORDERS_ATTEMPT: attempt.no,
        h.ORDERS_NODE_RANK: attempt.members.index(machine.token),
        h.ORDERS_PEERS: [
            {"rank": rank, "address": m.address, "probe_port": m.probe_port} for rank, m in enumerate(members)
        ],
        h.ORDERS_MASTER: {"address": members[0].address, "port": attempt.master_port},
        h.ORDERS_BASE: attempt.base_wanted,
        h.ORDERS_SAVE: None if save is None else {"seq": save.seq, "by": save.by},
        h.ORDERS_EXEC: _execs(state),
        h.ORDERS_HAZARD_PER_H: gang_hazard_per_h(members, attempt.begun_at),
    }


def _stop(state: JobState, *, save: bool) -> dict[str, Any]:
    # Ranks of an attempt that already failed have nothing left to save together: they go at once.
    grace = state.task.stop_grace_s if save else 0.0
    return {"save": save, "grace_s": grace, "reason": state.why or "the attempt ended"}


def _spec(state: JobState, machine: InstanceState) -> dict[str, Any]:
    task = state.task
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
        h.SPEC_CHECKPOINT_MIRROR: _mirror(state),
        h.SPEC_CHECKPOINT_MODE: task.checkpoint.mode.value,
        h.SPEC_ON_NOTICE: task.checkpoint.on_notice,
        h.SPEC_OUTPUTS: list(state.task.outputs),
        h.SPEC_RELEASE_OUTPUTS: outputs_due(state, machine),
        h.SPEC_SLOT: machine.slot.index,
        h.SPEC_STOP_GRACE_S: task.stop_grace_s,
    }


def _mirror(state: JobState) -> str:
    """A place of this job alone: another job's checkpoints are never its own."""
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
