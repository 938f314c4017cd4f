"""Real processes: what a machine is given, and that nothing of it survives its end."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from pathlib import Path

import pytest

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.ids import InstanceId
from everstep.model.offers import Market
from everstep.ports import SharedFolder, VolumeSpec
from everstep.providers.local import LocalProvider
from everstep.providers.local.processes import ProcessKey, alive, lookup, send
from tests.providers.local.conftest import CONFIG, MakeBox
from tests.providers.local.driving import (
    DEPLOYMENT,
    JOB,
    agent_env,
    launch,
    offer,
    processes_of,
    request,
    resource,
    root,
    row,
    start,
    until,
    until_ended,
)

pytestmark = pytest.mark.e2e


async def test_what_an_agent_is_told_at_boot(box: LocalProvider) -> None:
    first = await start(box, 1, EVERSTEP_SERVER="http://127.0.0.1:9/base", MINE="yes")
    second = await start(box, 2)
    env = agent_env(box, first)
    assert env["EVERSTEP_INSTANCE_ID"] == first
    assert env["EVERSTEP_ROOT"] == str(root(box, first))
    assert env["EVERSTEP_METADATA"].startswith("local=http://127.0.0.1:")
    assert env["EVERSTEP_METADATA"].endswith(f"/{first}")
    assert env["HOME"] == str(root(box, first) / "home")
    assert (env["MINE"], env["EVERSTEP_TOKEN"]) == ("yes", "x")
    # The way to the server leads through the box, so that it can be cut.
    assert env["EVERSTEP_SERVER"].startswith("http://127.0.0.1:")
    assert env["EVERSTEP_SERVER"].endswith("/base")
    assert ":9/" not in env["EVERSTEP_SERVER"]
    addresses = {agent_env(box, i)["EVERSTEP_ADDRESS"] for i in (first, second)}
    assert len(addresses) == 2
    assert all(a.startswith("127.") for a in addresses)


async def test_the_secrets_of_the_boot_are_in_no_file(box: LocalProvider) -> None:
    instance = await start(box, 1, SECRET="hunter2-hunter2")
    (root(box, instance) / "env").unlink()  # the stand-in's own doing
    await box.status()
    for path in box.home.rglob("*"):
        if path.is_file():
            assert b"hunter2-hunter2" not in path.read_bytes(), path
    for key in await processes_of(box, instance):
        assert b"hunter2-hunter2" not in Path(f"/proc/{key.pid}/cmdline").read_bytes()
    assert box.home.stat().st_mode & 0o777 == 0o700


async def test_terminate_lets_the_agent_finish(box: LocalProvider) -> None:
    volume = await box.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "v", "z-a", 1.0))
    instance = await start(box, 1, volume)
    await box.terminate([instance])
    assert (await until_ended(box, instance)).end is InstanceEnd.OWNER
    # It was asked and had time to write; its own disk went with it, the volume did not.
    assert (box.home / "volumes" / volume / "stopped").exists()
    assert not root(box, instance).parent.exists()
    again = await start(box, 2, volume)
    assert (root(box, again) / "volume" / "stopped").exists()
    await box.terminate([again])
    await until_ended(box, again)
    await box.delete_volume(volume)
    await until(lambda: not (box.home / "volumes" / volume).exists())


@pytest.mark.parametrize("mode", ["orphans", "deaf", "fork_bomb"])
async def test_nothing_survives_the_end_of_its_machine(make_box: MakeBox, mode: str) -> None:
    box = make_box(CONFIG.replace("stop_grace_s: 5", "stop_grace_s: 0.2"))
    owned = await start(box, 1, MODE=mode)
    taken = await start(box, 2, MODE=mode)
    lost = await start(box, 3, MODE=mode)
    bystander = await start(box, 4, MODE=mode)
    mine = {i: await processes_of(box, i) for i in (owned, taken, lost)}
    assert all(len(keys) >= 2 for keys in mine.values())
    if mode == "orphans":
        # init, agent and the two that ran away
        assert all(len(keys) >= 4 for keys in mine.values())
    await box.terminate([owned])
    await box.preempt(taken)
    await box.kill(lost)
    ends = {i: (await until_ended(box, i)).end for i in mine}
    assert ends == {owned: InstanceEnd.OWNER, taken: InstanceEnd.PREEMPTED, lost: InstanceEnd.LOST}
    for instance, keys in mine.items():
        assert not [k for k in keys if alive(k)]
        assert await processes_of(box, instance) == set()
    assert len(await processes_of(box, bystander)) >= 2


async def test_orphans_are_found_even_when_init_is_killed(box: LocalProvider) -> None:
    instance = await start(box)
    keys = await processes_of(box, instance)
    os.kill((await row(box, instance))["pid"], signal.SIGKILL)
    assert (await until_ended(box, instance)).end is InstanceEnd.LOST
    assert not [k for k in keys if alive(k)]


async def test_a_preemption_is_seen_at_the_metadata_endpoint_before_the_kill(box: LocalProvider) -> None:
    instance = await start(box)
    url = agent_env(box, instance)["EVERSTEP_METADATA"].removeprefix("local=")

    def get(path: str) -> str:
        with urllib.request.urlopen(f"{url}/latest/meta-data/{path}", timeout=10) as answer:
            return str(answer.read().decode())

    assert await asyncio.to_thread(get, "instance-id") == instance
    with pytest.raises(urllib.error.HTTPError, match="404") as caught:
        await asyncio.to_thread(get, "spot/instance-action")
    caught.value.close()
    await box.warn(instance, NoticeKind.REBALANCE)
    assert "noticeTime" in await asyncio.to_thread(get, "events/recommendations/rebalance")
    await box.preempt(instance, notice_s=600)
    action = json.loads(await asyncio.to_thread(get, "spot/instance-action"))
    assert action["action"] == "terminate"
    assert (await resource(box, instance)).alive
    (notice,) = await box.notices(DEPLOYMENT)
    assert (notice.instance, notice.kind) == (instance, NoticeKind.TERMINATE)


async def test_a_preemption_without_notice(box: LocalProvider) -> None:
    instance = await start(box)
    await box.preempt(instance, notice=False)
    assert (await until_ended(box, instance)).end is InstanceEnd.PREEMPTED


async def test_a_silent_loss_leaves_processes_frozen_until_it_is_told(box: LocalProvider) -> None:
    instance = await start(box)
    keys = await processes_of(box, instance)
    await box.kill(instance, detect_s=600, silent=True)
    states = {Path(f"/proc/{k.pid}/stat").read_text().rpartition(")")[2].split()[0] for k in keys}
    assert states == {"T"}
    assert (await resource(box, instance)).alive
    assert list(await box.notices(DEPLOYMENT)) == []


async def test_a_loss_may_be_told_late(box: LocalProvider) -> None:
    instance = await start(box)
    keys = await processes_of(box, instance)
    await box.kill(instance, detect_s=1.5)
    assert not [k for k in keys if alive(k)]
    told = await resource(box, instance)
    assert told.alive
    ended = await until_ended(box, instance)
    status = await box.status()
    assert ended.end is InstanceEnd.LOST
    assert ended.ended_at is not None
    # It is billed until it died, not until somebody noticed.
    assert ended.ended_at <= status["now"] - 1.5


async def test_a_pause_is_no_loss(box: LocalProvider) -> None:
    instance = await start(box)
    pid = (await row(box, instance))["agent_pid"]
    await box.pause(instance, 1.0)

    def state() -> str:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

    assert state() == "T"
    await until(lambda: state() != "T")
    assert (await resource(box, instance)).alive


async def test_an_agent_that_dies_is_started_again_but_not_for_ever(make_box: MakeBox) -> None:
    box = make_box(CONFIG + "restart_agent_s: 0\n")
    instance = await start(box)
    first = (await row(box, instance))["agent_pid"]
    info = lookup(first)
    assert info is not None
    (root(box, instance) / "env").unlink()
    send(info.key, signal.SIGKILL)
    await until(lambda: (root(box, instance) / "env").exists())
    assert (await row(box, instance))["agent_pid"] != first
    (doomed,) = await launch(box, request(await offer(box), 2, MODE="dies"))
    starts = root(box, doomed) / "starts"
    await until(lambda: starts.exists() and len(starts.read_text()) == 5)
    async with asyncio.timeout(20):
        while (await row(box, doomed))["agent_state"] != "exited":
            await asyncio.sleep(0.01)
    assert len(starts.read_text()) == 5
    assert (await resource(box, doomed)).alive, "a machine outlives its programs"


async def test_a_machine_boots_before_its_agent_starts(box: LocalProvider) -> None:
    await box.slow_boot(600, zone="z-a")
    (slow,) = await launch(box, request(await offer(box), 1))
    fast = await start(box, 2)
    async with asyncio.timeout(20):
        while (await row(box, slow))["agent_state"] != "booting":
            await asyncio.sleep(0.01)
    assert (await row(box, fast))["agent_state"] == "running"
    assert not (root(box, slow) / "env").exists()
    # It is billed from its launch, as clouds do, and can be ended at any time.
    (charge,) = [c for c in await box.meter(DEPLOYMENT) if c["resource"] == slow]
    assert charge["cost_usd"] > 0
    await box.terminate([slow])
    assert (await until_ended(box, slow)).end is InstanceEnd.OWNER


async def test_an_agent_that_cannot_start_is_a_failed_boot(make_box: MakeBox) -> None:
    box = make_box(agent_argv=["/no/such/agent"])
    (instance,) = await launch(box, request(await offer(box)))
    assert (await until_ended(box, instance)).end is InstanceEnd.BOOT_FAILED
    console = Path((await row(box, instance))["console"])
    assert "cannot start the agent /no/such/agent: No such file or directory" in console.read_text()


async def test_the_console_outlives_the_machine(box: LocalProvider) -> None:
    instance = await start(box)
    await box.terminate([instance])
    await until_ended(box, instance)
    assert Path((await row(box, instance))["console"]).read_text() == f"agent of {instance}\n"


async def test_a_workstation_is_one_machine_with_its_own_home(make_box: MakeBox) -> None:
    box = make_box(LocalProvider.default_config())
    here = await offer(box, "here", Market.STATIC)
    assert (here.available, here.price_usd_per_h, here.machine.name) == (1, 0.0, "this-computer")
    assert here.machine.cpus == len(os.sched_getaffinity(0))
    (instance,) = await launch(box, request(here))
    await until(lambda: (root(box, instance) / "env").exists())
    assert agent_env(box, instance)["HOME"] == os.environ["HOME"]
    assert (await offer(box, "here", Market.STATIC)).available == 0
    await box.terminate([instance])
    await until_ended(box, instance)
    assert (await offer(box, "here", Market.STATIC)).available == 1


async def test_the_shared_folder_is_one_for_all(box: LocalProvider) -> None:
    assert isinstance(box, SharedFolder)
    folder = box.shared_folder("z-a")
    assert folder == box.shared_folder("z-b")
    assert folder is not None
    assert Path(folder).is_dir()


async def test_a_trace_takes_and_gives(make_box: MakeBox, tmp_path: Path) -> None:
    """One trace hour in 1 s: three machines for an hour, then one, then two."""
    trace = {"metadata": {"gap_seconds": 3600}, "data": [3, 1, 2]}
    (tmp_path / "t.json").write_text(json.dumps(trace))
    box = make_box(
        CONFIG.replace("trace_hour_s: 3600", "trace_hour_s: 1.5\ntrace_start: first_launch")
        + "  z-t: {region: r, spot: {trace: t.json}}\n"
    )
    wanted = await offer(box, "z-t")
    assert wanted.billing.time_scale == 2400
    machines = await launch(box, *(request(wanted, n) for n in range(3)))
    ends = {i: (await until_ended(box, i)) for i in machines[1:]}
    assert {r.end for r in ends.values()} == {InstanceEnd.PREEMPTED}
    assert (await resource(box, machines[0])).alive
    async with asyncio.timeout(20):
        while (await offer(box, "z-t")).available != 1:
            await asyncio.sleep(0.02)
    lived = [r.ended_at - r.started_at for r in ends.values() if r.ended_at is not None]
    # Not before the market took them back and their notice had run out.
    assert min(lived) >= 1.5 + 0.8


async def test_a_reused_pid_is_not_hit() -> None:
    me = lookup(os.getpid())
    assert me is not None
    send(ProcessKey(os.getpid(), me.key.start + 1), signal.SIGKILL)
    assert not alive(ProcessKey(os.getpid(), me.key.start + 1))
    assert alive(me.key)


async def test_terminate_before_the_agent_is_up(box: LocalProvider) -> None:
    wanted = await offer(box)
    instances = [(await launch(box, request(wanted, n)))[0] for n in range(5)]
    await box.terminate([InstanceId(i) for i in instances])
    assert {(await until_ended(box, i)).end for i in instances} == {InstanceEnd.OWNER}
