"""A cloud whose machines cannot call this server: refused before anything is leased."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.home import Home
from everstep.model.errors import BadInput
from everstep.model.gang import Gang
from everstep.model.offers import MachineRequirement
from everstep.model.task import Task
from everstep.providers.aws import AwsProvider
from everstep.providers.local import LocalProvider
from everstep.server.reach import Reach
from tests.server.fakes import Rig

CUT_OFF = Reach("http://127.0.0.1:15000", ("aws",), ("local",))


class Cloud:
    """A provider that says nothing about where its machines are."""

    name = "cloud"


def cloud(**more: Any) -> Any:
    made = Cloud()
    for name, value in more.items():
        setattr(made, name, value)
    return made


def task(*places: tuple[str, str, str]) -> Task:
    plain = Task(run="true")
    group = dataclasses.replace(plain.gang.groups[0], machine=MachineRequirement(places=places))
    return dataclasses.replace(plain, gang=Gang((group,)))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://localhost:1", "http://[::1]:1", "http://127.3.2.1:1"])
def test_on_loopback_only_machines_of_this_host_can_call(url: str, tmp_path: Any) -> None:
    aws = AwsProvider(["us-east-1"], ["g5.xlarge"])
    fake = AwsProvider(["us-east-1"], ["g5.xlarge"], endpoint_url="http://127.0.0.1:9")
    found = {"aws": aws, "fake": fake, "local": LocalProvider(tmp_path), "cloud": cloud()}
    reach = Reach.of(found, url)
    assert (reach.cut_off, reach.within) == (("aws", "cloud"), ("fake", "local"))


@pytest.mark.parametrize("url", ["https://203.0.113.9:7443", "https://everstep.example.org", "http://10.0.0.4:80"])
def test_elsewhere_all_can(url: str) -> None:
    assert Reach.of({"cloud": cloud()}, url).cut_off == ()


def test_only_tasks_that_may_go_there_are_refused() -> None:
    CUT_OFF.check(task(("local", "", "")))
    CUT_OFF.check(task(("gcp", "", ""), ("local", "", "")))
    for places in ((), (("aws", "", ""),), (("local", "", ""), ("aws", "us-east-1", "")), (("", "us-east-1", ""),)):
        with pytest.raises(BadInput) as refused:
            CUT_OFF.check(task(*places))
        text = str(refused.value)
        assert "'aws' cannot reach this server" in text
        assert "everstep server up ssh HOST" in text
        assert "\n" not in text


async def test_plan_submit_retry_and_unpause_are_refused_and_nothing_is_taken_in(rig: Rig) -> None:
    from tests.server import fakes

    state = rig.add(fakes.job())
    async with rig.client() as http:
        rig.context.reach = CUT_OFF
        body = {"task": {"name": "t", "run": "true"}}
        answers = [
            await http.post("/api/v1/plan", json=body),
            await http.post("/api/v1/jobs", json=body),
            await http.post(f"/api/v1/jobs/{state.id}/retry", json={}),
            await http.post(f"/api/v1/jobs/{state.id}/unpause", json={}),
        ]
    for answer in answers:
        assert answer.status_code == 422
        assert "everstep server up" in answer.json()["error"]["message"]
    assert not rig.controller.submitted
    assert dataclasses.asdict(rig.controller.states[state.id]) == dataclasses.asdict(state)


@pytest.mark.e2e
@pytest.mark.expensive(family="clouds end to end")
def test_run_on_a_cloud_from_a_server_on_loopback_is_one_line_and_exit_code_2(
    tmp_path: Path, leak_guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real server, a real command line; the cloud's address leads nowhere (RFC 6761: .invalid)."""
    home = Home(tmp_path / "home")
    home.path.mkdir()
    cloud = "{regions: [us-east-1], types: [g5.xlarge], endpoint_url: 'http://cloud.invalid:9'}"
    home.config_file.write_text(f"providers: {{local: {{}}, aws: {cloud}}}\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    command = [sys.executable, "-m", "everstep", "run", "-y", "--", "echo never"]
    environment = {**os.environ, "EVERSTEP_HOME": str(home.path)}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert "machines of 'aws' cannot reach this server: only its own computer can, at http://127.0.0.1:" in line
        assert "everstep server up ssh HOST" in line
        assert "infra: local" in line
        with Client(home=home) as client:
            assert client.jobs(all=True) == []
            near = client.submit(task(("local", "", "")))
            assert client.wait(near, timeout_s=60).phase == "succeeded"
    finally:
        launcher.stop(home)
        asyncio.run(LocalProvider(home.path / "local").stop())
