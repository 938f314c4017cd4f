"""Warm standby: for each rank of the next attempt an interpreter that has imported torch and waits for the word to go.

Starting Python and importing torch (with what an optimizer imports when it is made) is most of the time of a restart.
A standby is started exactly as the rank would be, with the same command, folder and environment, and stops before the
first line of the script (see ``standby_hook``). When the attempt begins, the keeper gives it the variables that differ;
the interpreter then runs the script by itself: ``sys.argv``, ``__main__``, tracebacks, exit codes are the usual ones.

This is the keeper's side; what may have a standby, and when, is decided in ``reserve``.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from typing import Any

from everstep.model import handshake as hs

ENV_HOOK = "EVERSTEP_STANDBY"

CHANGING = frozenset(
    {
        hs.ENV_ATTEMPT, hs.ENV_BASE, hs.ENV_BASE_SINCE, hs.ENV_REPORT_DIR, hs.ENV_CONTROL_FILE, hs.ENV_HAZARD_PER_H,
        hs.ENV_NODE_RANK, hs.ENV_NODE_IPS, "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS", "SKYPILOT_SETUP_NODE_RANK",
        "SKYPILOT_SETUP_NODE_IPS", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT", "PET_NODE_RANK", "PET_MASTER_ADDR",
        "PET_MASTER_PORT", "RANK", "GROUP_RANK",
    }
)  # fmt: skip
"""What may differ from attempt to attempt: read when a process group is made, never on import."""


class Standby:
    """One waiting process, in the keeper that started it.

    Attributes:
        pid: of the process that will be the rank.
        output: read end of what it prints.
        link: becomes readable when it has imported what it can, or is gone.
    """

    def __init__(self, pid: int, output: int, link: socket.socket, wire: Mapping[str, Any]) -> None:
        self.pid = pid
        self.output = output
        self.link = link
        self._wire = wire

    def fits(self, proc: Mapping[str, Any]) -> bool:
        """Whether it can become ``proc``: the same but for variables that may change."""
        if (self._wire["argv"], self._wire["cwd"]) != (proc["argv"], proc["cwd"]):
            return False
        mine, its = self._wire["env"], proc["env"]
        return all(name in CHANGING or mine.get(name) == its.get(name) for name in {*mine, *its})

    def go(self, proc: Mapping[str, Any]) -> None:
        """Let it become ``proc``; raises OSError if it is gone."""
        env = proc["env"]
        now = {**self._wire["env"], **self._wire["hook"]}
        word = {
            "set": {name: value for name, value in env.items() if now.get(name) != value},
            "unset": [name for name in now if name not in env],
            "argv": proc["argv"],
            "env": env,
            "cwd": proc["cwd"],
        }
        self.link.sendall(json.dumps(word).encode() + b"\n")

    def drop(self) -> None:
        """Let go of what leads to it; it ends by itself."""
        self.link.close()
        os.close(self.output)
