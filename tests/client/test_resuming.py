"""What the plan says about who will save and resume."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.client.resuming import resumed_by
from everstep.model.task import CheckpointMode, CheckpointSpec, Task

PLAIN, LIBRARY = "import torch", "import torch\nfrom everstep import train"
OUTSIDE, ITSELF = (
    "everstep, from outside: train.py stays as it is",
    "train.py itself: everstep.train is used (train.py:2)",
)


@pytest.mark.parametrize(
    ("run", "source", "expected"),
    [
        ("python train.py --lr 1", PLAIN, OUTSIDE),
        ("pip install x\nLR=1 torchrun --nproc-per-node 2 train.py", PLAIN, OUTSIDE),
        ("python other.py; python train.py", PLAIN, OUTSIDE),
        ("python -m train", PLAIN, OUTSIDE),
        ("python train.py", LIBRARY, ITSELF),
        (
            "python train.py",
            "import lightning",
            "nobody: the loop of train.py is in the hands of Lightning (train.py:1), "
            "which everstep does not resume yet",
        ),
        ("python train.py", "import json", ""),
        ("python train.py", "import torch.distributed.run", ""),
        ("./train", PLAIN, ""),
        ("python elsewhere.py", PLAIN, ""),
    ],
)
def test_auto_looks_at_the_script(run: str, source: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "other.py").write_text("import json")
    assert resumed_by(Task(run=run), tmp_path) == expected
    assert resumed_by(Task(argv=tuple(run.split())), tmp_path) == expected
    assert resumed_by(Task(run=run), None) == "", "it lies on the machine, and nobody knows what is in it"


@pytest.mark.parametrize("mode", [CheckpointMode.SCRIPT, CheckpointMode.LIBRARY, CheckpointMode.OFF])
def test_the_other_modes_need_no_look(mode: CheckpointMode) -> None:
    text = resumed_by(Task(run="./train", checkpoint=CheckpointSpec(mode=mode)), None)
    assert text.endswith(f"(checkpoint.mode: {mode.value})")
