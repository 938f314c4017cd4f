"""Started by ``act`` in the place of the user's script: ``launch.py --dir DIR SCRIPT ...`` runs it under the runner."""

from __future__ import annotations

import os
import sys
from importlib import import_module


def _as_it_is() -> None:
    """Begin the script again without the runner; nothing of it has run yet."""
    started: list[str] = getattr(sys, "orig_argv")  # noqa: B009  # this file runs on 3.10 and newer, its folder on 3.9
    options = started[1 : started.index(__file__)]
    # No process has this number: whoever looks leaves it and what it starts alone.
    env = {**os.environ, "EVERSTEP_SHIM_PID": "0"}
    os.execve(sys.executable, [sys.executable, *options, *sys.argv[3:]], env)


if __name__ == "__main__":
    try:
        run = import_module("everstep.train.run")  # of the library beside the hook, see `act`
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        print(f"everstep: not resumed automatically, the runner does not start ({text})", file=sys.stderr, flush=True)
        _as_it_is()
    run.main(sys.argv[1:])
