"""The ranks of one attempt, and how they agree."""

from __future__ import annotations

import atexit
import functools
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from everstep.model import handshake

_LET_GO_S = 0.02
"""Time for gloo's worker threads to let go: they need microseconds once nobody holds the interpreter's lock."""


def let_go() -> None:
    """Wait until no worker thread of gloo can hold what it has worked on; before a group is dropped, and at the end.

    Such a thread tells that a collective is done before it lets go of its tensors, for which it needs the interpreter's
    lock. Once the interpreter ends it gets that no more, and the process dies of SIGABRT with all its work done
    ("terminate called without an active exception", torch 2.13; https://github.com/pytorch/pytorch/issues/190489).
    """
    time.sleep(_LET_GO_S)


@functools.cache
def _let_go_at_exit() -> None:
    """However often a process joins."""
    atexit.register(let_go)


@dataclass(frozen=True)
class Gang:
    """This process among the ranks of its attempt. All ranks must call every method, in the same order.

    Attributes:
        rank: of this process, from 0.
        world_size: number of ranks.
        node: number of this machine, from 0.
        nodes: number of machines.
        leads_node: true for one rank of each machine.
        where: name of this machine for manifests.
        group: a gloo group of all ranks, None for a single process.
    """

    rank: int = 0
    world_size: int = 1
    node: int = 0
    nodes: int = 1
    leads_node: bool = True
    where: str = ""
    group: Any = None

    @staticmethod
    def join(env: Mapping[str, str]) -> Gang:
        """The gang of the process group that the script made; a single process if it made none.

        Raises:
            RuntimeError: the environment promises several ranks and there is no process group yet.
        """
        where = env.get(handshake.ENV_INSTANCE) or socket.gethostname()
        joined = dist.is_available() and dist.is_initialized()
        promised = int(env.get("WORLD_SIZE") or 1)
        if not joined:
            if promised > 1:
                raise RuntimeError(
                    f"WORLD_SIZE is {promised} but there is no process group: call "
                    "torch.distributed.init_process_group() before everstep.train.attach()"
                )
            return Gang(where=where)
        world = dist.get_world_size()
        local_world = int(env.get("LOCAL_WORLD_SIZE") or env.get(handshake.ENV_RANKS_PER_NODE) or 0)
        nodes = int(env.get(handshake.ENV_NUM_NODES) or 0) or (world // local_world if local_world else 1)
        local = int(env.get("LOCAL_RANK") or dist.get_rank() % max(1, world // max(1, nodes)))
        node = int(env.get(handshake.ENV_NODE_RANK) or env.get("GROUP_RANK") or 0)
        group = dist.new_group(backend="gloo") if world > 1 else None
        if group is not None:
            _let_go_at_exit()
        return Gang(dist.get_rank(), world, node, nodes, local == 0, where, group)

    def agree(self, *wishes: bool) -> tuple[bool, ...]:
        """Each wish, true for everybody if it is true for anybody. One small all-reduce; free for a single process."""
        if self.group is None:
            return wishes
        votes = torch.tensor([int(wish) for wish in wishes], dtype=torch.int32)
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.group)
        return tuple(bool(vote) for vote in votes.tolist())

    def gather(self, mine: Any) -> list[Any]:
        """What every rank gave, by rank."""
        if self.group is None:
            return [mine]
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, mine, group=self.group)
        return everyone

    def tell(self, mine: Any) -> Any:
        """What rank 0 gave."""
        if self.group is None:
            return mine
        box = [mine]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]
