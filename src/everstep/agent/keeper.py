"""The keeper: a small process between the agent and what it starts, that never lets a descendant escape.

One keeper serves one attempt (all ranks of this node), one set-up or one exec. It is a child subreaper, so whatever its
children do (new sessions, double forks, ignored signals) stays below it in the process tree, and it sweeps that tree

* when the agent says so,
* when the last process it was asked to watch has ended,
* when the agent is gone, also by ``kill -9``: it holds the only other end of the keeper's standard input.

Should the keeper itself be killed, the kernel kills its direct children (parent death signal), and what remains becomes
the agent's (a subreaper too), which sweeps it. Should both be killed at once, the next agent finds what is left by a
mark in the environment. The death signal is tied to the creating *thread*: the keeper has only one.

Conversation, one JSON object a line:

* in: ``{"do": "spawn", "procs": [{label, argv, env, cwd, log, side, folders}], "mask": [...], "log_limit": n}``,
  ``{"do": "standby", "procs": [{argv, env, cwd, hook}]}`` (before any spawn, see ``standby``),
  ``{"do": "signal", "signal": n}``, ``{"do": "kill"}``;
* out: ``{"event": "spawned", "pids": {label: pid}}``, ``{"event": "exited", "label", "rc", "signal"}``,
  ``{"event": "standbys"}`` (all of them have imported what they can, or are gone), ``{"event": "stuck", "pids"}``, and
  last ``{"event": "empty"}``.

Output of the processes passes through the keeper, is masked and appended to their log files. A full disk or a log at
its limit drops output; it never blocks or breaks a rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from typing import Any

from everstep.agent import proctree
from everstep.agent.masking import Masker
from everstep.agent.standby import ENV_HOOK, Standby
from everstep.model import handshake as hs

_CHUNK = 1 << 16
_SWEEP_S = 5.0
_OOM_SCORE = b"300"  # when memory runs out, a rank must go before its keeper and the agent
LIMIT_LINE = b"\n[everstep] the log of this rank reached its size limit; the rest is dropped\n"


class _Output:
    """The output of one process on its way to its log file."""

    def __init__(self, fd: int, path: str, masker: Masker, limit: int) -> None:
        self.fd = fd
        self._masker = masker
        self._path = path
        self._limit = limit
        self._log: int | None = None
        self._size = 0

    def pump(self, *, everything: bool = False) -> bool:
        """Move what is there (one chunk, or all); False at the end of the stream."""
        while True:
            try:
                data = os.read(self.fd, _CHUNK)
            except BlockingIOError:
                return True
            except OSError:
                data = b""
            self.write(self._masker.feed(data) if data else self._masker.flush())
            if not data:
                return False
            if not everything:
                return True

    def write(self, data: bytes) -> None:
        if not data or self._size >= self._limit:
            return
        try:
            if self._log is None:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                self._log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._size = os.fstat(self._log).st_size
            if self._size + len(data) > self._limit:
                data = data[: self._limit - self._size] + LIMIT_LINE
            while data:
                written = os.write(self._log, data)
                self._size += written
                data = data[written:]
        except OSError:
            pass  # a full disk loses log lines, never a rank

    def close(self) -> None:
        self.write(self._masker.flush())
        os.close(self.fd)
        if self._log is not None:
            os.close(self._log)


class KeeperProcess:
    """The keeper's loop; built and run in the keeper process."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._labels: dict[int, str] = {}  # running processes, by pid
        self._watched: dict[int, bool] = {}  # running processes that count (not side ones)
        self._outputs: dict[str, _Output] = {}
        self._standbys: dict[int, Standby] = {}  # by the position of the process that they may become
        self._loading: set[Standby] = set()
        self._links: dict[int, socket.socket] = {}  # to standbys that have become ranks, by pid
        self._commands = b""
        self._spawned = False
        self._over = False

    def run(self) -> int:
        """Serve until the tree is empty after work, or the agent is gone."""
        proctree.become_subreaper()
        wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        # Handlers, not SIG_IGN: an ignored signal would stay ignored in the ranks. A terminal's or a shutdown's signals
        # are the agent's business.
        for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(signum, lambda *_: None)
        os.set_blocking(0, False)
        self._selector.register(0, selectors.EVENT_READ, "commands")
        self._selector.register(wake_r, selectors.EVENT_READ, "wake")
        while not self._over:
            for key, _ in self._selector.select():
                if key.data == "commands":
                    self._read_commands()
                elif key.data == "wake":
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_r, _CHUNK)
                elif isinstance(key.data, Standby):
                    self._loaded(key.data)
                elif isinstance(key.data, _Output) and not key.data.pump():
                    self._selector.unregister(key.fd)
            self._reap()
            if self._spawned and not self._watched:
                self._sweep()
        return 0

    def _read_commands(self) -> None:
        try:
            data = os.read(0, _CHUNK)
        except BlockingIOError:
            return
        if not data:
            self._sweep()
            return
        *lines, self._commands = (self._commands + data).split(b"\n")
        for line in lines:
            self._obey(json.loads(line))

    def _obey(self, command: dict[str, Any]) -> None:
        if command["do"] == "spawn":
            self._spawn_all(command)
        elif command["do"] == "standby" and not self._spawned:
            self._stand_by_all(command["procs"])
        elif command["do"] == "signal":
            self._signal(int(command["signal"]))
        elif command["do"] == "kill":
            self._sweep()

    def _spawn_all(self, command: dict[str, Any]) -> None:
        pids = {}
        failed = []
        for place, proc in enumerate(command["procs"]):
            try:
                pids[proc["label"]] = self._awaken(place, proc, command) or self._spawn(proc, command)
            except OSError as error:
                text = f"[everstep] cannot start {proc['argv'][0]!r} in {proc['cwd']}: {error.strerror or error}\n"
                self._outputs[proc["label"]].write(text.encode())
                failed.append(proc)
        self._dismiss()
        self._tell({"event": "spawned", "pids": pids})
        for proc in failed:
            self._tell({"event": "exited", "label": proc["label"], "rc": 127, "signal": None})
        self._spawned = True

    def _spawn(self, proc: dict[str, Any], command: dict[str, Any]) -> int:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        output = self._output_of(read_fd, proc, command)
        try:
            pid = _start(proc, _with_pipe(proc, read_fd), write_fd)
        finally:
            os.close(write_fd)
        self._keep(pid, proc, output)
        return pid

    def _output_of(self, read_fd: int, proc: dict[str, Any], command: dict[str, Any]) -> _Output:
        os.set_blocking(read_fd, False)
        output = _Output(read_fd, proc["log"], Masker(command["mask"]), command["log_limit"])
        self._outputs[proc["label"]] = output
        # Here and not in the agent: a folder may be on a network disk that hangs.
        for folder in proc.get("folders", ()):
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                output.write(f"[everstep] cannot make the folder {folder}: {error.strerror or error}\n".encode())
        return output

    def _keep(self, pid: int, proc: dict[str, Any], output: _Output) -> None:
        self._labels[pid] = proc["label"]
        if not proc.get("side"):
            self._watched[pid] = True
        self._selector.register(output.fd, selectors.EVENT_READ, output)

    # ---- standbys --------------------------------------------------------------------------------------------------

    def _stand_by_all(self, procs: list[dict[str, Any]]) -> None:
        for place, proc in enumerate(procs):
            with contextlib.suppress(OSError):
                self._stand_by(place, proc)
        self._loading = set(self._standbys.values())
        if not self._loading:
            self._tell({"event": "standbys"})

    def _loaded(self, standby: Standby) -> None:
        """It has imported what it can, or it is gone; or the word to go came first."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(standby.link)
        if standby in self._loading:
            self._loading.remove(standby)
            if not self._loading:
                self._tell({"event": "standbys"})

    def _stand_by(self, place: int, proc: dict[str, Any]) -> None:
        read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
        ours, its = socket.socketpair()
        hook = {**proc["hook"], ENV_HOOK: f"{its.fileno()}:{proc['hook'][ENV_HOOK]}"}
        try:
            pid = _start(proc, {**proc["env"], **hook}, write_fd, link=its.fileno())
        except OSError:
            ours.close()
            os.close(read_fd)
            raise
        finally:
            its.close()
            os.close(write_fd)
        standby = self._standbys[place] = Standby(pid, read_fd, ours, proc)
        self._selector.register(ours, selectors.EVENT_READ, standby)

    def _awaken(self, place: int, proc: dict[str, Any], command: dict[str, Any]) -> int | None:
        """The pid of the standby that has become ``proc``; None if there is none that could."""
        standby = self._standbys.get(place)
        if standby is None or not standby.fits(proc):
            return None
        del self._standbys[place]
        self._loaded(standby)
        output = self._output_of(standby.output, proc, command)
        try:
            standby.go({**proc, "env": _with_pipe(proc, standby.output)})
        except OSError:
            output.close()
            standby.link.close()
            return None
        # Not closed before it ends: what it may still say would break what it was told.
        self._links[standby.pid] = standby.link
        self._keep(standby.pid, proc, output)
        return standby.pid

    def _dismiss(self) -> None:
        """End the standbys that were of no use; they are reaped as orphans are."""
        for standby in self._standbys.values():
            self._loaded(standby)
            with contextlib.suppress(OSError):
                os.kill(standby.pid, signal.SIGKILL)  # not reaped yet, so the pid is its own
            standby.drop()
        self._standbys.clear()

    def _signal(self, signum: int) -> None:
        """Politely: to those who handle it. SIGTERM that nobody below a process handles goes to its whole tree."""
        for pid in list(self._watched):
            targets = proctree.soft_targets(pid, signum)
            if not targets and signum == signal.SIGTERM:
                own = proctree.read(pid)
                targets = ([own] if own else []) + proctree.descendants(pid)
            for proc in targets:
                proctree.send(proc, signum)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            label = self._labels.pop(pid, None)
            self._watched.pop(pid, None)
            if pid in self._links:
                self._links.pop(pid).close()
            if label is None:
                self._forget_standby(pid)
                continue  # an orphan that came to us
            self._outputs[label].pump(everything=True)
            code = os.waitstatus_to_exitcode(status)
            self._tell({"event": "exited", "label": label, "rc": code, "signal": -code if code < 0 else None})

    def _forget_standby(self, pid: int) -> None:
        for place, standby in list(self._standbys.items()):
            if standby.pid == pid:
                self._loaded(standby)
                standby.drop()
                del self._standbys[place]

    def _sweep(self) -> None:
        """Kill everything below, whatever it takes, then say so and leave."""
        if self._over:
            return
        self._over = True
        me = os.getpid()
        while True:
            left = proctree.kill_all(lambda: proctree.descendants(me), reap=self._reap, timeout_s=_SWEEP_S)
            if not left:
                break
            self._tell({"event": "stuck", "pids": [proc.pid for proc in left]})
        for output in self._outputs.values():
            output.pump(everything=True)
            output.close()
        self._tell({"event": "empty"})

    @staticmethod
    def _tell(event: dict[str, Any]) -> None:
        data = json.dumps(event).encode() + b"\n"
        with contextlib.suppress(OSError):  # no agent any more: the end of standard input says what to do
            while data:
                data = data[os.write(1, data) :]


def _with_pipe(proc: dict[str, Any], read_fd: int) -> dict[str, str]:
    """The environment of a process, which is told the pipe of its log: both ends of one have the same number."""
    pipe = os.fstat(read_fd)
    return {**proc["env"], hs.ENV_LOG_PIPE: f"{proc['label']}:{pipe.st_dev}:{pipe.st_ino}"}


def _start(proc: dict[str, Any], env: dict[str, str], output: int, *, link: int | None = None) -> int:
    """A new process in a session of its own; its pid. ``link``: a descriptor that it inherits."""
    child = subprocess.Popen(
        proc["argv"],
        env=env,
        cwd=proc["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=() if link is None else (link,),
        start_new_session=True,
        preexec_fn=_before_exec,  # safe: this process has one thread
    )
    child.returncode = 0  # we reap by ourselves; keeps Popen from doing it
    return child.pid


_KEEPER_PID: list[int] = []


def _before_exec() -> None:
    """In the child, between fork and exec."""
    proctree.die_with_parent()
    if os.getppid() != _KEEPER_PID[0]:
        os._exit(1)  # the keeper died before the line above
    with contextlib.suppress(OSError):
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(fd, _OOM_SCORE)
        os.close(fd)


def main() -> int:
    """Entry of ``agent.pyz keeper``."""
    _KEEPER_PID.append(os.getpid())
    return KeeperProcess().run()


if __name__ == "__main__":
    sys.exit(main())
