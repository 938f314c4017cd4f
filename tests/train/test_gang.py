"""The ranks of an attempt, as the process group that the script made has them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import atexit, os, sys, time
import torch.distributed as dist
from everstep.train.gang import Gang

rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
slept, sleep = [], time.sleep
time.sleep = lambda seconds: slept.append(seconds) or sleep(seconds)
atexit.register(lambda: print("waited", slept, flush=True))
for _ in range(2):
    gang = Gang.join(os.environ)
print("gathered", gang.gather(rank), flush=True)
"""


@pytest.mark.parametrize(("world", "waited"), [(1, "waited []"), (2, "waited [0.02]")])
def test_several_ranks_end_once_gloo_has_let_go(tmp_path: Path, world: int, waited: str) -> None:
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen([*command, str(rank), str(world), str(tmp_path / "store")], text=True, stdout=subprocess.PIPE)
        for rank in range(world)
    ]
    try:
        for rank in ranks:
            said, _ = rank.communicate(timeout=90)
            assert said.splitlines() == [f"gathered {list(range(world))}", waited]
            assert rank.returncode == 0
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
