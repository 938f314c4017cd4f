"""A server on a leased machine of the fake Compute Engine: its machines boot, sshd, server and job are real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("google.cloud.compute_v1", reason="needs the extra gcp: pip install 'everstep[gcp]'")
pytest.importorskip("googleapiclient", reason="the fake needs google-api-python-client")

from everstep.client import remote
from everstep.client.home import Home
from everstep.client.placing import hosted
from everstep.testing.gce import FakeGce, Supply, Timing
from everstep.testing.gce.market import SMALL_WORLD, Kind
from tests.cli.conftest import Cli
from tests.cli.leasing import Cloud, leased_from
from tests.cli.sshd import until

ACCOUNT = "everstep@everstep-test.iam.gserviceaccount.com"
WORLD = replace(
    SMALL_WORLD,
    supplies={
        ("us-central1-a", "e2-standard-4"): Supply(),
        ("us-central1-b", "e2-small"): Supply(),
        ("us-west1-a", "e2-small"): Supply(),
    },
    kinds={**SMALL_WORLD.kinds, "e2-small": Kind(2, 2048)},
)
QUICK = Timing(
    notice_s=4.0,
    stop_s=5.0,
    provision_s=0.1,
    stage_s=0.2,
    operation_s=0.1,
    hidden_s=0.2,
    repair_s=1.0,
    maintenance_s=2.0,
)


class Gce(Cloud):
    """A fake project and its machines."""

    logs = ("consoles/*", "disks/*/*.log")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fake = FakeGce(
            WORLD, QUICK, tokens=frozenset({"of-whoever-types", "token-of-the-account"}), machines=self.machines
        )
        self.fake.server.token = "of-whoever-types"
        self.key_file = folder / "key.json"

    def config(self) -> str:
        gcp = {
            "project": self.fake.project,
            "regions": ["us-central1"],
            "types": ["e2-standard-4"],
            "endpoint_url": self.fake.url,
            "identity_certs_url": f"{self.fake.url}/oauth2/v1/certs",
            "notice_s": QUICK.notice_s,
            "look_s": 0.2,
        }
        return json.dumps({"providers": {"gcp": gcp}})

    def rule(self) -> dict[str, Any] | None:
        rules = self.fake.cloud.firewall_rules
        return next((rule for name, rule in rules.items() if name.startswith("everstep-server-")), None)


@pytest.fixture
def cloud(
    tmp_path: Path, leak_guard: str, home: Home, one_wheel: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Gce]:
    with leased_from(Gce(tmp_path / "c"), home) as made:
        made.key_file.write_text(json.dumps(made.fake.service_account()))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(made.key_file))
        yield made


@pytest.mark.e2e
@pytest.mark.expensive(family="clouds end to end")
def test_up_run_host_error_down_delete(cli: Cli, home: Home, cloud: Gce) -> None:
    done = cli("server", "up", "gcp", "-y", "--allow", "0.0.0.0/0", "--service-account", ACCOUNT)
    assert done.code == 0, done.err + cloud.console()
    first = remote.find(home)
    assert first is not None
    (machine,) = cloud.fake.cloud.machines.values()
    assert (first.kind, first.host, machine.zone) == ("gcp", machine.name, "us-central1-b")
    rule = cloud.rule()
    assert rule is not None
    assert rule["allowed"] == [{"IPProtocol": "tcp", "ports": ["7443"]}], "ssh was open for the set-up only"
    assert rule["targetTags"] == [machine.name]
    shown = json.loads(cli("server", "status", "-o", "json").out)
    assert {line["what"] for line in shown["remote"]["lines"]} == {"machine", "address", "disk"}
    # Half a core and 2 GiB by the fake's rates, 20 GiB at $0.10 a month, the address.
    assert shown["remote"]["usd_per_h"] == pytest.approx(0.5 * 0.0218 + 2 * 0.0029 + 20 * 0.1 / 730 + 0.005, rel=1e-3)

    done = cli("run", "-y", "--", "echo it runs $EVERSTEP_JOB on a leased machine")
    assert (done.code, "on a leased machine" in done.out) == (0, True), done.err + cloud.console()
    asked = {path for number, path, _ in cloud.fake.metadata.asked if number == str(machine.id)}
    assert any(path.endswith("/token") for path in asked), "credentials of its account"

    # The host dies: the vendor starts the machine again, and its script the server.
    was = cli("server", "status", "-o", "json")
    with cloud.lent_python():
        with cloud.fake.server.lock:
            cloud.fake.cloud.lose(machine)
        until(lambda: cli("server", "status").code == 3, cloud.console)
        until(lambda: cli("server", "status").code == 0, cloud.console)
    assert json.loads(was.out)["deployment"] == json.loads(cli("server", "status", "-o", "json").out)["deployment"]

    done = cli("server", "down", "-y")
    assert done.code == 0, done.err + cloud.console()
    assert (cloud.rule(), remote.find(home), cloud.fake.left()) == (None, None, [f"{machine.name}-data"])
    assert cli("server", "down", "-y", "--delete").code == 0
    assert cloud.fake.left() == []
    assert not hosted.folder_of(home).exists()


def test_a_set_up_that_was_cut_off_is_undone_from_here(cli: Cli, home: Home, cloud: Gce) -> None:
    """The machine is made, then nothing answers any more."""
    cloud.fake.fail("compute.firewalls.insert", "permission", times=1)
    done = cli("server", "up", "gcp", "-y", "--allow", "0.0.0.0/0")
    assert (done.code, remote.find(home)) == (1, None), done.err
    assert cloud.fake.left()
    assert cli("server", "status").code == 3
    assert cli("server", "down", "-y", "--delete").code == 0
    assert (cloud.fake.left(), cloud.rule()) == ([], None)
