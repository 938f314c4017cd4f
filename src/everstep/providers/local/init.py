"""Process 1 of an instance: waits for the boot to be over, runs the agent, adopts orphans. Standard library only.

Run as a plain script (``python -I -S init.py``), so that it starts in milliseconds and imports nothing of ours; the
specification comes as JSON on standard input::

    {"argv": [...], "env": {...}, "cwd": path, "start_at": utc_s, "restart_s": s or null, "console": path, "status":
    path}

It is a subreaper: whatever the instance starts stays below it in the process tree, even after a double fork. It does
not end when the agent does, since a machine outlives its programs; the box ends it. SIGTERM is passed on to the agent.
What the agent does is told in the status file, replaced whole: ``{"state": "booting|running|exited|failed", "agent":
pid, "rc": n}``.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
EXIT_NO_AGENT = 127
#: An agent that dies this often within as many seconds as the window is not started again (as systemd's StartLimit).
RESTART_LIMIT, RESTART_WINDOW_S = 5, 10.0
_SIGNALS = {signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP}


class _Init:
    """The one process of this file."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.agent = 0
        self.stopping = False
        self.starts: list[float] = []
        # None = do not start the agent (again).
        self.start_at: float | None = time.monotonic() + max(spec["start_at"] - time.time(), 0.0)

    def run(self) -> int:
        self.tell("booting")
        while True:
            timeout_s = 3600.0 if self.start_at is None else max(self.start_at - time.monotonic(), 0.0)
            got = signal.sigtimedwait(_SIGNALS, timeout_s)
            if got is None:
                if self.start_at is not None and time.monotonic() >= self.start_at and not self.start_agent():
                    return EXIT_NO_AGENT
            elif got.si_signo == signal.SIGCHLD:
                self.reap()
            elif got.si_signo == signal.SIGTERM:
                self.stop()

    def start_agent(self) -> bool:
        self.start_at = None
        console = os.open(self.spec["console"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        actions = [(os.POSIX_SPAWN_DUP2, console, 1), (os.POSIX_SPAWN_DUP2, console, 2)]
        argv = self.spec["argv"]
        try:
            self.agent = os.posix_spawnp(
                argv[0], argv, self.spec["env"], file_actions=actions, setpgroup=0, setsigmask=[]
            )
        except OSError as error:
            os.write(console, f"cannot start the agent {argv[0]}: {error.strerror}\n".encode())
            self.tell("failed", error=f"cannot start the agent {argv[0]}: {error.strerror}")
            return False
        finally:
            os.close(console)
        self.starts.append(time.monotonic())
        self.tell("running")
        return True

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.agent:
                self.agent_ended(os.waitstatus_to_exitcode(status))

    def agent_ended(self, rc: int) -> None:
        self.agent = 0
        self.tell("exited", rc=rc)
        now = time.monotonic()
        recent = [at for at in self.starts if now - at < RESTART_WINDOW_S]
        pause_s = self.spec["restart_s"]
        # An agent that ended well has nothing left to do; one that fails at once, again and again, never will.
        if rc != 0 and pause_s is not None and not self.stopping and len(recent) < RESTART_LIMIT:
            self.start_at = now + pause_s

    def stop(self) -> None:
        self.stopping = True
        self.start_at = None
        if self.agent:
            os.kill(self.agent, signal.SIGTERM)
        else:
            self.tell("exited", rc=None)

    def tell(self, state: str, **more: Any) -> None:
        status = {"state": state, "agent": self.agent, "stopping": self.stopping, **more}
        new = self.spec["status"] + ".new"
        try:
            with open(new, "w", encoding="utf-8") as file:
                json.dump(status, file)
            os.replace(new, self.spec["status"])
        except OSError as error:  # a full disk must not end the machine
            sys.stderr.write(f"cannot write {self.spec['status']}: {error}\n")


def main() -> int:
    """Reads the specification, becomes a subreaper, runs."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    spec = json.load(sys.stdin)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.chdir(spec["cwd"])
    return _Init(spec).run()


if __name__ == "__main__":
    sys.exit(main())
