"""The processes of instances: made, found again after a crash, ended with everything they started."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from everstep.model.handshake import BOOT_ADDRESS, BOOT_INSTANCE, BOOT_METADATA, BOOT_ROOT, BOOT_SERVER
from everstep.model.offers import Market
from everstep.providers.local import processes
from everstep.providers.local.processes import ProcessKey
from everstep.providers.local.proxy import Gateways
from everstep.providers.local.state import InstanceRecord

#: In the environment of every process of a box, and of an instance of it: how they are found when their init is gone.
BOX_MARK = "EVERSTEP_BOX"
INSTANCE_MARK = "EVERSTEP_BOX_INSTANCE"
_INIT = Path(__file__).with_name("init.py")


def box_mark(home: Path) -> str:
    """Names a box in the environment of its processes; needs no file, so a sweep works without state."""
    return hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]


class ProcessMachines:
    """Runs each instance as a process group below an init of its own; see ``init.py``.

    Args:
        home: folder of the box.
        gateways: the ways from agents to their server, which a partition cuts.
        metadata_url: base of the metadata endpoint.
        agent_argv: the agent's command.
        restart_agent_s: see ``BoxConfig``.
        on_start: called with every machine that was started.
    """

    def __init__(
        self,
        home: Path,
        gateways: Gateways,
        *,
        metadata_url: str,
        agent_argv: Sequence[str],
        restart_agent_s: float | None,
        on_start: Callable[[InstanceRecord], None] = lambda record: None,
    ) -> None:
        self.home = home
        self.mark = box_mark(home)
        self.gateways = gateways
        self.metadata_url = metadata_url
        self.agent_argv = list(agent_argv)
        self.restart_agent_s = restart_agent_s
        self._on_start = on_start
        # Kept to be reaped: the children of this daemon. Those of an earlier one are reaped by the system.
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        for name in ("instances", "consoles", "trash", "shared", "volumes"):
            (home / name).mkdir(exist_ok=True)

    # --- places ------------------------------------------------------------------------------------------------------

    def folder(self, instance: str) -> Path:
        """Everything of one instance; ``root`` in it is the machine's disk."""
        return self.home / "instances" / instance

    def console(self, instance: str) -> Path:
        """What the agent printed; outlives the machine, as a cloud's console output does."""
        return self.home / "consoles" / f"{instance}.log"

    def report(self, record: InstanceRecord, line: str) -> None:
        """Adds a line to the console output; a disk that refuses is ignored."""
        with contextlib.suppress(OSError), self.console(record.id).open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self, record: InstanceRecord, user_data: dict[str, str]) -> InstanceRecord:
        """Makes the disk, opens the way to the server, starts init; returns the record with what was found out."""
        root = self.folder(record.id) / "root"
        root.mkdir(parents=True, mode=0o700)
        if record.volume is not None:
            (root / "volume").symlink_to(self.home / "volumes" / record.volume, target_is_directory=True)
        server = user_data.get(BOOT_SERVER, "")
        if server:
            port = self.gateways.open(record.id, server)
            record = replace(record, server=server, proxy_port=port)
            user_data = user_data | {BOOT_SERVER: _through(server, port)}
        env = self._environment(record, root, user_data)
        spec = {
            "argv": self.agent_argv,
            "env": env,
            "cwd": str(root),
            "start_at": record.started_at + record.boot_s,
            "restart_s": self.restart_agent_s,
            "console": str(self.console(record.id)),
            "status": str(self.folder(record.id) / "status.json"),
        }
        key = self._spawn(record.id, spec)
        record = replace(record, pid=key.pid, pid_start=key.start)
        self._on_start(record)
        return record

    def _spawn(self, instance: str, spec: Mapping[str, Any]) -> ProcessKey:
        marks = {BOX_MARK: self.mark, INSTANCE_MARK: f"{self.mark}/{instance}"}
        child, key = start_init(spec, marks=marks, console=self.console(instance))
        self._children[instance] = child
        return key

    def _environment(self, record: InstanceRecord, root: Path, user_data: Mapping[str, str]) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("EVERSTEP_")}
        env["PATH"] = _path_with_our_python(env.get("PATH", os.defpath))
        if record.market != Market.STATIC:
            # A machine of a cloud has a home of its own; a workstation is itself. Packages of the user stay visible.
            home = root / "home"
            home.mkdir()
            env.setdefault("PYTHONUSERBASE", str(Path.home() / ".local"))
            env["HOME"] = str(home)
        # Gloo and NCCL choose the interface by the host name; the addresses of a box are all on the loopback.
        env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        env.setdefault("NCCL_SOCKET_IFNAME", "lo")
        return (
            env
            | dict(user_data)
            | {
                BOOT_METADATA: f"local={self.metadata_url}/{record.id}",
                BOOT_ADDRESS: record.address,
                BOOT_ROOT: str(root),
                BOOT_INSTANCE: record.id,
                BOX_MARK: self.mark,
                INSTANCE_MARK: f"{self.mark}/{record.id}",
            }
        )

    def adopt(self, record: InstanceRecord) -> InstanceRecord | None:
        """Finds the init of a machine that an earlier daemon started; None if it is gone."""
        key = ProcessKey(record.pid, record.pid_start)
        if record.pid and processes.alive(key):
            return record
        if record.pid:
            return None
        # The daemon died between "it shall be" and "it is": init has the mark and no parent within the instance.
        found = processes.marked(self.needle(record.id))
        inits = [k for k in found if (i := processes.lookup(k.pid)) and not any(i.parent == o.pid for o in found)]
        return replace(record, pid=inits[0].pid, pid_start=inits[0].start) if inits else None

    def status(self, instance: str) -> dict[str, Any]:
        """What init says of the agent; empty when it said nothing yet."""
        try:
            told = json.loads((self.folder(instance) / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return told if isinstance(told, dict) else {}

    # --- end ---------------------------------------------------------------------------------------------------------

    def ask_to_stop(self, record: InstanceRecord) -> None:
        """SIGTERM for the agent."""
        processes.send(ProcessKey(record.pid, record.pid_start), signal.SIGTERM)

    def stopped(self, record: InstanceRecord) -> bool:
        """The agent has ended after ``ask_to_stop``, or init is gone."""
        if not processes.alive(ProcessKey(record.pid, record.pid_start)):
            return True
        told = self.status(record.id)
        return bool(told.get("stopping")) and told.get("state") in ("exited", "failed")

    def destroy(self, record: InstanceRecord) -> None:
        """Kills every process; blocks until none is left. Raises ``processes.StillAlive``."""
        processes.destroy(self._key(record), self.needle(record.id))
        child = self._children.pop(record.id, None)
        if child is not None:
            child.wait()

    def freeze(self, record: InstanceRecord) -> None:
        """Stops every process where it stands, sockets open: what a lost host looks like to its peers."""
        processes.freeze(self._key(record), self.needle(record.id))

    def thaw(self, record: InstanceRecord) -> None:
        """Undoes ``freeze``."""
        processes.thaw(self._key(record), self.needle(record.id))

    def discard(self, instance: str) -> Path:
        """Takes the machine's disk away at once; the bytes at the returned path may be deleted at leisure."""
        self.gateways.close(instance)
        trash = self.home / "trash" / instance
        with contextlib.suppress(OSError):
            os.rename(self.folder(instance), trash)
        return trash

    def needle(self, instance: str) -> str:
        """The mark of an instance as it stands in the environment of its processes."""
        return f"{INSTANCE_MARK}={self.mark}/{instance}"

    @staticmethod
    def _key(record: InstanceRecord) -> ProcessKey | None:
        return ProcessKey(record.pid, record.pid_start) if record.pid else None


def start_init(
    spec: Mapping[str, Any], *, marks: Mapping[str, str], console: Path
) -> tuple[subprocess.Popen[bytes], ProcessKey]:
    """Starts process 1 of an instance (``init.py``, whose text says what ``spec`` holds), a child of this process.

    Args:
        spec: the specification.
        marks: environment of init, by which it is found again; what it starts needs them in ``spec["env"]`` too.
        console: file for what init itself has to say.

    Raises:
        OSError: it ended at once.
    """
    # Init inherits the blocked signal: a SIGTERM in its first milliseconds waits until it can be understood.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    with contextlib.ExitStack() as stack:
        stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, unblocked)
        file = stack.enter_context(console.open("ab"))
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_INIT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=file,
            env={**marks, "PATH": os.environ.get("PATH", "")},
            cwd="/",
            start_new_session=True,
        )
    # The secrets of the boot pass through a pipe: they are in no file and on no command line.
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError), child.stdin as pipe:
        pipe.write(json.dumps(spec).encode())
    info = processes.lookup(child.pid)
    if info is None:
        raise OSError("init ended at once")
    return child, info.key


def sweep(home: Path) -> int:
    """Ends every process that carries the mark of the box in ``home``; how many there were. Needs no state."""
    needle = f"{BOX_MARK}={box_mark(home)}"
    found = processes.marked(needle)
    processes.destroy(None, needle)
    shutil.rmtree(home / "instances", ignore_errors=True)
    return len(found)


def _through(server: str, port: int) -> str:
    """The server's URL with the gateway in place of host and port."""
    return urlsplit(server)._replace(netloc=f"127.0.0.1:{port}").geturl()


def _path_with_our_python(path: str) -> str:
    """``python`` in a task is the Python that everstep runs in, with the packages beside it, activated or not."""
    ours = os.path.dirname(sys.executable)
    return path if ours in path.split(os.pathsep) else os.pathsep.join((ours, path))
