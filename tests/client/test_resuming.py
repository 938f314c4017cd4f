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
NOBODY = "nobody; a lost machine starts it anew"
NO_TORCH = "nobody, as far as is to be seen: train.py imports no torch; a lost machine starts it anew"
NOT_SEEN = "not to be told from here: everstep resumes PyTorch scripts, anything else starts anew"


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
        ("python train.py", "import json", NO_TORCH),
        ("python train.py", "import torch.distributed.run", NOT_SEEN),
        ("./train", PLAIN, NOT_SEEN),
        ("python elsewhere.py", PLAIN, NOT_SEEN),
    ],
)
def test_auto_looks_at_the_script(run: str, source: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "other.py").write_text("import json")
    assert resumed_by(Task(run=run), tmp_path) == expected
    assert resumed_by(Task(argv=tuple(run.split())), tmp_path) == expected
    assert resumed_by(Task(run=run), None) == NOT_SEEN, "it lies on the machine, and nobody knows what is in it"


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("sleep 5", NOBODY),
        ("python -c 'import torch; print(1) && 2'", NOBODY),
        ("A=1 python3 -uc 'x'; echo done && sleep 1\nls | cat", NOBODY),
        ("sleep 5; make", NOT_SEEN),
        ("bash train.sh", NOT_SEEN),
        ("echo $(./train)", NOT_SEEN),
        ("echo 'open", NOT_SEEN),
        ("torchrun --nproc-per-node 2 -m there", NOT_SEEN),
    ],
)
def test_a_command_that_trains_nothing_is_told_from_one_that_may(run: str, expected: str) -> None:
    assert resumed_by(Task(run=run), None) == expected


def test_words_need_no_shell() -> None:
    assert resumed_by(Task(argv=("python", "-c", "import torch")), None) == NOBODY
    assert resumed_by(Task(argv=("python", "there.py")), None) == NOT_SEEN


@pytest.mark.parametrize("mode", [CheckpointMode.SCRIPT, CheckpointMode.LIBRARY, CheckpointMode.OFF])
def test_the_other_modes_need_no_look(mode: CheckpointMode) -> None:
    text = resumed_by(Task(run="./train", checkpoint=CheckpointSpec(mode=mode)), None)
    assert text.endswith(f"(checkpoint.mode: {mode.value})")
