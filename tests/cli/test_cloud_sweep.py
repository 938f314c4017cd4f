"""``everstep cloud sweep`` as people call it: a process of its own, over the wire, on both fakes."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.client.api import Client
from everstep.model.errors import NotFound
from everstep.providers.aws import tags
from everstep.providers.aws.user_data import boot_script
from everstep.testing.ec2 import FakeEc2, Supply, Timing, World
from tests import vendors
from tests.providers.aws.test_sweep import FOREIGN, OURS, Raw

WORLD = World(
    supplies={("us-east-1a", "g4dn.xlarge"): Supply([(0.0, 0.17)])}, on_demand_usd_per_h={"g4dn.xlarge": 0.526}
)
DEAD = "http://127.0.0.1:9"
PATIENCE_S = 120.0


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendors.hide_real_ones(monkeypatch, tmp_path)
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))


@pytest.fixture
def fake() -> Iterator[FakeEc2]:
    quick = Timing(boot_s=0.0, shut_down_s=0.2, hidden_s=0.0)
    with FakeEc2(WORLD, quick, access_keys=frozenset({vendors.AWS_KEY})) as fake:
        yield fake
        assert fake.server.crashes == []


@pytest.fixture
def server_of_another() -> Iterator[str]:
    """URL of something that answers."""
    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    thread = threading.Thread(target=http_server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http_server.server_port}"
    http_server.shutdown()
    http_server.server_close()
    thread.join()


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from everstep.cli.main import main; raise SystemExit(main())", *words]
    told = subprocess.run(
        program, capture_output=True, text=True, env={**os.environ, **more}, check=False, timeout=PATIENCE_S
    )
    assert vendors.AWS_SECRET not in told.stdout + told.stderr
    return told


def rows(told: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    assert told.stdout.startswith("["), told.stderr
    return {row["id"]: row for row in json.loads(told.stdout)}


def told_home(url: str) -> str:
    return boot_script({"EVERSTEP_SERVER": url, "EVERSTEP_TOKEN": "one-time"})


@pytest.mark.expensive(family="clouds end to end")
def test_without_a_server(fake: FakeEc2, server_of_another: str) -> None:
    raw = Raw(fake)
    foreign = {raw.machine(FOREIGN), raw.disk(FOREIGN)}
    dead = raw.machine(OURS, UserData=told_home(DEAD))
    disk = raw.disk({**OURS, tags.VOLUME: "v"})
    unknown = raw.disk({**OURS, tags.DEPLOYMENT: "d-2"})
    served = raw.machine({**OURS, tags.DEPLOYMENT: "d-3"}, UserData=told_home(server_of_another))
    server = raw.machine({tags.SERVER: "h-1"})
    everything = raw.left()
    call = ("cloud", "sweep", "aws")

    listed = run(*call, "-o", "json", AWS_ENDPOINT_URL=fake.url)
    assert {i: r["standing"] for i, r in rows(listed).items()} == {
        dead: "stray",
        disk: "stray",
        unknown: "nobody to ask",
        served: "its server answers",
        server: "a server",
    }
    assert listed.returncode == 1
    assert raw.left() == everything, "looking ends nothing"

    ended = run(*call, "--yes", "-o", "json", AWS_ENDPOINT_URL=fake.url)
    assert {i for i, r in rows(ended).items() if r["outcome"] == "ended"} == {dead, disk}
    assert rows(ended)[unknown]["why"] == "no server to ask; if it is over: --deployment d-2"
    assert ended.returncode == 1
    assert raw.left() == everything - {dead, disk}

    named = run(*call, "--yes", "--deployment", "d-2", AWS_ENDPOINT_URL=fake.url)
    assert named.returncode == 0, named.stderr
    assert raw.left() == everything - {dead, disk, unknown}
    table = run(*call, AWS_ENDPOINT_URL=fake.url)
    assert (table.returncode, "2 things, $0.53/h; 0 strays" in table.stderr) == (0, True), table.stderr

    failing = raw.disk({**OURS, tags.VOLUME: "v"})
    fake.fail("DeleteVolume", "permission")
    failed = run(*call, "--yes", "--deployment", "d-1", "-o", "json", AWS_ENDPOINT_URL=fake.url)
    assert failed.returncode == 1
    assert "UnauthorizedOperation" in rows(failed)[failing]["trouble"]
    assert run(*call, "--yes", "--all", AWS_ENDPOINT_URL=fake.url).returncode == 0
    assert raw.left() == foreign


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (("gcp",), "--project: "),
        (("local",), "leaves nothing behind|is not configured"),
        (("aws", "--all"), "--all: goes with --yes"),
        (("azure",), "azure"),
    ],
)
def test_wrong_use(words: tuple[str, ...], fault: str) -> None:
    told = run("cloud", "sweep", *words)
    assert told.returncode == 2, told.stderr
    assert any(part in told.stderr for part in fault.split("|")), told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.expensive(family="clouds end to end")
def test_what_the_server_knows_is_left_alone(leak_guard: str, fake: FakeEc2, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    settings = {"regions": ["us-east-1"], "types": ["g4dn.xlarge"], "endpoint_url": fake.url, "look_s": 0.1}
    (home / "config.yaml").write_text(json.dumps({"providers": {"aws": settings}}))
    (tmp_path / "task.yaml").write_text("resources: {cpus: 4, infra: aws}\nrun: sleep 1000\n")
    assert run("server", "start").returncode == 0
    try:
        assert run("run", "--detach", "--yes", str(tmp_path / "task.yaml")).returncode == 0
        raw = Raw(fake)
        with Client(home=home) as client:
            (job,) = [j.job for j in client.jobs()]
            deployment = client.health().deployment
            deadline = time.monotonic() + PATIENCE_S
            while not (booked := {m.instance for m in client.status(job).machines if m.instance}):
                assert time.monotonic() < deadline, client.status(job)
                time.sleep(0.1)
            stray = raw.machine({tags.DEPLOYMENT: deployment, tags.JOB: "j-gone"})
            with pytest.raises(NotFound):
                client.status("j-gone")
            ended = rows(run("cloud", "sweep", "aws", "--yes", "-o", "json"))
            assert {i: r["outcome"] for i, r in ended.items() if i in {*booked, stray}} == {
                **dict.fromkeys(booked, "kept"),
                stray: "ended",
            }
            assert all(r["standing"] == "in the books" for i, r in ended.items() if i != stray)
            assert booked <= raw.left()
    finally:
        assert run("server", "stop").returncode == 0
    assert run("cloud", "sweep", "aws", "--yes").returncode == 0
    assert raw.left() == set()


@pytest.mark.expensive(family="clouds end to end")
def test_on_compute_engine(tmp_path: Path) -> None:
    pytest.importorskip("google.cloud.compute_v1", reason="needs the extra gcp: pip install 'everstep[gcp]'")
    from everstep.providers.gcp import naming
    from everstep.testing.gce import FakeGce
    from tests.providers.gcp import test_sweep as gce
    from tests.providers.gcp.conftest import QUICK, TOKEN
    from tests.providers.gcp.conftest import WORLD as GCE_WORLD

    with FakeGce(GCE_WORLD, replace(QUICK, hidden_s=0.0), tokens=frozenset({TOKEN})) as cloud:
        (tmp_path / "key.json").write_text(json.dumps(cloud.service_account()))
        home = tmp_path / "home"
        home.mkdir()
        gcp = {"project": cloud.project, "regions": ["us-central1"], "types": ["e2-*"], "endpoint_url": cloud.url}
        (home / "config.yaml").write_text(json.dumps({"providers": {"gcp": {**gcp, "look_s": 0.1}}}))
        raw = gce.Raw(cloud)
        raw.machine("theirs", gce.FOREIGN)
        foreign = raw.left()
        raw.machine("ours", gce.OURS)
        raw.disk("our-disk", {**gce.OURS, naming.VOLUME: "v"})
        key = str(tmp_path / "key.json")
        listed = rows(run("cloud", "sweep", "gcp", "-o", "json", GOOGLE_APPLICATION_CREDENTIALS=key))
        assert {i.partition(".")[0]: r["standing"] for i, r in listed.items()} == {
            "ours": "nobody to ask",
            "our-disk": "nobody to ask",
        }
        ended = run("cloud", "sweep", "gcp", "--yes", "--deployment", "d-1", GOOGLE_APPLICATION_CREDENTIALS=key)
        assert ended.returncode == 0, ended.stderr
        assert raw.left() == foreign
        assert cloud.server.crashes == []
