"""Which ranks have a warm standby (see ``standby``), and when.

Only where nothing is unusual: the command is ``python [-u] SCRIPT.py ARGUMENTS``, and the script begins by importing
torch or is one that the start-up shim will run: then it is the runner that waits. In every other case, and
whenever anything goes wrong, ranks are started in the usual way. A standby costs the memory of one idle interpreter per
rank; ``EVERSTEP_WARM_STANDBY: "0"`` among the task's ``envs`` switches it off.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pkgutil
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Callable

from everstep.agent.attempt import rank_commands
from everstep.agent.context import Context
from everstep.agent.orders import Orders
from everstep.agent.standby import ENV_HOOK
from everstep.agent.standby_hook import PROBED
from everstep.agent.supervisor import Command

log = logging.getLogger(__name__)

ENV_SWITCH = "EVERSTEP_WARM_STANDBY"
_PATH = "PYTHONPATH"
_RANK_BYTES = 512 << 20
_SHARE = 4  # standbys may take so small a part (1/4) of the memory that is available
_PROBE_S = 20.0
_LOAD_S = 20.0
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./\- \t]+")
_PYTHON = re.compile(r"python[0-9.]*")


class Reserve:
    """Calls up standbys for the next attempt on this node. For the main thread; what takes time is done in another."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._scout = Scout(context.settings.state / "standby")
        self._round = 0

    def call_up(self, orders: Orders, then: Callable[[], None] = lambda: None) -> None:
        """Have standbys for the ranks that an attempt like that of ``orders`` would start; harmless if there are.

        ``then`` is called once: when they have imported what they can, at once if there will be none, and in any case
        after a while.
        """
        nowhere = self._context.settings.state / "none"
        # What is not known yet differs from attempt to attempt anyway.
        guess = replace(orders, attempt=orders.attempt or 0, master=orders.master or ("", 0))
        commands = rank_commands(self._context, guess, reports=nowhere, control=nowhere)
        asked, post = self._round, self._context.mailbox.post
        waiting = [then]

        def go_on() -> None:
            if waiting:
                waiting.pop()()

        def stand_by(hook: dict[str, str] | None) -> None:
            if hook is None or asked != self._round:
                go_on()
            else:
                self._context.supervisor.stand_by(commands, hook, lambda: post(go_on))

        def find_out() -> None:
            hook = None
            try:
                hook = self._scout.hook_for(commands)
            except Exception:  # whatever it is, ranks can be started without
                log.exception("no warm standby")
            post(lambda: stand_by(hook))

        threading.Thread(target=find_out, name="standby", daemon=True).start()
        self._context.mailbox.later(_LOAD_S, go_on)

    def call_off(self) -> None:
        """Those that are not started yet come too late: the ranks start now and need the processor themselves."""
        self._round += 1

    def disband(self) -> None:
        """What standbys are made from (files, packages) is about to change."""
        self._round += 1
        self._context.supervisor.stand_down()


class Scout:
    """Finds out whether commands can have standbys; remembers what it learnt about interpreters.

    Args:
        folder: where the hook is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._probed: dict[str, bool] = {}

    def hook_for(self, commands: Sequence[Command]) -> dict[str, str] | None:
        """Variables with which the commands (of one node, so alike) become standbys; None if they must not.

        May start the interpreter once and wait for it: not for the main thread. Raises OSError and SubprocessError.
        """
        command = commands[0]
        env = command.env
        if env.get(ENV_SWITCH, "1").strip().lower() in ("0", "off", "false", "no") or not _roomy(len(commands)):
            return None
        words = plain_words(command.argv, env)
        parts = None if words is None else python_and_script(words, env, command.cwd)
        if parts is None:
            return None
        python, script = parts
        if b"torch" not in script.read_bytes() or not self._lets_us(python, command):
            return None
        return self._variables(env, str(script))

    def _variables(self, env: Mapping[str, str], told: str) -> dict[str, str]:
        others = env.get(_PATH, "")
        return {_PATH: f"{self._folder}{os.pathsep}{others}" if others else str(self._folder), ENV_HOOK: told}

    def _lets_us(self, python: str, command: Command) -> bool:
        """Whether the interpreter really stops before a script: asked with a program that does nothing."""
        if python not in self._probed:
            self._write_hook()
            done = subprocess.run(
                [python, "-c", ""],
                env={**command.env, **self._variables(command.env, "probe")},
                cwd=str(command.cwd),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=_PROBE_S,
                check=False,
            )
            self._probed[python] = done.returncode == PROBED
        return self._probed[python]

    def _write_hook(self) -> None:
        source = pkgutil.get_data("everstep.agent", "standby_hook.py")
        assert source is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "sitecustomize.py").write_bytes(source)


def plain_words(argv: Sequence[str], env: Mapping[str, str]) -> list[str] | None:
    """The words of a command that a shell would not treat in any way; None for everything else."""
    if len(argv) != 3 or list(argv[:2]) != ["bash", "-c"]:
        return list(argv)
    text = argv[2].strip()
    unusual = "BASH_ENV" in env or any(name.startswith("BASH_FUNC_") for name in env)
    if unusual or not _PLAIN.fullmatch(text):
        return None
    words = text.split()
    return words[1:] if words[0] == "exec" else words


def python_and_script(words: Sequence[str], env: Mapping[str, str], cwd: Path) -> tuple[str, Path] | None:
    """The interpreter (a path) and the script of ``python [-u] SCRIPT.py ...``; None for everything else."""
    if not words or not _PYTHON.fullmatch(os.path.basename(words[0])):
        return None
    rest = words[2:] if words[1:2] == ["-u"] else words[1:]
    if not rest or rest[0].startswith("-") or not rest[0].endswith(".py"):
        return None
    found = shutil.which(words[0] if "/" not in words[0] else str(cwd / words[0]), path=env.get("PATH"))
    script = cwd / rest[0]
    if found is None or not _is_program(found) or not script.is_file():
        return None
    return found, script


def _is_program(path: str) -> bool:
    """A program and no script: a wrapper may do things before it starts Python."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"
    return False


def _roomy(ranks: int) -> bool:
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return ranks * _RANK_BYTES * _SHARE <= int(line.split()[1]) << 10
    return False
