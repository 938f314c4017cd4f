"""Start a script, or everstep around it, from given random states: ``python seeded.py SEED (-m MODULE | FILE) ARGS...``

For scripts that set no seed. A plain run and a first launch get the same seed; relaunches get others, so that a state
which is not brought back by everstep itself shows. Nothing but the three generators is touched.
"""

from __future__ import annotations

import random
import runpy
import sys
from pathlib import Path


def main(arguments: list[str]) -> None:
    """Seed python, numpy and torch; then become what was asked for."""
    seed, *target = arguments
    import numpy as np
    import torch

    random.seed(int(seed))
    np.random.seed(int(seed))
    torch.manual_seed(int(seed))
    if target[0] == "-m":
        sys.path.pop(0)  # this file's folder
        sys.argv = target[1:]
        runpy.run_module(target[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(target[0]).resolve().parent)
        sys.argv = target
        runpy.run_path(target[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
