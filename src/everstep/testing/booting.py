"""Fake machines that really boot: each is a tree of processes with a disk, an address and a console of its own.

A fake cloud tells what a machine runs at boot and when it ends; this is the hardware below it, and knows no cloud::

    machines = Machines(folder)
    machines.boot("i-1", script, variables={"EVERSTEP_METADATA": "aws=http://127.0.0.1:4567/i-1"})
    machines.destroy("i-1")  # power off: every process is gone when this returns

The script runs as root's would on a fresh image: with a plain environment, the system's own ``python3``, and nothing of
whoever runs the fake (no credentials, no settings). What a test machine knows of itself comes in ``variables``. Every
process is found and ended whatever it does to get away (``providers/local/processes.py``).

Disks are folders. One that is plugged in shows as a device below ``$EVERSTEP_DEVICES`` (on a real machine
``/dev/disk/by-id``), and the machine's own ``blkid``, ``mkfs.ext4``, ``mount`` and ``mountpoint`` know how to use it: a
disk that was never formatted cannot be mounted, one that is formatted again is empty.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.model.handshake import BOOT_ADDRESS, BOOT_DEVICES, BOOT_ROOT
from everstep.providers.local import processes
from everstep.providers.local.machines import start_init
from everstep.providers.local.processes import ProcessKey

MARK = "EVERSTEP_FAKE_MACHINE"
"""In the environment of every process of a fake machine, so that it is found when its init is gone."""
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = ("LANG", "LC_ALL", "TZ", "TMPDIR", "OMP_NUM_THREADS", "EVERSTEP_TEST_RUN")
"""What a machine may have of our environment: nothing that says who runs the fake."""
_TOOLS = {
    "blkid": '[ -d "$1/lost+found" ] || exit 2\necho "$1: TYPE=\\"ext4\\""',
    "mkfs.ext4": 'for disk; do :; done; [ -d "$disk" ] || exit 1\n'
    'find "$disk/" -mindepth 1 -delete && mkdir "$disk/lost+found"',
    "mount": '[ -d "$1/lost+found" ] || { echo "mount: $2: wrong fs type, bad superblock on $1" >&2; exit 32; }\n'
    'rmdir "$2" && ln -s "$(readlink -f "$1")" "$2"',
    "mountpoint": 'for place; do :; done; [ -L "$place" ]',
}


@dataclass(slots=True)
class _Machine:
    """One that was booted."""

    folder: Path
    root: Path
    address: str
    env: dict[str, str]
    inits: list[tuple[subprocess.Popen[bytes], ProcessKey]] = field(default_factory=list)
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)


class Machines:
    """Everything that runs below ``home``. Methods may be called from any thread.

    Args:
        home: folder of the machines, their disks and consoles; made if it is not there.
        path: folders that are searched for programs before the system's, as an image with more installed has.
    """

    def __init__(self, home: Path, *, path: tuple[Path, ...] = ()) -> None:
        self.home = home
        self._tools = home / "tools"
        self._path = path
        self._mark = hashlib.sha256(str(home.resolve()).encode()).hexdigest()[:16]
        self._lock = threading.Lock()
        self._machines: dict[str, _Machine] = {}
        self._count = 0
        for name in ("machines", "consoles", "disks"):
            (home / name).mkdir(parents=True, exist_ok=True)
        self._tools.mkdir(exist_ok=True)
        for name, text in _TOOLS.items():
            (self._tools / name).write_text(f"#!/bin/sh\n{text}\n")
            (self._tools / name).chmod(0o755)

    # --- places ------------------------------------------------------------------------------------------------------

    def root(self, machine: str) -> Path:
        """The machine's own disk, as ``boot`` was told."""
        return self._machines[machine].root

    def console(self, machine: str) -> Path:
        """What the boot script printed; outlives the machine, as a cloud's console output does."""
        return self.home / "consoles" / f"{machine}.log"

    def address(self, machine: str) -> str:
        """On which its peers reach it: in 127/8, no two machines of one ``home`` have the same."""
        return self._machines[machine].address

    def disk(self, name: str) -> Path:
        """The folder behind a disk, made when it is first asked for."""
        folder = self.home / "disks" / name
        folder.mkdir(exist_ok=True)
        return folder

    def delete_disk(self, name: str) -> None:
        """Its bytes are gone."""
        shutil.rmtree(self.home / "disks" / name, ignore_errors=True)

    # --- life --------------------------------------------------------------------------------------------------------

    def boot(
        self,
        machine: str,
        script: str,
        *,
        variables: Mapping[str, str],
        root: Path | None = None,
        disks: Mapping[str, str] | None = None,
    ) -> None:
        """Starts a machine, or starts it again after ``destroy``: what was on its disk is still there.

        Args:
            machine: its name in the cloud.
            script: what the image runs at boot, as a file with ``#!`` (else by a shell). It may return and leave
                processes behind.
            variables: what the machine knows about itself; ``BOOT_ROOT``, ``BOOT_ADDRESS`` and ``BOOT_DEVICES`` are
                set here.
            root: the machine's disk if it is one of ``disk``; default: one that goes with ``discard``.
            disks: devices that are there from the first moment, and the disks that they are; see ``plug``.
        """
        with self._lock:
            made = self._machines.get(machine) or self._make(machine, root)
            self._machines[machine] = made
        for device, disk in (disks or {}).items():
            self.plug(machine, device, disk)
        made.env = {**made.env, **variables}
        file = made.folder / "user-data"
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as written:
            written.write(script)
        spec = {
            "argv": [*_interpreter(script), str(file)],
            "env": made.env,
            "cwd": str(made.root),
            "start_at": 0.0,
            "restart_s": None,
            "console": str(self.console(machine)),
            "status": str(made.folder / "status.json"),
        }
        made.inits.append(start_init(spec, marks=self._marks(machine), console=self.console(machine)))

    def execute(self, machine: str, script: str) -> None:
        """Runs something more inside: a shutdown script, a command of an operator."""
        made = self._machines[machine]
        with self.console(machine).open("ab") as console:
            made.others.append(
                subprocess.Popen(
                    ["/bin/sh", "-c", script],
                    env=made.env,
                    cwd=made.root,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    start_new_session=True,
                )
            )

    def booted(self, machine: str) -> bool:
        """Whether it was booted and not yet destroyed."""
        made = self._machines.get(machine)
        return made is not None and bool(made.inits)

    def boot_script_ended(self, machine: str) -> int | None:
        """Exit code of the boot script; None while it runs."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            told: dict[str, Any] = json.loads((self._machines[machine].folder / "status.json").read_text())
            if told["state"] in ("exited", "failed"):
                return int(told.get("rc", 127))
        return None

    def processes(self, machine: str) -> set[ProcessKey]:
        """What runs on it, its init left out."""
        made = self._machines.get(machine)
        if made is None:
            return set()
        return processes.members(_init(made), self._needle(machine)) - {key for _, key in made.inits}

    def shut_down(self, machine: str) -> None:
        """SIGTERM to every process, as an operating system does that goes down; ``processes`` tells who is left."""
        for key in self.processes(machine):
            processes.send(key, signal.SIGTERM)

    def destroy(self, machine: str) -> None:
        """Power off: kills every process and returns when none is left. The disk stays until ``discard``.

        Raises:
            StillAlive: something survives SIGKILL.
        """
        made = self._machines.get(machine)
        if made is None:
            return
        processes.destroy(_init(made), self._needle(machine))
        for child in (*(child for child, _ in made.inits), *made.others):
            child.wait()
        made.inits, made.others = [], []

    def discard(self, machine: str) -> None:
        """Takes away the disk of a machine that was destroyed, unless it was one of ``disk``."""
        with self._lock:
            made = self._machines.pop(machine, None)
        if made is not None:
            shutil.rmtree(made.folder, ignore_errors=True)

    def freeze(self, machine: str) -> None:
        """Stops every process where it stands, sockets open: what a host that hangs looks like to its peers."""
        processes.freeze(_init(self._machines[machine]), self._needle(machine))

    def thaw(self, machine: str) -> None:
        """Undoes ``freeze``."""
        processes.thaw(_init(self._machines[machine]), self._needle(machine))

    def close(self) -> list[str]:
        """Destroys what still runs. Returns the names of the machines that did, and of strays nobody knew of."""
        running = [name for name in list(self._machines) if self.processes(name)]
        for name in list(self._machines):
            self.destroy(name)
        needle = f"{MARK}={self._mark}/"
        return running + [f"process {key.pid}" for key in _marked_below(needle)]

    # --- disks -------------------------------------------------------------------------------------------------------

    def plug(self, machine: str, device: str, disk: str) -> None:
        """The disk shows in the machine as ``$EVERSTEP_DEVICES/<device>``."""
        link = self._machines[machine].folder / "devices" / device
        if not link.is_symlink():
            link.symlink_to(self.disk(disk), target_is_directory=True)

    def unplug(self, machine: str, device: str) -> None:
        """The device is gone; a machine that is gone itself is no error."""
        made = self._machines.get(machine)
        if made is not None:
            (made.folder / "devices" / device).unlink(missing_ok=True)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _make(self, machine: str, root: Path | None) -> _Machine:
        folder = self.home / "machines" / machine
        (folder / "devices").mkdir(parents=True)
        root = folder / "root" if root is None else root
        (root / "home").mkdir(parents=True, exist_ok=True)
        self._count += 1
        # Two clouds on one computer should not share addresses: each has a network of its own, by its folder.
        network = 16 + int(self._mark[:2], 16) % 224
        address = f"127.{network}.{(self._count - 1) // 254}.{(self._count - 1) % 254 + 1}"
        ours = os.path.dirname(sys.executable)
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env |= {
            "PATH": ":".join([str(self._tools), *map(str, self._path), _SYSTEM_PATH, ours]),
            "HOME": str(root / "home"),
            "USER": "root",
            # Gloo and NCCL choose the interface by the host name; the addresses here are all on the loopback.
            "GLOO_SOCKET_IFNAME": "lo",
            "NCCL_SOCKET_IFNAME": "lo",
            BOOT_ROOT: str(root),
            BOOT_ADDRESS: address,
            BOOT_DEVICES: str(folder / "devices"),
            **self._marks(machine),
        }
        return _Machine(folder, root, address, env)

    def _marks(self, machine: str) -> dict[str, str]:
        marks = {MARK: f"{self._mark}/{machine}"}
        run = os.environ.get("EVERSTEP_TEST_RUN")
        return marks if run is None else {**marks, "EVERSTEP_TEST_RUN": run}

    def _needle(self, machine: str) -> str:
        return f"{MARK}={self._mark}/{machine}"


def _init(made: _Machine) -> ProcessKey | None:
    return made.inits[-1][1] if made.inits else None


def _interpreter(script: str) -> list[str]:
    """As the kernel would read it; done here, since a file that was just written may be busy for a moment."""
    first = script.split("\n", 1)[0]
    return first[2:].split(maxsplit=1) if first.startswith("#!") else ["/bin/sh"]


def _marked_below(prefix: str) -> list[ProcessKey]:
    """Processes whose mark begins so; those that are just ending are waited for a moment."""
    wanted = b"\0" + prefix.encode()
    deadline = time.monotonic() + 1.0
    while True:
        found = []
        for info in processes.table().values():
            if info.zombie or info.key.pid == os.getpid():
                continue
            with contextlib.suppress(OSError), open(f"/proc/{info.key.pid}/environ", "rb") as file:
                if wanted in b"\0" + file.read():
                    found.append(info.key)
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.02)
