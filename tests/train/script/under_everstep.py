"""Runs a script as ``python -m everstep.train.run`` does; with STOP_AT=N the process gets SIGNAL at its N-th step.
MODULES_IN stands for PYTHONPATH, which the process that these are forked from has read already."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from everstep.train.run import main


def arm(stop_at: int, number: int) -> None:
    """Send a signal to this process at a step; the steps before the relaunch do not count."""
    done = 0

    def stepped(*_: Any) -> None:
        nonlocal done
        done += 1
        if done == stop_at:
            os.kill(os.getpid(), number)

    register_optimizer_step_post_hook(stepped)


if "STOP_AT" in os.environ:
    arm(int(os.environ["STOP_AT"]), getattr(signal, os.environ.get("SIGNAL", "SIGKILL")))
if "MODULES_IN" in os.environ:
    sys.path.insert(1, os.environ["MODULES_IN"])
main(sys.argv[1:])
