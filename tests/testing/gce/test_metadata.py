"""The metadata server: what machines hear, and what the agent makes of it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

pytest.importorskip("googleapiclient", reason="the fake needs google-api-python-client")

from everstep.agent.clock import Clock
from everstep.agent.identity import proof
from everstep.agent.notices import gcp
from everstep.agent.notices.kinds import MAINTENANCE, TERMINATE, MetadataDown
from everstep.testing.gce import FakeGce, Timing
from everstep.testing.gce.books import Machine

from .conftest import ZONE, machine

QUICK = Timing(notice_s=20.0, provision_s=0.0, stage_s=0.0, hidden_s=0.0, maintenance_s=30.0)
SERVICE_ACCOUNT = [{"email": "default", "scopes": []}]


@pytest.fixture
def fake() -> Iterator[FakeGce]:
    with FakeGce(timing=QUICK) as made:
        yield made
    assert made.server.crashes == []


@pytest.fixture
def one(fake: FakeGce) -> Machine:
    return inserted(fake, "m1")


def inserted(fake: FakeGce, name: str, **changes: object) -> Machine:
    body = machine(name, serviceAccounts=SERVICE_ACCOUNT, metadata={"items": [{"key": "a-b", "value": "c"}]}, **changes)
    path = f"/compute/v1/projects/{fake.project}/zones/{ZONE}/instances"
    answer = fake.server.answer("POST", path, {"authorization": "Bearer any"}, json.dumps(body).encode())
    assert answer is not None
    assert answer[0] == 200, answer
    return fake.machine(name)


def ask(fake: FakeGce, one: Machine, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    url = f"{fake.metadata.url(one)}/computeMetadata/v1/{path}"
    request = urllib.request.Request(url, headers=headers or {"Metadata-Flavor": "Google"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return answer.status, answer.read().decode(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def test_what_is_told(fake: FakeGce, one: Machine) -> None:
    status, text, headers = ask(fake, one, "instance/name")
    assert (status, text, headers["Metadata-Flavor"]) == (200, "m1", "Google")
    assert ask(fake, one, "instance/id")[1] == str(one.id)
    assert ask(fake, one, "instance/zone")[1].endswith(f"/zones/{ZONE}")
    assert ask(fake, one, "instance/attributes/a-b")[1] == "c"
    assert ask(fake, one, "instance/")[1].splitlines()[0] == "attributes/"
    tree = json.loads(ask(fake, one, "instance/?recursive=true")[1])
    assert tree["attributes"] == {"a-b": "c"}
    assert (tree["maintenanceEvent"], tree["scheduling"]["onHostMaintenance"]) == ("NONE", "TERMINATE")
    assert ask(fake, one, "instance/nothing")[0] == 404


def test_who_is_refused(fake: FakeGce, one: Machine) -> None:
    assert ask(fake, one, "instance/name", Accept="text")[0] == 403
    assert ask(fake, one, "instance/name", **{"Metadata-Flavor": "Google", "X-Forwarded-For": "10.0.0.1"})[0] == 403
    fake.lose("m1")
    assert ask(fake, one, "instance/name")[0] == 503, "a machine that is off hears nothing"


def test_a_long_poll_answers_when_the_value_changes(fake: FakeGce, one: Machine) -> None:
    _, text, headers = ask(fake, one, "instance/preempted?wait_for_change=true&last_etag=0&timeout_sec=10")
    assert text == "FALSE"
    etag = headers["ETag"]
    begins = time.monotonic()
    same = ask(fake, one, f"instance/preempted?wait_for_change=true&last_etag={etag}&timeout_sec=1")
    assert (same[1], same[2]["ETag"]) == ("FALSE", etag)
    assert 0.9 < time.monotonic() - begins < 5.0
    heard: list[tuple[int, str, dict[str, str]]] = []
    path = f"instance/preempted?wait_for_change=true&last_etag={etag}&timeout_sec=20"
    thread = threading.Thread(target=lambda: heard.append(ask(fake, one, path)))
    thread.start()
    while fake.metadata.waiting == 0:
        time.sleep(0.01)
    begins = time.monotonic()
    fake.preempt("m1")
    thread.join(10)
    assert time.monotonic() - begins < 2.0
    assert heard[0][1] == "TRUE"
    assert heard[0][2]["ETag"] != etag


def test_the_agent_hears_of_a_preemption(fake: FakeGce, one: Machine) -> None:
    preempted, maintenance = gcp.watches(fake.metadata.url(one), Clock())
    assert preempted.poll() == []
    threading.Timer(0.1, fake.preempt, ["m1"]).start()
    (notice,) = preempted.poll()
    assert notice.kind == TERMINATE
    assert notice.deadline is not None
    assert 25.0 < notice.deadline - time.time() < 31.0
    assert preempted.look() == [notice], "the deadline is fixed once"
    assert maintenance.look() == []
    fake.cloud.machines[one.id].stopped_at = time.time()
    with pytest.raises(MetadataDown):
        preempted.look()


def test_the_agent_hears_of_host_maintenance_unless_the_machine_is_moved(fake: FakeGce) -> None:
    standard = {"provisioningModel": "STANDARD", "automaticRestart": False}
    stays = inserted(fake, "stays", scheduling=standard)
    ends = inserted(fake, "ends", scheduling={**standard, "onHostMaintenance": "TERMINATE"})
    fake.maintain("stays")
    fake.maintain("ends")
    assert gcp.watches(fake.metadata.url(stays), Clock())[1].poll() == []
    (notice,) = gcp.watches(fake.metadata.url(ends), Clock())[1].poll()
    assert notice.kind == MAINTENANCE
    assert not notice.final


def test_an_identity_token_is_good_for_its_audience(fake: FakeGce, one: Machine) -> None:
    from google.auth import jwt

    token = proof(f"gcp={fake.metadata.url(one)}", "https://server:443/")["token"]
    certificates = fake.signer.certificates()
    claims = jwt.decode(token, certs=certificates, audience="https://server:443/")
    about = claims["google"]["compute_engine"]
    assert (about["instance_name"], about["zone"], about["project_id"]) == ("m1", ZONE, fake.project)
    assert claims["iss"] == "https://accounts.google.com"
    with pytest.raises(ValueError, match="audience"):
        jwt.decode(token, certs=certificates, audience="https://other/")
    assert ask(fake, one, "instance/service-accounts/default/identity")[0] == 400
    one.resource["serviceAccounts"] = []
    assert ask(fake, one, "instance/service-accounts/default/identity?audience=a")[0] == 404


@pytest.mark.e2e
def test_the_fake_is_a_program() -> None:
    command = [sys.executable, "-m", "everstep.testing.gce", "--port", "0"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        found = re.search(r"(http://127\.0\.0\.1:\d+), project (\S+)", process.stdout.readline())
        assert found is not None
        url = f"{found[1]}/compute/v1/projects/{found[2]}/zones"
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": "Bearer any"})) as answer:
            zones = [z["name"] for z in json.load(answer)["items"]]
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(10) == 0
    assert ZONE in zones
    assert "still there: nothing" in rest
