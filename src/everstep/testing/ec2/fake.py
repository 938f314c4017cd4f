"""The face of the fake EC2: start it, look into its books, make it misbehave."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

from everstep.testing.booting import Machines
from everstep.testing.ec2 import meter
from everstep.testing.ec2.cloud import Cloud
from everstep.testing.ec2.faults import Faults
from everstep.testing.ec2.identity import Signer
from everstep.testing.ec2.market import SMALL_WORLD, Timing, World
from everstep.testing.ec2.metadata import Metadata
from everstep.testing.ec2.paper import Paper
from everstep.testing.ec2.power import Power
from everstep.testing.ec2.server import Server
from everstep.testing.faults import Fault


class FakeEc2:
    """One account in all regions of its world, and its instances' metadata services.

    Args:
        world: what is for sale.
        timing: how long things take; the defaults are the vendor's.
        throttle: at the vendor's documented rates.
        access_keys: ids that may call; None = any.
        allowed: actions that their policy allows, ``ec2:RunInstances``; None = all.
        machines: where instances really boot, as processes; None = they are only written down. ``stop`` ends them.
        port: of the API; 0 = a free one.
        seed: of ids.
        now: UTC seconds.
    """

    def __init__(
        self,
        world: World = SMALL_WORLD,
        timing: Timing | None = None,
        *,
        throttle: bool = False,
        access_keys: frozenset[str] | None = None,
        allowed: frozenset[str] | None = None,
        machines: Machines | None = None,
        port: int = 0,
        seed: int = 0,
        now: Callable[[], float] = time.time,
    ) -> None:
        paper = Paper()
        for kind in {kind for _, kind in world.supplies}:
            paper.vcpus(kind)  # a type that moto's catalog does not have is told now, not in the middle of a test
        self.cloud = Cloud(world, timing or Timing(), paper, rng=Random(seed), now=now)
        self.faults = Faults(throttle=throttle, now=now)
        self.server = Server(self.cloud, self.faults, access_keys=access_keys, allowed=allowed, port=port)
        self.signer = Signer()
        self.metadata = Metadata(self.cloud, self.server.lock, self.signer)
        self.machines = machines
        self.power: Power | None = None
        if machines is not None:
            self.power = Power(self.cloud, self.server.lock, machines, metadata_url=self.metadata.url)

    @property
    def url(self) -> str:
        """Endpoint of the API: EC2 and the price list."""
        return self.server.url

    def __enter__(self) -> FakeEc2:
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
        self.server.stop()
        self.metadata.stop()
        if self.power is not None:
            self.power.stop()
        return [] if self.machines is None else self.machines.close()

    # --- make it misbehave -------------------------------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        kind: str = "",
        *,
        late: bool = False,
        delay_s: float = 0.0,
        times: int = 1,
        zone: str = "",
    ) -> None:
        """The next calls meet a fault.

        Args:
            operation: ``RunInstances``; empty = any.
            kind: a key of ``faults.CODES``; empty = the call succeeds, only late.
            late: the effect happens and the answer is the fault all the same.
            delay_s: wait so long before anything else.
            times: how many calls.
            zone: only calls that name this zone.
        """
        with self.server.lock:
            self.faults.order(Fault(operation, kind, late, delay_s, times, zone))

    def interrupt(self, instance: str, *, notice_s: float | None = None, by_price: bool = False) -> float:
        """The vendor takes a spot machine back. Returns when it will end, UTC seconds."""
        with self.server.lock:
            self.cloud.settle()
            return self.cloud.interrupt(instance, notice_s=notice_s, by_price=by_price)

    def recommend_rebalance(self, instance: str) -> None:
        """A rebalance recommendation: the machine runs a higher risk of interruption."""
        with self.server.lock:
            self.cloud.machines[instance].rebalance_at = self.cloud.now()

    def schedule_maintenance(self, instance: str, *, at: float, code: str = "system-maintenance") -> None:
        """A scheduled event; ``at`` in UTC seconds."""
        with self.server.lock:
            when = datetime.fromtimestamp(int(at), UTC).strftime("%d %b %Y %H:%M:%S GMT")
            event = {"Code": code, "Description": code, "EventId": f"instance-event-{instance}", "State": "active"}
            self.cloud.machines[instance].maintenance.append({**event, "NotBefore": when, "NotAfter": when})

    def lose(self, instance: str) -> None:
        """The host dies without notice; EC2 says so at once."""
        if self.power is not None:
            self.power.cut(instance)
        with self.server.lock:
            self.cloud.settle()
            self.cloud.lose(instance)

    def hang(self, instance: str) -> None:
        """The host hangs without notice, connections stay open, and EC2 goes on saying that it runs."""
        self._powered().freeze(instance)

    def reboot(self, instance: str) -> None:
        """As if somebody had rebooted it from within."""
        self._powered().reboot(instance)

    def _powered(self) -> Power:
        if self.power is None:
            raise ValueError("nothing runs on the machines of this fake; give it machines")
        return self.power

    # --- look into the books -----------------------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Ids of machines and disks that cost now."""
        with self.server.lock:
            self.cloud.settle()
            now = self.cloud.now()
            machines = [m.id for m in self.cloud.machines.values() if m.alive(now)]
            disks = [
                d.id
                for d in self.cloud.disks.values()
                if d.deleted_at is None and (d.attachment is None or not d.attachment.delete_on_termination)
            ]
            return machines + disks

    def meter(self, *, tag: tuple[str, str] | None = None) -> list[dict[str, Any]]:
        """What is charged so far (see ``meter.charges``)."""
        with self.server.lock:
            self.cloud.settle()
            return meter.charges(self.cloud, tag=tag)

    def counted(self) -> Counter[str]:
        """Calls by operation."""
        return Counter(name for _, _, name, _ in self.server.calls)
