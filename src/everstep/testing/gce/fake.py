"""The face of the fake Compute Engine: start it, look into its books, make it misbehave."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from everstep.testing.booting import Machines
from everstep.testing.faults import Fault
from everstep.testing.gce import meter
from everstep.testing.gce.books import Machine, Project
from everstep.testing.gce.cloud import Cloud
from everstep.testing.gce.faults import Faults
from everstep.testing.gce.identity import Signer
from everstep.testing.gce.market import SMALL_WORLD, Timing, World
from everstep.testing.gce.metadata import Metadata
from everstep.testing.gce.power import Power
from everstep.testing.gce.server import Server

PROJECT = "everstep-test"


class FakeGce:
    """One project in all regions of its world, and its machines' metadata servers.

    Args:
        world: what is for sale.
        timing: how long things take; the defaults are about the vendor's.
        project: id of the project.
        throttle: at the vendor's documented rates.
        tokens: OAuth tokens that may call, besides what the key of ``service_account`` signs; None = any.
        allowed: permissions that they have, ``compute.instances.create``; None = all.
        port: of the API; 0 = a free one.
        seed: of ids.
        machines: where instances really boot, as processes; None = they are only written down. ``stop`` ends them.
        now: UTC seconds.
    """

    def __init__(
        self,
        world: World = SMALL_WORLD,
        timing: Timing | None = None,
        *,
        project: str = PROJECT,
        throttle: bool = False,
        tokens: frozenset[str] | None = None,
        allowed: frozenset[str] | None = None,
        port: int = 0,
        seed: int = 0,
        machines: Machines | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        for zone, pool in world.supplies:  # a rate that is missing is told now, not in the middle of a test
            world.price_usd_per_h(zone.rpartition("-")[0], pool, 0.0, spot=True)
        made = Project(project, 123_456_789_012, "https://www.googleapis.com")
        self.cloud = Cloud(world, timing or Timing(), made, rng=Random(seed), now=now)
        self.faults = Faults(throttle=throttle, now=now)
        self.server = Server(self.cloud, self.faults, tokens=tokens, allowed=allowed, port=port)
        self.signer = Signer()
        self.server.certificates = self.signer.certificates
        self.server.is_own = self.signer.is_own
        self.metadata = Metadata(self.cloud, self.server.lock, self.signer)
        self.machines = machines
        self.power: Power | None = None
        if machines is not None:
            self.power = Power(self.cloud, self.server.lock, machines, metadata_url=self.metadata.url)

    @property
    def url(self) -> str:
        """Endpoint of the API: Compute Engine and the billing catalog."""
        return self.server.url

    @property
    def project(self) -> str:
        """Id of the project."""
        return self.cloud.project.id

    def __enter__(self) -> FakeGce:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Serves."""
        self.server.start()
        self.metadata.start()
        if self.power is not None:
            self.power.start()

    def stop(self) -> list[str]:
        """Serves no more; the books stay. Returns the machines that still ran."""
        if self.power is not None:
            self.power.stop()
        self.metadata.stop()
        self.server.stop()
        return [] if self.machines is None else self.machines.close()

    def service_account(self) -> dict[str, str]:
        """A service account's key file, as ``GOOGLE_APPLICATION_CREDENTIALS`` names one; good here alone."""
        return {
            "type": "service_account",
            "project_id": self.project,
            "private_key_id": self.signer.key_id,
            "private_key": self.signer.private_key_pem(),
            "client_email": f"server@{self.project}.iam.gserviceaccount.com",
            "client_id": "1",
            "token_uri": f"{self.url}/token",
        }

    def machine(self, name: str) -> Machine:
        """The newest machine of that name or number, dead or alive. Raises KeyError."""
        found = [m for m in self.cloud.machines.values() if name in (m.name, str(m.id))]
        if not found:
            raise KeyError(name)
        return found[-1]

    # --- make it misbehave -------------------------------------------------------------------------------------------

    def fail(
        self,
        method: str,
        kind: str = "",
        *,
        late: bool = False,
        delay_s: float = 0.0,
        times: int = 1,
        zone: str = "",
    ) -> None:
        """The next calls meet a fault.

        Args:
            method: ``compute.instances.insert``; empty = any.
            kind: a key of ``faults.CODES``; empty = the call succeeds, only late.
            late: the effect happens and the answer is the fault all the same.
            delay_s: wait so long before anything else.
            times: how many calls.
            zone: only calls that name this zone.
        """
        with self.server.lock:
            self.faults.order(Fault(method, kind, late, delay_s, times, zone))

    def preempt(self, name: str, *, notice_s: float | None = None) -> float:
        """The vendor takes a spot machine back. Returns when it will have stopped, UTC seconds."""
        return float(self._by_itself(lambda: self.cloud.preempt(self.machine(name), notice_s=notice_s)))

    def lose(self, name: str) -> None:
        """The host dies without notice."""
        self._by_itself(lambda: self.cloud.lose(self.machine(name)))

    def hang(self, name: str) -> None:
        """The host hangs without notice, connections stay open, and Compute Engine goes on saying that it runs."""
        if self.power is None:
            raise ValueError("nothing runs on the machines of this fake; give it machines")
        self.power.freeze(self.machine(name))

    def repair(self, name: str) -> None:
        """The machine is REPAIRING for a while."""
        self._by_itself(lambda: self.cloud.repair(self.machine(name)))

    def maintain(self, name: str) -> None:
        """A host event, as ``simulateMaintenanceEvent`` makes one."""
        self._by_itself(lambda: self.cloud.maintain(self.machine(name)))

    def _by_itself(self, act: Callable[[], Any]) -> Any:
        with self.server.lock:
            self.cloud.settle()
            found = act()
        self.metadata.changed()
        return found

    # --- look into the books -----------------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Names of machines and disks that cost now; a machine's own disk goes with it."""
        with self.server.lock:
            self.cloud.settle()
            now = self.cloud.now()
            machines = [m.name for m in self.cloud.machines.values() if m.there(now)]
            going = {(m.zone, a.disk) for m in self.cloud.machines.values() for a in m.disks if a.auto_delete}
            disks = [d for d in self.cloud.disks.values() if d.deleted_at is None and (d.zone, d.name) not in going]
            return machines + [d.name for d in disks]

    def meter(self, *, label: tuple[str, str] | None = None) -> list[dict[str, Any]]:
        """What is charged so far (see ``meter.charges``)."""
        with self.server.lock:
            self.cloud.settle()
            return meter.charges(self.cloud, label=label)

    def counted(self) -> Counter[str]:
        """Calls by method."""
        return Counter(method for _, method, _ in self.server.calls)
