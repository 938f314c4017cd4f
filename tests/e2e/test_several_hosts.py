"""Machines with networks of their own: every host a network namespace with its address, a link that can be cut.

What runs on a host reaches others, and the server, over its link alone. A host that is lost says nothing any more: no
connection is closed, no port refuses, only silence tells. Needs root and ``ip``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import pytest

from benchmarks.recover import net
from benchmarks.recover.host import number_of
from everstep.agent.bundle import build_pyz
from everstep.client.results import InstanceView
from everstep.providers.local import proxy
from tests.e2e.rig import SCRIPTS, Line, Rig

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.expensive(family="training through losses"),
    pytest.mark.xdist_group("e2e-hosts"),
]

STEPS = 60
FIRST, SECOND, THIRD, FOURTH = HOSTS = range(2, 6)
"""Numbers of the hosts; a box gives them to its machines in the order of their launches."""
GATE = 200
"""Number of the host at whose address the server answers."""


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    """Asked once, before anything is started."""
    if not net.possible():
        pytest.skip("needs root, `ip` (iproute2) and the right to make network namespaces")


@pytest.fixture
def hosts() -> Iterator[net.Net]:
    """The hosts, plugged in, without a process."""
    made = net.Net(f"h{os.getpid() % 10_000}")
    try:
        made.open()
        for number in (*HOSTS, GATE):
            made.add(number)
        yield made
        left = [pid for number in (*HOSTS, GATE) for pid in made.pids(number)]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert not left, "processes outlived their machines"
    finally:
        made.close()


@pytest.fixture
def rig(hosts: net.Net, make_rig: Callable[..., Rig]) -> Iterator[Rig]:
    """An installation whose machines are the hosts, with its server running."""
    rig = make_rig()
    with closing(proxy.listen(0)) as free:
        port = free.getsockname()[1]
    boot = [sys.executable, str(SCRIPTS / "host.py")]
    pyz = build_pyz(rig.home.path / "agent.pyz")
    agent = [*boot, hosts.tag, f"http://{hosts.address(GATE)}:{port}", sys.executable, str(pyz)]
    rig.home.config_file.write_text(json.dumps({"port": port, "providers": {"local": {"agent_argv": agent}}}))
    rig.start()
    with subprocess.Popen([*boot, "--gate", hosts.tag, str(GATE), str(port)], stdout=subprocess.PIPE) as gate:
        try:
            assert gate.stdout is not None
            assert gate.stdout.readline() == b"ready\n"
            yield rig
        finally:
            gate.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Digest of the weights after a run in which nothing happened."""
    return Rig(tmp_path_factory.mktemp("undisturbed")).undisturbed(nodes=2, steps=STEPS)


def test_calm_gang_trains_across_hosts(rig: Rig, hosts: net.Net, undisturbed: str) -> None:
    job = rig.trainer(nodes=2, options=f"--steps {STEPS} --step-s 0.1")
    rig.wait_step(job, 3)
    for node, member in enumerate(rig.members(job)):
        machine = _machine(rig, job, member)
        assert machine.address == hosts.address(_number(rig, member))
        began = _began(rig, attempt=1, node=node)
        assert began.pid in hosts.pids(_number(rig, member)), "a rank lives in the network of its machine"
        assert began.more["master"][0] == hosts.address(_number(rig, rig.members(job)[0]))
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["success"]
    checked = [(e.body["attempt"], list(e.body["unreachable"])) for e in rig.events(job, "PeersChecked")]
    assert checked == [(1, []), (1, [])], "each asked the other by its address"
    assert rig.digest_file.read_text() == undisturbed
    rig.check_settled()


def test_lost_master_host_is_replaced_and_a_survivor_is_master(rig: Rig, hosts: net.Net, undisturbed: str) -> None:
    job = rig.trainer(nodes=2, options=f"--steps {STEPS} --step-s 0.1")
    rig.wait_for(lambda: rig.events(job, "CheckpointSaved"), "first checkpoint")
    master, child = rig.members(job)
    # The link first: the kernel of the dying host must not tell anybody. Nor does the vendor.
    hosts.unplug(_number(rig, master))
    rig.box("kill", instance=master, detect_s=3600.0, silent=False)
    assert not hosts.pids(_number(rig, master))
    detail = rig.wait_phase(job, "succeeded")

    first, second = detail.attempts
    assert (first.cause, second.cause) == ("node_loss", "success")
    assert detail.user_failures == 0
    assert second.members[0] == child, "the survivor stays and is master"
    assert _number(rig, second.members[1]) == THIRD, "a third host took the place of the lost one"
    (_, old_port), (address, port) = (_began(rig, attempt=n, node=0).more["master"] for n in (1, 2))
    assert address == hosts.address(_number(rig, child))
    assert port != old_port
    assert rig.digest_file.read_text() == undisturbed
    rig.check_ranks()
    rig.check_settled()
    rig.check_tokens()


def test_host_without_link_is_replaced_and_fenced_when_it_is_back(rig: Rig, hosts: net.Net, undisturbed: str) -> None:
    job = rig.trainer(nodes=2, options=f"--steps {STEPS} --step-s 0.1")
    rig.wait_for(lambda: rig.events(job, "CheckpointSaved"), "first checkpoint")
    master, child = rig.members(job)
    rig.box("api_fault", method="terminate", error="unreachable", delay_s=0.0, late=False, times=10**9)
    hosts.unplug(_number(rig, child))
    rig.wait_for(lambda: len([x for x in rig.trail("began") if x.attempt == 2]) == 2, "second attempt on both nodes")
    old = _began(rig, attempt=1, node=1).pid
    assert old in hosts.pids(_number(rig, child)), "on the host that is cut off nothing has changed"
    # The way to the server is back, that to the old master is not: no connection that breaks can end the rank.
    hosts.mute(_number(rig, child), towards=_number(rig, master))
    hosts.mute(_number(rig, master), towards=_number(rig, child))
    hosts.plug(_number(rig, child))
    rig.wait_for(lambda: old not in hosts.pids(_number(rig, child)), "end of the rank of the old attempt")
    assert child in {r["id"] for r in rig.alive()}, "the fence ended it, not the vendor"
    os.kill(rig.box_pid(), signal.SIGKILL)  # the next box knows nothing of the fault
    rig.box_comes_back()
    detail = rig.wait_phase(job, "succeeded")

    first, second = detail.attempts
    assert (first.cause, second.cause) == ("node_loss", "success")
    assert [e.body["instance"] for e in rig.events(job, "InstanceSilent")] == [child]
    assert second.members[0] == master
    assert _number(rig, second.members[1]) == THIRD
    assert second.base is not None
    assert second.base.startswith("1:")
    told = [e.body["attempt"] for e in rig.events(job, "Restored", "CheckpointSaved")]
    assert told == sorted(told), "nothing of the old attempt counts once the new one had begun"
    assert max(line.t for line in rig.trail() if line.attempt == 1) < _began(rig, attempt=2, node=0).t
    assert rig.digest_file.read_text() == undisturbed
    rig.check_ranks()
    rig.check_settled()
    rig.check_tokens()


def test_host_that_cannot_answer_its_peers_is_named_and_replaced(rig: Rig, hosts: net.Net) -> None:
    for other in (FIRST, THIRD):
        hosts.mute(SECOND, towards=other)
    job = rig.stepper(nodes=3, options="--steps 20 --step-s 0.05")
    detail = rig.wait_phase(job, "succeeded")

    assert [a.cause for a in detail.attempts] == ["unreachable_peer", "unreachable_peer", "success"]
    mute = hosts.address(SECOND)
    for attempt in detail.attempts[:2]:
        rank = next(n for n, member in enumerate(attempt.members) if _number(rig, member) == SECOND)
        asking = [f"node {n} cannot reach {mute}" for n in range(3) if n != rank]
        assert all(text in attempt.evidence for text in asking), attempt.evidence
    before, after = (set(detail.attempts[n].members) for n in (0, 2))
    (gone,), (new,) = before - after, after - before
    assert (_number(rig, gone), _number(rig, new)) == (SECOND, FOURTH), "it alone was replaced"
    assert _machine(rig, job, gone).leave_reason == "its peers cannot reach it"
    assert detail.user_failures == 0
    rig.check_ranks()
    rig.check_settled()


def _number(rig: Rig, instance: str) -> int:
    """The host of a machine."""
    rows = rig.box("status")["instances"]
    return number_of(next(row["address"] for row in rows if row["id"] == instance))


def _machine(rig: Rig, job: str, instance: str) -> InstanceView:
    return next(m for m in rig.detail(job).machines if m.instance == instance)


def _began(rig: Rig, *, attempt: int, node: int) -> Line:
    """The start of a rank."""
    (line,) = (x for x in rig.trail("began") if (x.attempt, x.node) == (attempt, node))
    return line
