"""Installations on the fake Compute Engine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1", reason="needs the extra gcp: pip install 'everstep[gcp]'")
pytest.importorskip("googleapiclient", reason="the fake needs google-api-python-client")

from google.api_core.client_options import ClientOptions
from google.cloud import compute_v1
from google.oauth2.credentials import Credentials

from everstep.client.results import LineView
from everstep.providers.gcp import GcpProvider
from everstep.testing.booting import Machines
from everstep.testing.gce import FakeGce, Rate, Supply, Timing, World
from everstep.testing.gce.market import KINDS
from tests.e2e.clouds import Cloud, CloudRig

TOKEN = "planted-OAUTH-token-of-the-server-0123456789"
"""What the server gets for the key of its service account. No file and nobody else may ever hold it."""
KIND = "n2-standard-4"
"""Of a series that is placed: its gangs have placement policies."""
WORLD = World(
    supplies={(f"us-central1-{zone}", KIND): Supply() for zone in "abc"},
    kinds=KINDS,
    rates={("", "N2 core"): Rate(0.022, [(0.0, 0.007)]), ("", "N2 ram"): Rate(0.003, [(0.0, 0.001)])},
)
QUICK = Timing(notice_s=4.0, stop_s=4.0, provision_s=0.05, stage_s=0.3, operation_s=0.05, hidden_s=0.2, repair_s=0.3)


class Gce(Cloud):
    """A fake project.

    Args:
        folder: of the whole rig.
        world, timing: of the fake.
        options: more of the provider's settings.
    """

    provider = "gcp"

    def __init__(self, folder: Path, *, world: World = WORLD, timing: Timing = QUICK, **options: Any) -> None:
        self.machines = Machines(folder / self.provider)
        self.fake = FakeGce(world, timing, tokens=frozenset({TOKEN}), machines=self.machines)
        self.fake.start()
        self._options = options
        self.key_file = folder / "service-account.json"
        self.key_file.write_text(json.dumps(self.fake.service_account()))
        self.environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(self.key_file)}

    def settings(self) -> dict[str, Any]:
        return {
            "project": self.fake.project,
            "regions": ["us-central1"],
            "types": [KIND],
            "endpoint_url": self.fake.url,
            "identity_certs_url": f"{self.fake.url}/oauth2/v1/certs",
            "notice_s": self.fake.cloud.timing.notice_s,
            "look_s": 0.2,
            **self._options,
        }

    def _listed(self, client: Any, plural: str) -> list[Any]:
        """Of all zones and regions, by a client of the vendor's SDK."""
        made = client(credentials=Credentials(token=TOKEN), client_options=ClientOptions(api_endpoint=self.fake.url))
        pages = made.aggregated_list(project=self.fake.project)
        return [thing for _, scope in pages for thing in getattr(scope, plural)]

    def zone(self, machine: str) -> str:
        (found,) = [i for i in self._listed(compute_v1.InstancesClient, "instances") if i.name == machine]
        return str(found.zone).rpartition("/")[2]

    def alive(self) -> list[dict[str, Any]]:
        found = []
        for kind, client, plural in (
            ("instance", compute_v1.InstancesClient, "instances"),
            ("volume", compute_v1.DisksClient, "disks"),
            ("group", compute_v1.InstanceGroupsClient, "instance_groups"),
            ("group", compute_v1.ResourcePoliciesClient, "resource_policies"),
            ("address", compute_v1.AddressesClient, "addresses"),
        ):
            for thing in self._listed(client, plural):
                labels = dict(getattr(thing, "labels", {}))
                found.append({"kind": kind, "id": thing.name, "token": labels.get("everstep-token", "")})
        return found

    def preempt(self, machine: str, *, notice_s: float | None = None) -> None:
        self.fake.preempt(machine, notice_s=notice_s)

    def dry(self, zone: str) -> None:
        for method in ("compute.instances.insert", "compute.disks.insert"):
            self.fake.fail(method, "stock_out", times=10_000, zone=zone)

    def meter(self) -> list[dict[str, Any]]:
        rows = self.fake.meter()
        for row in rows:
            if row["kind"] == "disk":
                disk = self.fake.cloud.disks[int(row["id"])]
                row["resource"] = f"{disk.made_with}/boot" if disk.made_with else f"{disk.name}.{disk.id}"
        return rows

    def patience_s(self, line: LineView) -> tuple[float, float]:
        """Compute Engine does not tell when a machine that is taken back has stopped, at most when the forced stop
        comes, nor when a disk was deleted. A machine's own disk is there before it runs, and after a host error until
        the machine is put away.
        """
        timing = self.fake.cloud.timing
        if line.kind == "compute":
            return 1e-3, timing.notice_s if line.reclaimed else 1e-3
        seen_s = GcpProvider.poll_s + 5.0
        return (timing.provision_s + timing.stage_s + 0.05 if line.instance else 1e-3), seen_s


class GceRig(CloudRig):
    """One installation on one fake project; arguments as of ``Gce`` and ``CloudRig``."""

    def __init__(self, folder: Path, *, world: World = WORLD, timing: Timing = QUICK, **options: Any) -> None:
        folder.mkdir(parents=True)
        self.gce = Gce(folder, world=world, timing=timing, **options)
        self.fake, self.machines = self.gce.fake, self.gce.machines
        super().__init__(folder, [self.gce])
