"""Machines of the fake that really run: what the books say of a machine happens to its processes.

A machine that is running executes its user data, as cloud-init on a fresh image does; it asks its own metadata
service, and disks that are attached show below ``$EVERSTEP_DEVICES`` by the names that EC2 gives them. Whoever ends it
decides how: its owner's end is a shutdown (SIGTERM, then SIGKILL when ``shut_down_s`` is over), the vendor's is power
off. Only when no process is left is the machine terminated and are its disks free.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable

from everstep.model.handshake import BOOT_METADATA
from everstep.testing.booting import Machines
from everstep.testing.ec2.books import Machine
from everstep.testing.ec2.cloud import Cloud

ROOT_DEVICE = "/dev/sda1"
_LOOK_S = 0.03
_BOOTHOOK = "#cloud-boothook"


class Power:
    """Looks into the books all the time, and acts.

    Attributes:
        crashes: what went wrong in the fake itself.
    """

    def __init__(
        self, cloud: Cloud, lock: threading.RLock, machines: Machines, *, metadata_url: Callable[[str], str]
    ) -> None:
        """Args: lock: held around each look into the books; metadata_url: of a machine."""
        self.crashes: list[str] = []
        self._cloud = cloud
        self._lock = lock
        self._machines = machines
        self._metadata_url = metadata_url
        self._booted: set[str] = set()
        self._plugged: set[tuple[str, str]] = set()
        self._falling: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="power", daemon=True)
        cloud.powered = True
        cloud.public_address = lambda machine: self._public(machine)

    def start(self) -> None:
        """Looks from now on, in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Acts no more; machines that run go on."""
        self._stopping.set()
        self._thread.join()
        for thread in list(self._falling.values()):
            thread.join()

    def cut(self, instance: str) -> None:
        """Power off, at once: when this returns no process of the machine is left."""
        self._machines.destroy(instance)

    def freeze(self, instance: str) -> None:
        """The host hangs: everything on it stands still, sockets open, and EC2 does not notice."""
        self._machines.freeze(instance)

    def reboot(self, instance: str) -> None:
        """Everything ends and the machine boots again, with the disk as it is."""
        with self._lock:
            machine = self._cloud.machines[instance]
            self._machines.destroy(instance)
            self._boot(machine, again=True)

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_S):
            try:
                with self._lock:
                    self._cloud.settle()
                    self._look(self._cloud.now())
            except Exception:
                self.crashes.append(traceback.format_exc())

    def _look(self, now: float) -> None:
        for machine in self._cloud.machines.values():
            if machine.state(now) == "running" and machine.id not in self._booted:
                self._booted.add(machine.id)
                self._boot(machine)
            elif not machine.alive(now) and machine.gone_at is None and machine.id not in self._falling:
                thread = threading.Thread(target=self._end, args=(machine,), name=f"end {machine.id}", daemon=True)
                self._falling[machine.id] = thread
                thread.start()
        self._wire_disks()

    def _boot(self, machine: Machine, *, again: bool = False) -> None:
        script = _run_by_cloud_init(machine.user_data, again=again)
        variables = {BOOT_METADATA: f"aws={self._metadata_url(machine.id)}"}
        self._machines.boot(machine.id, script, variables=variables)

    def _end(self, machine: Machine) -> None:
        try:
            if not machine.reason_code.startswith("Server."):
                self._machines.shut_down(machine.id)
                while self._machines.processes(machine.id) and self._cloud.now() < self._power_off_at(machine):
                    time.sleep(_LOOK_S)
            self._machines.destroy(machine.id)
            with self._lock:
                machine.gone_at = self._cloud.now()
                self._cloud.settle()
                self._wire_disks()
            self._machines.discard(machine.id)
        except Exception:
            self.crashes.append(traceback.format_exc())

    def _public(self, machine: Machine) -> str:
        return self._machines.address(machine.id) if self._machines.booted(machine.id) else ""

    def _power_off_at(self, machine: Machine) -> float:
        return (machine.ends_at or 0.0) + self._cloud.timing.shut_down_s

    def _wire_disks(self) -> None:
        """Attached disks show in their machines, others do not, deleted ones lose their bytes."""
        wanted = {
            (a.machine, disk.id)
            for disk in self._cloud.disks.values()
            if (a := disk.attachment) is not None and a.device != ROOT_DEVICE and self._machines.booted(a.machine)
        }
        for machine, disk_id in self._plugged - wanted:
            self._machines.unplug(machine, device_name(disk_id))
            if self._cloud.disks[disk_id].deleted_at is not None:
                self._machines.delete_disk(disk_id)
        for machine, disk_id in wanted - self._plugged:
            self._machines.plug(machine, device_name(disk_id), disk_id)
        self._plugged = wanted


def device_name(volume: str) -> str:
    """Under which udev shows a volume on machines with NVMe:
    https://docs.aws.amazon.com/ebs/latest/userguide/identify-nvme-ebs-device.html
    """
    return f"nvme-Amazon_Elastic_Block_Store_{volume.replace('-', '')}"


def _run_by_cloud_init(user_data: str, *, again: bool) -> str:
    """The part of cloud-init's rules that is played: https://cloudinit.readthedocs.io/en/latest/explanation/format.html.

    A boot hook runs at every boot, a script at the first one only; of anything else only the name is told.
    """
    first, _, rest = user_data.partition("\n")
    if first.strip() == _BOOTHOOK:
        return rest
    if first.startswith("#!"):
        return "#!/bin/sh\n" if again else user_data
    return f"#!/bin/sh\necho 'cloud-init: user data that is not played here: {len(user_data)} characters'\n"
