"""Make a training script survive preemption: save, resume exactly, keep the data position.

    from everstep import train

    run = train.attach(model=model, optimizer=optimizer)      # restores, if there is something to restore
    for step, batch in run.steps(loader, total=1000):         # goes on behind the last saved step
        ...
        run.progress(loss=loss)

Those who own their loop write ``with train.attach(...) as run:`` and call ``run.step_done()`` after each step; the loop
begins at ``run.step``, and everything that decides on the data is theirs to attach.

Needs Python 3.10, torch and the standard library, nothing else of everstep; without an agent a folder is enough.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

from everstep.model import handshake as _handshake
from everstep.train import hashseed as _hashseed  # noqa: F401  # first: it may start the process anew
from everstep.train.attempt import Refused, Run, Saved, Stateful
from everstep.train.compiler import postpone as _postpone
from everstep.train.opening import attach
from everstep.train.reports import Reporter as _Reporter
from everstep.train.reports import numbers as _numbers

_postpone()

__all__ = ["Refused", "Run", "Saved", "Stateful", "attach", "progress"]


def progress(step: int, total: int | None = None, **metrics: float) -> None:
    """Report the position of training to the agent, for scripts that save by themselves. Without an agent, nothing.

    Args:
        step: number of steps done, over all attempts.
        total: number of steps there will be; makes the work known: deadlines and estimates need it.
        metrics: numbers to show, e.g. ``loss=0.3``.
    """
    stepped = step > _reporter().step
    _reporter().progress(step, total, _numbers(metrics), stepped=stepped)


@functools.cache
def _reporter() -> _Reporter:
    folder = os.environ.get(_handshake.ENV_REPORT_DIR)
    return _Reporter(Path(folder) if folder else None, int(os.environ.get("RANK") or 0))
