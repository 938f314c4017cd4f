"""Planted secrets on EC2: each is where it belongs and nowhere else, in files, on command lines, in what is shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.testing.ec2.identity import document_of
from tests.e2e.ec2 import SECRET, Ec2Rig
from tests.e2e.planted import (
    USERS,
    Watchman,
    check_shown,
    check_untold,
    environments,
    holders,
    join_tokens,
    thief,
)

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-ec2")]


@pytest.fixture
def rig(tmp_path: Path, take_in: Callable[[Ec2Rig], Ec2Rig]) -> Ec2Rig:
    made = take_in(Ec2Rig(tmp_path / "rig"))
    made.start()
    return made


def check_thieves(rig: Ec2Rig, victim: str) -> None:
    """Who has a machine's user data cannot join in its place, with or without an identity of another machine."""
    script = rig.fake.cloud.machines[victim].user_data
    assert thief(rig, victim, script) == 401, "a join token alone is not enough"
    image = rig.ec2.instance(victim)["ImageId"]
    made = rig.ec2.sdk.run_instances(ImageId=image, InstanceType="m5.large", MinCount=1, MaxCount=1)
    other = made["Instances"][0]["InstanceId"]
    document = document_of(rig.fake.cloud.machines[other], rig.fake.cloud.paper.account)
    proof = {"document": document, "signature": rig.fake.signer.signature(document)}
    assert thief(rig, victim, script, **proof) == 401, "nor is it with another machine's identity"
    rig.wait_for(lambda: rig.machines.booted(other), "boot of the other machine")
    rig.ec2.sdk.terminate_instances(InstanceIds=[other])


@pytest.mark.expensive(family="clouds end to end")
def test_secrets_are_where_they_belong_and_nowhere_else(rig: Ec2Rig) -> None:
    watchman = Watchman()
    rig.fake.fail("RunInstances", "stock_out")  # an error text of the vendor's SDK, on its way to the user
    job = rig.stepper(
        options="--steps 40 --step-s 0.05 --until-attempt 2",
        envs={},
        secrets={"USERS": USERS},
        setup="echo set up with $USERS; echo $USERS >&2",
    )
    rig.wait_step(job, 3)
    first = rig.members(job)[0]
    root = rig.machines.root(first)
    credential = json.loads((root / "agent" / "credential.json").read_text())["credential"]
    inside = environments(rig.machines, first)
    during = {name: holders(rig.folder, value) for name, value in (("cloud", SECRET), ("user", USERS))}
    during["credential"] = holders(rig.folder, credential)
    api_token = rig.home.token_file.read_text().strip()
    agents_key = (rig.home.path / "agents.key").read_text().strip()
    machine = f"aws/machines/{first}"

    check_thieves(rig, first)
    rig.fake.lose(first)
    rig.wait_phase(job, "succeeded")
    rig.wait_for(lambda: not rig.alive(), "end of every machine and disk")
    commands = watchman.close()
    booted = [m.user_data for m in rig.fake.cloud.machines.values() if m.user_data]
    joins = join_tokens("\n".join(booted))
    assert len(set(joins)) == len(booted) >= 2

    secret = {"cloud": SECRET, "user": USERS, "credential": credential, "api": api_token, "key": agents_key}
    shown = check_shown(rig, job, {**secret, **{f"join {n}": t for n, t in enumerate(joins)}}, commands)
    assert "set up with ***" in rig.log(job), "the log is there, and it is masked"
    assert "InsufficientInstanceCapacity" in shown or "capacity" in shown
    # What lies on disks: while a machine ran, and when all is over.
    assert during["cloud"] == set(), "the cloud's key is in no file"
    assert {p for p in during["user"] if not p.startswith(f"{machine}/root/")} == {f"home/secrets/{job}.json"}
    assert during["credential"] == {f"{machine}/root/agent/credential.json"}
    assert holders(rig.folder, SECRET) == holders(rig.folder, credential) == set()
    assert holders(rig.folder, USERS) <= {f"home/secrets/{job}.json"}, "the sweep of the server deletes it soon"
    assert holders(rig.folder, api_token) == {"home/token"}
    assert holders(rig.folder, agents_key) == {"home/agents.key"}
    for token in joins:
        assert not holders(rig.folder, token), "a join token is in the journal, a log or a console"
    # What machines know, and what the vendor is told: one-time tokens, and no more.
    assert inside
    for env in inside:
        assert not any(value.encode() in env for value in (SECRET, api_token, agents_key))
    check_untold(secret.values(), *booted, *(str(call) for call in rig.fake.server.calls))
