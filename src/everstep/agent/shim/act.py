"""Decides about the process that starts here, and has its script run under ``everstep.train.run`` where that is due.

Every Python that `run` starts comes by here, so that what only scripts need is imported where it is needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from .command import Command, file_of, foreign_roots, is_users, read

ENV_SHIM = "EVERSTEP_SHIM"
"""The folder with ``hook`` and ``library``; where it is not set nothing happens."""
ENV_PID = "EVERSTEP_SHIM_PID"
"""The process that runs a script under the runner: not started anew a second time, nor is anything below it."""
ENV_LEDGER = "EVERSTEP_SHIM_LEDGER"
"""From the process that starts the runner to the runner: where to note that the script came to its end."""
ENV_WAITING = "EVERSTEP_SHIM_WAITING"
"""In a standby that has become the runner before its time: the command that it was started with, as JSON."""
ENV_STARTED = "EVERSTEP_SHIM_STARTED"
"""From such a standby to the runner: what a runner that is started now would have as environment, as JSON."""

_OLDEST = (3, 10)


def act() -> None:
    """Look at this process. Returns where its program shall run as it is; otherwise another program takes its place."""
    env = os.environ
    if env.get(ENV_PID) == str(os.getpid()):
        _settle_in(env[ENV_SHIM])
        return
    mode = env.get("EVERSTEP_CHECKPOINT_MODE")
    command = read(_argv())
    if ENV_PID in env or command is None or mode not in ("auto", "script"):
        return
    if _takes_over(command, mode):
        _start_runner(command)


def stand_in(hook: Mapping[str, str]) -> bool:
    """In a standby: become the runner now, if the script will be for it, so that waiting is of use to it.

    Args:
        hook: variables that make the runner wait as this process does.

    Returns:
        True in the runner: what it needs can be imported while it waits. False: this process waits as it is.
    """
    env = os.environ
    if ENV_WAITING in env:
        return True
    words = list(_argv())
    mode, command = env.get("EVERSTEP_CHECKPOINT_MODE"), read(words)
    if ENV_PID in env or command is None or mode not in ("auto", "script"):
        return False
    if _takes_over(command, mode, quietly=True):
        import json

        _start_runner(command, {**hook, ENV_WAITING: json.dumps(words)})
    return False


def awake() -> bool:
    """The time of a standby has come: what differs from attempt to attempt is known now.

    Returns:
        False: this is a runner, and would not be started so now.
    """
    env = os.environ
    if ENV_WAITING not in env:
        return True
    import json

    from . import ledger

    command = read(json.loads(env.pop(ENV_WAITING)))
    if command is None or not _takes_over(command, env.get("EVERSTEP_CHECKPOINT_MODE", ""), quietly=True):
        return False
    entry = ledger.begin(command, env)
    env[ENV_LEDGER] = entry.file
    env[ENV_STARTED] = json.dumps(dict(env))
    return entry.folder in _argv()


def _takes_over(command: Command, mode: str, *, quietly: bool = False) -> bool:
    """Whether a command of this interpreter is a training script for the runner; says why not where that matters."""
    # What comes first on the path of modules is put there when all hooks are through.
    first = os.getcwd() if command.is_module else os.path.dirname(os.path.realpath(command.target))
    path = [first, *sys.path]
    foreign = foreign_roots()
    script = file_of(command, path)
    if script is None or not is_users(script, foreign):
        return False
    roots = [one for one in path if one and is_users(os.path.join(one, "x"), foreign)]
    why = why_not(script, roots, mode, foreign)
    why = _unfit() or _unranked() if why == "" else why
    if why and not quietly:
        _say(f"{os.path.basename(script)} is not resumed automatically: {why}")
    return why == ""


def why_not(script: str, roots: Sequence[str], mode: str, foreign: tuple[str, ...]) -> str | None:
    """Why a script is left alone: a reason for people, None if there is nothing to say, "" if it is not."""
    from .look import look

    if mode == "auto":
        found = look(script, roots, foreign)
        if found.library or found.launches or not found.torch:
            return None
        if found.framework:
            return (
                f"its loop is in the hands of {found.framework}, which everstep does not resume yet; if killed, it "
                "starts from the beginning unless it loads its own checkpoints. To try anyway: checkpoint.mode: script"
            )
    return ""


def _unfit() -> str:
    """Why this Python cannot run scripts in our way; "" if it can."""
    from importlib import util

    if sys.version_info < _OLDEST:
        return f"this Python is {sys.version_info[0]}.{sys.version_info[1]}, at least 3.10 is needed"
    if util.find_spec("torch") is None:
        return "this Python has no torch"
    return ""


def _unranked() -> str:
    """Why a script on one of several machines cannot be run in our way; "" if it can, or if there is one machine."""
    nodes = int(os.environ.get("EVERSTEP_NUM_NODES") or 1)
    if nodes == 1 or os.environ.get("RANK"):
        return ""
    # Each machine for itself would save at a step of its own, and their ranks would not fit together any more.
    return (
        f"{nodes} machines run it and RANK does not say which is which; start it with torchrun, or set ranks_per_node"
    )


def _start_runner(command: Command, more: Mapping[str, str] | None = None) -> None:
    from . import ledger

    folder = os.environ[ENV_SHIM]
    entry = ledger.begin(command, os.environ)
    argv = [sys.executable, *command.options, os.path.join(folder, "hook", "everstep_shim", "launch.py")]
    argv += ["--dir", entry.folder, *(["-m"] if command.is_module else []), command.target, *command.arguments]
    env = {**os.environ, ENV_PID: str(os.getpid()), ENV_LEDGER: entry.file, **(more or {})}
    # The order of sets of strings depends on it: it must be the same in every attempt.
    env.setdefault("PYTHONHASHSEED", "0")
    os.execve(sys.executable, argv, env)


def _settle_in(folder: str) -> None:
    """In the runner's process: everstep becomes importable, the hook disappears from what the script can see."""
    from . import ledger

    hook = os.path.join(folder, "hook")
    own = [place for place, entry in enumerate(sys.path) if entry == hook]
    sys.path.insert(own[0] if own else 0, os.path.join(folder, "library"))
    left = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != hook]
    os.environ.pop("PYTHONPATH", None)
    if left:
        os.environ["PYTHONPATH"] = os.pathsep.join(left)
    ledger.end_with_process(os.environ.pop(ENV_LEDGER, ""))


def _argv() -> Sequence[str]:
    """How this interpreter was started, its own options included."""
    known: Sequence[str] | None = getattr(sys, "orig_argv", None)  # from Python 3.10 on
    if known is not None:
        return known
    with open("/proc/self/cmdline", "rb") as file:
        return [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]


def _say(text: str) -> None:
    """One line in the log; the first of several ranks speaks for all."""
    if os.environ.get("RANK", "0") in ("", "0"):
        print(f"everstep: {text}", file=sys.stderr, flush=True)
