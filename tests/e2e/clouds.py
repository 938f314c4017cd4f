"""Installations whose machines come from fake clouds, over the wire: the server calls each with its vendor's own SDK.

What all clouds have in common; ``ec2.py`` and ``gce.py`` say what is theirs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import boto3
import pytest
from moto.server import ThreadedMotoServer

from everstep.client.results import LineView
from everstep.testing.booting import Machines
from tests.e2e.rig import MONEY, Rig, T

PATIENCE_S = 300.0
"""A bound against hanging; a quiet computer needs a tenth of it."""

BUCKET, BUCKET_KEY, BUCKET_SECRET = "checkpoints", "AKIAOFTHEBUCKET", "planted/SECRET+of/the/bucket/0123456789"


class Cloud(ABC):
    """One fake vendor, started, with machines that boot as processes of this computer.

    Attributes:
        provider: name of its provider.
        fake: the vendor.
        machines: the hardware.
        environment: what the server's environment says of it, credentials mostly.
    """

    provider: ClassVar[str]
    fake: Any
    machines: Machines
    environment: Mapping[str, str]

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What ``config.yaml`` says of the provider."""

    @abstractmethod
    def zone(self, machine: str) -> str:
        """Where a machine is, as the vendor's SDK tells."""

    @abstractmethod
    def alive(self) -> list[dict[str, Any]]:
        """Machines, disks, groups and addresses that are there, as the vendor's SDK sees them."""

    @abstractmethod
    def preempt(self, machine: str, *, notice_s: float | None = None) -> None:
        """Takes a spot machine back; ``notice_s``: default as usual with the vendor."""

    @abstractmethod
    def dry(self, zone: str) -> None:
        """From now on there is nothing to be had in a zone."""

    @abstractmethod
    def meter(self) -> list[dict[str, Any]]:
        """What the fake charges, with the resources called as in the bill."""

    @abstractmethod
    def patience_s(self, line: LineView) -> tuple[float, float]:
        """How well the start and the end of a line can be known, seconds."""

    def diagnosis(self) -> list[str]:
        """What the fake knows when a test has failed."""
        return [*self._crashes(), f"refused: {list(self.fake.server.refused)[-20:]}"]

    def close(self) -> list[str]:
        """Ends it; what was wrong with it, one line each."""
        strays = [name for name in self.fake.stop() if name.startswith("process")]
        return [*(f"{name} outlived its machine" for name in strays), *self._crashes()]

    def _crashes(self) -> list[str]:
        assert self.fake.power is not None
        return [*self.fake.server.crashes, *self.fake.power.crashes]


class CloudRig(Rig):
    """One installation on some clouds, with a bucket of the user's beside them.

    Args:
        folder: empty; everything is below it.
        clouds: started.
        settings: more of ``config.yaml``.
    """

    def __init__(self, folder: Path, clouds: Sequence[Cloud], **settings: Any) -> None:
        super().__init__(folder)
        self.clouds = clouds
        config = {"tls": True, "providers": {c.provider: c.settings() for c in clouds}, **settings}
        self.home.config_file.write_text(json.dumps(config))
        self.bucket = ThreadedMotoServer(port=0, verbose=False)
        self.bucket.start()
        host, port = self.bucket.get_host_and_port()
        self.bucket_url = f"http://{host}:{port}"
        keys = {"aws_access_key_id": BUCKET_KEY, "aws_secret_access_key": BUCKET_SECRET}
        boto3.client("s3", "us-east-1", endpoint_url=self.bucket_url, **keys).create_bucket(Bucket=BUCKET)

    def _spawn(self) -> None:
        command = [sys.executable, "-m", "everstep.server", "--home", str(self.home.path), "--verbose"]
        environment = dict(os.environ)
        for cloud in self.clouds:
            environment |= cloud.environment
        with self.home.log_file.open("ab") as log:
            self.server = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**environment, **self._env}
            )

    # --- jobs --------------------------------------------------------------------------------------------------------

    def gang(
        self, options: str, *, nodes: int = 2, run: str = "run", recovery: Mapping[str, Any] | None = None, **more: Any
    ) -> str:
        """Submits ``scripts/trainer.py``; its checkpoints go to the bucket, with the user's own key for that.

        Args:
            run: the folder in the bucket.
            recovery: of the task.
            more: of ``resources`` in the task.
        """
        secrets = {
            "AWS_ACCESS_KEY_ID": BUCKET_KEY,
            "AWS_SECRET_ACCESS_KEY": BUCKET_SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.bucket_url,
        }
        checkpoint = {"every": "1s", "mirror": f"s3://{BUCKET}/{run}"}
        keys = {"checkpoint": checkpoint, "resources": {"ranks_per_node": 1, **more}, "recovery": dict(recovery or {})}
        return self.trainer(nodes=nodes, options=options, secrets=secrets, **keys)

    def saved(self, job: str, attempt: int) -> list[int]:
        """Steps whose checkpoint an attempt has in the bucket."""
        bodies = [e.body for e in self.events(job, "CheckpointSaved")]
        return [int(b["step"]) for b in bodies if b["durable"] and b["attempt"] == attempt]

    def wait_saved(self, job: str, attempt: int) -> None:
        """Until a checkpoint of the attempt is in the bucket."""
        self.wait_for(lambda: self.saved(job, attempt), f"checkpoint of attempt {attempt} in the bucket")

    def wait_for(self, look: Callable[[], T], what: str, *, timeout_s: float = PATIENCE_S) -> T:
        """As in ``Rig``, with the patience that several boots and restarts one after the other need."""
        return super().wait_for(look, what, timeout_s=timeout_s)

    # --- judging -----------------------------------------------------------------------------------------------------

    def alive(self) -> list[dict[str, Any]]:
        """What costs, on any cloud, as the vendors' SDKs see it."""
        return [thing for cloud in self.clouds for thing in cloud.alive()]

    def meter(self) -> list[dict[str, Any]]:
        """What the fakes charge."""
        return [row for cloud in self.clouds for row in cloud.meter()]

    def check_bills(self) -> None:
        """Ledger and meters: the same machines and disks, times and charges."""
        ledger = {line.resource: line for job in self.jobs for line in self.client.cost(job).lines}
        meter = {row["resource"]: (cloud, row) for cloud in self.clouds for row in cloud.meter()}
        assert set(ledger) == set(meter), "the bill and the meter name different machines and disks"
        for resource, line in ledger.items():
            cloud, charge = meter[resource]
            start_s, end_s = cloud.patience_s(line)
            assert (line.kind, line.reclaimed) == (charge["kind"], charge["reclaimed"]), resource
            assert line.start == pytest.approx(charge["start"], abs=start_s), resource
            assert line.end == pytest.approx(charge["end"], abs=end_s), resource
            error_usd = MONEY + (start_s + end_s) / 3600 * charge["price_usd"]
            assert line.cost_usd == pytest.approx(charge["cost_usd"], abs=error_usd), resource
        total = sum(charge["cost_usd"] for _, charge in meter.values())
        assert self.client.costs().total_usd == pytest.approx(total, rel=0.02)

    # --- the end -----------------------------------------------------------------------------------------------------

    def diagnosis(self) -> str:
        """Everything there is to know, newest last."""
        parts = [super().diagnosis()]
        for cloud in self.clouds:
            home = cloud.machines.home
            logs = [
                p for place in ("consoles/*", "machines/*/root/boot.log", "disks/*/boot.log") for p in home.glob(place)
            ]
            for path in sorted(logs):
                with contextlib.suppress(OSError):
                    parts.append(f"--- {path}\n" + path.read_text(errors="replace")[-4000:])
            parts += cloud.diagnosis()
        return "\n".join(parts)

    def close(self) -> list[str]:
        """Ends everything; what was still there although it should not, one line each."""
        told = super().close()
        for cloud in self.clouds:
            told += cloud.close()
        self.bucket.stop()
        return told
