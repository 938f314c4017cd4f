"""The environment of what the user wrote: torch's names, torchrun's, SkyPilot's, and our own twins.

``run`` is executed once per node, as in SkyPilot: NODE_RANK, MASTER_ADDR, MASTER_PORT and torchrun's ``PET_*`` (a
static rendezvous, so that plain ``torchrun train.py`` works on any number of nodes) are always set. RANK, LOCAL_RANK,
WORLD_SIZE, LOCAL_WORLD_SIZE and GROUP_RANK only where the agent starts the ranks itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.agent import shimming
from everstep.agent.orders import Orders
from everstep.agent.settings import BOOT_NAMES
from everstep.agent.supervisor import ENV_MARK
from everstep.model import handshake as hs


@dataclass(frozen=True)
class Node:
    """What does not change while this agent lives."""

    instance: str
    address: str
    gpus: int
    workdir: Path
    checkpoints: Path
    mark: str
    shim: Path | None = None
    """Where the start-up shim is installed."""
    objects: Path | None = None
    """The socket on which ranks ask for signed URLs."""


def base(node: Node, inherited: Mapping[str, str], orders: Orders) -> dict[str, str]:
    """For set-up, exec and ranks alike.

    What was inherited (without our secrets), then the job's own, then what is ours.
    """
    env = {name: value for name, value in inherited.items() if name not in BOOT_NAMES}
    env["PYTHONUNBUFFERED"] = "1"  # a log that arrives after the crash is no log
    env.update(orders.spec.envs)
    task_id = f"{orders.spec.job}_{orders.spec.name}" if orders.spec.name else orders.spec.job
    addresses = "\n".join(peer.address for peer in sorted(orders.peers, key=lambda peer: peer.rank)) or node.address
    ours = {
        hs.ENV_HANDSHAKE: str(hs.HANDSHAKE_VERSION),
        hs.ENV_JOB: orders.spec.job,
        hs.ENV_TASK_ID: task_id,
        hs.ENV_INSTANCE: node.instance,
        hs.ENV_NODE_RANK: str(orders.node_rank),
        hs.ENV_NODE_IPS: addresses,
        hs.ENV_NUM_NODES: str(orders.spec.num_nodes),
        hs.ENV_NUM_GPUS_PER_NODE: str(node.gpus),
        hs.ENV_CHECKPOINT_DIR: str(checkpoint_dir(node, orders)),
        hs.ENV_CHECKPOINT_SHARED: "1" if orders.spec.checkpoint_shared else "0",
        hs.ENV_CHECKPOINT_EVERY: orders.spec.checkpoint_every,
        hs.ENV_CHECKPOINT_KEEP: str(orders.spec.checkpoint_keep),
        hs.ENV_CHECKPOINT_MODE: orders.spec.checkpoint_mode,
        ENV_MARK: node.mark,
    }
    if orders.spec.checkpoint_mirror:  # else what the task sets by itself stands
        ours[hs.ENV_CHECKPOINT_MIRROR] = orders.spec.checkpoint_mirror
        if node.objects is not None:
            ours[hs.ENV_OBJECTS] = str(node.objects)
    if orders.spec.checkpoint_audit:
        ours[hs.ENV_CHECKPOINT_AUDIT] = str(orders.spec.checkpoint_audit)
    for name in ("NODE_RANK", "NODE_IPS", "NUM_NODES", "NUM_GPUS_PER_NODE", "TASK_ID"):
        ours["SKYPILOT_" + name] = ours["EVERSTEP_" + name]
    ours["SKYPILOT_SETUP_NODE_RANK"] = ours[hs.ENV_NODE_RANK]
    ours["SKYPILOT_SETUP_NODE_IPS"] = addresses
    env.update(ours)
    return env


def run(node: Node, inherited: Mapping[str, str], orders: Orders, *, reports: Path, control: Path) -> dict[str, str]:
    """For the shell ``run`` of one attempt (and the base of each rank's)."""
    if orders.master is None:
        raise ValueError("orders without a master cannot be run")
    address, port = orders.master
    env = base(node, inherited, orders)
    ranks = orders.spec.ranks_per_node or node.gpus or 1
    env.update(
        {
            hs.ENV_ATTEMPT: str(orders.attempt),
            hs.ENV_BASE: orders.base,
            hs.ENV_BASE_SINCE: str(orders.base_since or ""),
            hs.ENV_REPORT_DIR: str(reports),
            hs.ENV_CONTROL_FILE: str(control),
            hs.ENV_HAZARD_PER_H: repr(orders.hazard_per_h),
            hs.ENV_RANKS_PER_NODE: str(ranks),
            "NODE_RANK": str(orders.node_rank),
            "MASTER_ADDR": address,
            "MASTER_PORT": str(port),
            "PET_RDZV_BACKEND": "static",
            "PET_NNODES": str(orders.spec.num_nodes),
            "PET_NODE_RANK": str(orders.node_rank),
            "PET_MASTER_ADDR": address,
            "PET_MASTER_PORT": str(port),
            "PET_NPROC_PER_NODE": str(ranks),
        }
    )
    env.update(shimming.variables(node.shim, orders.spec.checkpoint_mode, env))
    return env


def rank(run_env: Mapping[str, str], orders: Orders, local_rank: int) -> dict[str, str]:
    """For one process that the agent starts itself."""
    per_node = orders.spec.ranks_per_node or 1
    return {
        **run_env,
        "RANK": str(orders.node_rank * per_node + local_rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(orders.spec.num_nodes * per_node),
        "LOCAL_WORLD_SIZE": str(per_node),
        "GROUP_RANK": str(orders.node_rank),
    }


def place(node: Node, path: str) -> Path:
    """A path of the task on this node: absolute, below the home folder (``~``), or below the working folder."""
    return node.workdir / os.path.expanduser(path)


def checkpoint_dir(node: Node, orders: Orders) -> Path:
    """Where the job's checkpoints are on this node; a job that names no folder gets one on the machine's disk."""
    return place(node, orders.spec.checkpoint_dir) if orders.spec.checkpoint_dir else node.checkpoints


def inherited() -> dict[str, str]:
    """The agent's own environment, on which users' processes build."""
    return dict(os.environ)
