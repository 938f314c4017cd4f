"""Machines of the fake that really run: what the books say of a machine happens to its processes.

A machine that is RUNNING executes its startup script, as Google's guest environment does at every boot; it asks its own
metadata server, and disks that are attached show below ``$EVERSTEP_DEVICES`` as ``google-NAME``. STOPPING is a shutdown
(SIGTERM), which is over when no process is left or its time is; every other end is power off. The books are brought to
the present before each answer, and a machine is off before its disks are free.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from everstep.model.handshake import BOOT_METADATA
from everstep.testing.booting import Machines
from everstep.testing.gce.books import Attachment, Machine
from everstep.testing.gce.cloud import Cloud

_LOOK_S = 0.03
STARTUP_SCRIPT = "startup-script"


class Power:
    """Looks into the books all the time, and acts.

    Attributes:
        crashes: what went wrong in the fake itself.
    """

    def __init__(
        self, cloud: Cloud, lock: threading.RLock, machines: Machines, *, metadata_url: Callable[[Machine], str]
    ) -> None:
        """Args: lock: held around each look into the books; metadata_url: of a machine."""
        self.crashes: list[str] = []
        self._cloud = cloud
        self._lock = lock
        self._machines = machines
        self._metadata_url = metadata_url
        self._on: set[int] = set()
        self._falling: set[int] = set()
        self._made: set[int] = set()
        """Those of which something is left below ``machines``."""
        self._plugged: set[tuple[int, str, int]] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)
        cloud.follow = self.follow

    def start(self) -> None:
        """Looks from now on, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Acts no more; machines that run go on."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._cloud.follow = None

    def freeze(self, machine: Machine) -> None:
        """The host hangs: everything on it stands still, sockets open, and Compute Engine does not notice."""
        self._machines.freeze(str(machine.id))

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                with self._lock:
                    self._cloud.settle()
            except Exception:
                self.crashes.append(traceback.format_exc())

    # --- with the lock -----------------------------------------------------------------------------------------------

    def follow(self, now: float) -> None:
        """Does with every machine what the books say of it."""
        for machine in self._cloud.machines.values():
            status, on = machine.status(now), machine.id in self._on
            if status == "RUNNING" and not on:
                self._boot(machine)
            elif status == "STOPPING" and on:
                self._shut_down(machine, now)
            elif status not in ("RUNNING", "STOPPING") and on:
                self._off(machine)
            if not status and machine.id in self._made:
                self._made.discard(machine.id)
                self._machines.discard(str(machine.id))
        self._wire_disks(now)

    def _boot(self, machine: Machine) -> None:
        self._on.add(machine.id)
        self._made.add(machine.id)
        boot = next(a for a in machine.disks if a.boot)
        self._machines.boot(
            str(machine.id),
            machine.metadata.get(STARTUP_SCRIPT, "#!/bin/sh\n"),
            variables={BOOT_METADATA: f"gcp={self._metadata_url(machine)}"},
            root=self._machines.disk(str(self._disk_id(machine, boot))),
            disks={f"google-{a.device}": str(self._disk_id(machine, a)) for a in machine.disks if not a.boot},
        )
        for access in machine.resource["networkInterfaces"][0].get("accessConfigs", []):
            access["natIP"] = self._machines.address(str(machine.id))

    def _shut_down(self, machine: Machine, now: float) -> None:
        if machine.id not in self._falling:
            self._falling.add(machine.id)
            self._machines.shut_down(str(machine.id))
        elif not self._machines.processes(str(machine.id)):
            self._off(machine)
            machine.stopped_at = now
            machine.gone_at = now if machine.deletes else None
            for operation in self._cloud.operations.values():
                if operation.target_id == machine.id:
                    operation.done_at = min(operation.done_at, now)

    def _off(self, machine: Machine) -> None:
        self._machines.destroy(str(machine.id))
        self._on.discard(machine.id)
        self._falling.discard(machine.id)

    def _wire_disks(self, now: float) -> None:
        """Attached disks show in machines that run, others do not, deleted ones lose their bytes."""
        wanted = {
            (m.id, f"google-{a.device}", self._disk_id(m, a))
            for m in self._cloud.machines.values()
            if m.id in self._on
            for a in m.disks
            if not a.boot
        }
        for machine, device, _ in self._plugged - wanted:
            self._machines.unplug(str(machine), device)
        for machine, device, disk in wanted - self._plugged:
            self._machines.plug(str(machine), device, str(disk))
        self._plugged = wanted
        for gone in self._cloud.disks.values():
            if gone.deleted_at is not None and gone.deleted_at <= now and not gone.users:
                self._machines.delete_disk(str(gone.id))

    def _disk_id(self, machine: Machine, attachment: Attachment) -> int:
        return self._cloud.disk(machine.zone, attachment.disk).id
