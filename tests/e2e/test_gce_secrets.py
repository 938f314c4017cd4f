"""Planted secrets on Compute Engine: each is where it belongs and nowhere else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from everstep.agent.identity import proof
from everstep.testing.gce.books import Machine
from tests.e2e.gce import TOKEN, GceRig
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

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-gce")]


@pytest.fixture
def rig(tmp_path: Path, take_in: Callable[[GceRig], GceRig]) -> GceRig:
    made = take_in(GceRig(tmp_path / "rig"))
    made.start()
    return made


def check_thieves(rig: GceRig, victim: Machine) -> None:
    """Who has a machine's startup script cannot join in its place: not without the token that Google signs for that
    very machine and our very server.
    """
    script = victim.metadata["startup-script"]
    assert thief(rig, victim.name, script) == 401, "a join token alone is not enough"
    token = proof(f"gcp={rig.fake.metadata.url(victim)}", "https://another.example")["token"]
    assert thief(rig, victim.name, script, token=token) == 401, "nor is it with an identity for somebody else"


def own_key(rig: GceRig) -> str:
    """A line of the service account's key, as no other file has it."""
    return str(json.loads(rig.gce.key_file.read_text())["private_key"]).splitlines()[3]


@pytest.mark.expensive(family="clouds end to end")
def test_secrets_are_where_they_belong_and_nowhere_else(rig: GceRig) -> None:
    watchman = Watchman()
    for kind in ("stock_out", "permission"):  # error texts of the vendor's SDK, on their way to the user
        rig.fake.fail("compute.instances.insert", kind)
    job = rig.stepper(
        options="--steps 40 --step-s 0.05 --until-attempt 2",
        envs={},
        secrets={"USERS": USERS},
        setup="echo set up with $USERS; echo $USERS >&2",
    )
    rig.wait_step(job, 3)
    first = rig.fake.machine(rig.members(job)[0])
    root = rig.machines.root(str(first.id))
    credential = json.loads((root / "agent" / "credential.json").read_text())["credential"]
    inside = environments(rig.machines, str(first.id))
    during = {"user": holders(rig.folder, USERS), "credential": holders(rig.folder, credential)}
    api_token = rig.home.token_file.read_text().strip()
    agents_key = (rig.home.path / "agents.key").read_text().strip()
    disk = str(root.relative_to(rig.folder))

    check_thieves(rig, first)
    rig.fake.preempt(first.name)
    rig.wait_phase(job, "succeeded")
    rig.wait_for(lambda: not rig.alive(), "end of every machine and disk")
    commands = watchman.close()
    machines = list(rig.fake.cloud.machines.values())
    booted = [m.metadata["startup-script"] for m in machines]
    joins = join_tokens("\n".join(booted))
    assert len(set(joins)) == len(booted) >= 2
    identities = list(rig.fake.signer.issued)
    assert len(identities) >= 2

    cloud = {"key": own_key(rig), "token": TOKEN}
    ours = {"user": USERS, "credential": credential, "api": api_token, "agents key": agents_key}
    once = {f"join {n}": token for n, token in enumerate(joins)}
    proofs = {f"identity {n}": token for n, token in enumerate(identities)}
    shown = check_shown(rig, job, {**cloud, **ours, **once, **proofs}, commands)
    assert "set up with ***" in rig.log(job), "the log is there, and it is masked"
    assert "does not have enough resources" in shown, "the vendor's words are shown"
    # What lies on disks: while a machine ran, and when all is over.
    assert {p for p in during["user"] if not p.startswith(f"{disk}/")} == {f"home/secrets/{job}.json"}
    assert during["credential"] == {f"{disk}/agent/credential.json"}
    assert holders(rig.folder, cloud["key"]) == {rig.gce.key_file.name}
    assert holders(rig.folder, TOKEN) == holders(rig.folder, credential) == set()
    assert holders(rig.folder, USERS) <= {f"home/secrets/{job}.json"}, "the sweep of the server deletes it soon"
    assert holders(rig.folder, api_token) == {"home/token"}
    assert holders(rig.folder, agents_key) == {"home/agents.key"}
    for token in (*joins, *identities):
        assert not holders(rig.folder, token), "a token of a machine is in the journal, a log or a console"
    # What machines know, and what the vendor is told: one-time tokens, in startup scripts, and no more.
    assert inside
    for env in inside:
        assert not any(value.encode() in env for value in (*cloud.values(), api_token, agents_key))
    check_untold([*cloud.values(), *ours.values()], *booted)
    told = [str((m.name, m.labels, {**m.resource, "metadata": None})) for m in machines]
    check_untold([*cloud.values(), *ours.values(), *joins], *told, *(str(c) for c in rig.fake.server.calls))
