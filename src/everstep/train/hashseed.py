"""One hash seed for a script and all its relaunches: the order of sets of texts depends on it.

The interpreter reads the seed only when it starts, so importing this starts ``python -m everstep.train.run`` anew if it
has none. It has to be imported before torch, which takes a second.
"""

from __future__ import annotations

import itertools
import os
import sys

VARIABLE = "PYTHONHASHSEED"
_RUNNER = "everstep.train.run"


def settle() -> None:
    """Start ``python -m everstep.train.run`` anew with a fixed hash seed, if it has none; nothing else."""
    if os.environ.get(VARIABLE, "random") != "random" or not is_runner(sys.orig_argv):
        return
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, VARIABLE: "0"})


def is_runner(command: list[str]) -> bool:
    """True for ``python [options] -m everstep.train.run ...``."""
    for word, following in itertools.pairwise(command[1:]):
        if word == "-m":
            return following == _RUNNER
        if not word.startswith("-"):
            return False
    return False


settle()
