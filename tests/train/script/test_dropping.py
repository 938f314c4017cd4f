"""Groups that are dropped right after their last collective, as at the end of many scripts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch.distributed as dist

from everstep.train.script.dropping import patient_drops

TURNS = 40
"""Without patience about one in ten hangs (torch 2.13, two cores)."""
RANK = f"""
import sys, torch, torch.distributed as dist
from everstep.train.script.dropping import patient_drops

torch.set_num_threads(1)
rank, store = int(sys.argv[1]), dist.FileStore(sys.argv[2], 2)

def turn(number):
    dist.init_process_group("gloo", store=dist.PrefixStore(str(number), store), rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    model(torch.ones(4, 3)).sum().backward()
    dist.all_gather_object([None] * 2, number)
    dist.destroy_process_group()

with patient_drops():
    for number in range({TURNS}):
        turn(number)
"""


def test_no_rank_hangs_where_groups_are_dropped_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RANK]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path / "store")]) for rank in range(2)]
    try:
        assert [rank.wait(timeout=90) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def test_torch_is_as_it_was_afterwards() -> None:
    before = dist.destroy_process_group
    with patient_drops():
        assert dist.destroy_process_group is dist.distributed_c10d.destroy_process_group is not before
        assert dist.destroy_process_group.__name__ == "destroy_process_group"
    assert dist.destroy_process_group is dist.distributed_c10d.destroy_process_group is before
