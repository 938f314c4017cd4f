"""Evidence for `everstep check`: what a training process did and how it ended, without touching its loops.

The folder is copied beside a start-up hook (`startup.py`, as ``sitecustomize.py``), as the package
``everstep_witness``, because importing anything below ``everstep.train`` would import torch before the script does. So
it uses the standard library alone and finds torch and numpy only where the script has imported them. Nothing happens
unless the variable ``EVERSTEP_WITNESS`` is set; it is taken out of the environment at once, so that children are left
alone.

The variable holds JSON:

    folder   where the evidence goes
    ranks    true: only ranks started by torchrun are witnessed, one file each
    seed     seed of python's and numpy's random numbers, null: as the operating system has it
    steps    end the script after this many steps of the whole training, null: never
    seconds  end it at the first step after this many seconds, null: never
    plain    trail of a plain run: tells at which step of the training this process goes on
    reached  steps of the training that earlier processes came to: it goes on there or before
    reported true: the report folder tells better where it goes on
    work     folder in which `linked` files are
    linked   relative paths of symbolic links which are replaced by copies before the script writes to them

``folder/rank-R.trail`` grows while the process runs, one line per fact, written at once, so that it survives SIGKILL:
``MONOTONIC_SECONDS WORD [NUMBER FINGERPRINT FINGERPRINT]``, the word being ``started``, ``torch`` (its import begins),
``ready`` (torch is there), ``step`` (number of the optimizer, fingerprints of its first and last parameter after and
before it), ``backward`` (only before the first step: for scripts without an optimizer). ``folder/rank-R.json`` is
written at the end (`state.py`).
"""

from __future__ import annotations

import os

VARIABLE = "EVERSTEP_WITNESS"


def start() -> None:
    """Witness this process if it is one to be witnessed. Called by the start-up hook, before the script."""
    told = os.environ.get(VARIABLE)
    if told is None:
        return
    import json

    wanted = json.loads(told)
    rank = os.environ.get("RANK")
    if wanted["ranks"] and rank is None:
        # torchrun itself: the ranks that it starts are meant.
        return
    del os.environ[VARIABLE]
    from .process import Witness

    Witness(wanted, rank=int(rank or 0)).install()
