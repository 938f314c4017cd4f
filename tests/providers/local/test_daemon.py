"""The daemon: started once, killed at will, failing on command."""

from __future__ import annotations

import asyncio
import json
import os
import resource as limits
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from everstep.model.causes import InstanceEnd
from everstep.model.errors import BadInput, BadRequest, NoCapacity, Throttled, Unreachable
from everstep.model.ids import InstanceId, LaunchToken
from everstep.ports import Launched, OfferQuery, VolumeSpec
from everstep.providers.local import LocalProvider
from everstep.providers.local.processes import alive, lookup
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


async def daemon_pid(box: LocalProvider) -> int:
    return int((await box.status())["pid"])


async def kill_daemon(box: LocalProvider) -> None:
    info = lookup(await daemon_pid(box))
    assert info is not None
    os.kill(info.key.pid, signal.SIGKILL)
    await until(lambda: not alive(info.key) and not _lingers(info.key.pid))


def _lingers(pid: int) -> bool:
    """A thread of a killed process has not gone yet: until then its sockets still take calls, and drop them."""
    threads = Path(f"/proc/{pid}/task")
    try:
        return any((t / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX" for t in threads.iterdir())
    except OSError:
        return False  # gone while we looked


async def test_many_callers_at_once_start_one_daemon(make_box: MakeBox) -> None:
    box = make_box()
    others = [LocalProvider(box.home, box.home.parent / "home.yaml") for _ in range(5)]
    pids = await asyncio.gather(*(daemon_pid(b) for b in (box, *others)))
    assert len(set(pids)) == 1
    command = [sys.executable, "-m", "everstep.providers.local", "serve", "--home", str(box.home)]
    second = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=30)
    assert second.returncode == 0
    assert await daemon_pid(box) == pids[0]


async def test_the_daemon_is_nobodys_child_and_outlives_its_caller(make_box: MakeBox) -> None:
    box = make_box()
    code = (
        "import asyncio, sys; from everstep.providers.local import LocalProvider\n"
        "print(asyncio.run(LocalProvider(sys.argv[1]).status())['pid'])"
    )
    command = [sys.executable, "-c", code, str(box.home)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
    pid = int(done.stdout)
    assert psutil.pid_exists(pid)
    assert os.getsid(pid) != os.getsid(0)
    before = lookup(pid)
    assert before is not None
    await LocalProvider(box.home).stop()
    await until(lambda: not alive(before.key))


async def test_a_box_whose_folder_is_deleted_ends_with_its_machines(box: LocalProvider) -> None:
    instance = await start(box, 1)
    pid, keys = await daemon_pid(box), await processes_of(box, instance)
    daemon = lookup(pid)
    assert daemon is not None
    assert keys
    box.home.rename(box.home.with_name("deleted"))
    await until(lambda: not alive(daemon.key) and not any(alive(k) for k in keys))
    box.home.with_name("deleted").rename(box.home)


async def test_machines_live_through_a_kill_of_the_daemon(box: LocalProvider) -> None:
    volume = await box.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "v", "z-a", 1.0))
    instance = await start(box, 1, volume)
    before, keys = await resource(box, instance), await processes_of(box, instance)
    url = agent_env(box, instance)["EVERSTEP_METADATA"]
    await kill_daemon(box)
    assert all(alive(k) for k in keys)
    # The next call starts the next daemon; it finds the same machine, the same endpoint, the same bill.
    assert await resource(box, instance) == before
    assert url == f"local={(await box.status())['metadata_url']}/{instance}"
    (again,) = await launch(box, request(await offer(box), 1, volume))
    assert again == instance
    with pytest.raises(BadRequest, match="attached to"):
        await launch(box, request(await offer(box), 2, volume))
    await box.terminate([instance])
    ended = await until_ended(box, instance)
    (charge,) = [c for c in await box.meter(DEPLOYMENT) if c["kind"] == "compute"]
    assert (charge["start"], charge["end"]) == (before.started_at, ended.ended_at)
    assert not [k for k in keys if alive(k)]


async def test_what_died_while_the_daemon_was_dead_is_lost(box: LocalProvider) -> None:
    gone, orphaned, well = await start(box, 1), await start(box, 2, MODE="orphans"), await start(box, 3)
    keys = {i: await processes_of(box, i) for i in (gone, orphaned)}
    inits = {i: (await row(box, i))["pid"] for i in keys}
    await kill_daemon(box)
    for key in keys[gone]:
        os.kill(key.pid, signal.SIGKILL)
    os.kill(inits[orphaned], signal.SIGKILL)
    assert (await until_ended(box, gone)).end is InstanceEnd.LOST
    assert (await until_ended(box, orphaned)).end is InstanceEnd.LOST
    assert (await resource(box, well)).alive
    marked = [k for k in keys[orphaned] if alive(k) and _has_environment(k.pid)]
    assert marked == []
    # The stand-in's runaways emptied their environment and init was killed from outside: nobody can know them any more.
    for key in keys[orphaned]:
        if alive(key):
            os.kill(key.pid, signal.SIGKILL)


def _has_environment(pid: int) -> bool:
    return bool(Path(f"/proc/{pid}/environ").read_bytes())


async def test_what_the_old_daemon_ended_and_could_not_note_has_the_right_cause(make_box: MakeBox) -> None:
    box = make_box(CONFIG.replace("stop_grace_s: 5", "stop_grace_s: 600"))
    instance = await start(box, MODE="deaf")
    keys = await processes_of(box, instance)
    await box.terminate([instance])
    await kill_daemon(box)
    for key in keys:
        os.kill(key.pid, signal.SIGKILL)
    assert (await until_ended(box, instance)).end is InstanceEnd.OWNER


async def test_a_pause_ends_even_if_the_daemon_does_first(box: LocalProvider) -> None:
    instance = await start(box)
    pid = (await row(box, instance))["agent_pid"]
    await box.pause(instance, 600)
    await kill_daemon(box)
    await box.status()
    await until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T")


async def test_a_deadline_that_passed_while_the_daemon_was_dead_is_kept(box: LocalProvider) -> None:
    instance = await start(box)
    await box.preempt(instance, notice_s=0.3)
    await kill_daemon(box)
    await asyncio.sleep(0.4)
    assert (await until_ended(box, instance)).end is InstanceEnd.PREEMPTED


async def test_a_kill_between_order_and_start_loses_nothing(box: LocalProvider) -> None:
    """The state as a daemon leaves it that dies before it could note the pid."""
    started = await start(box, 1)
    volume = await box.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, "v", "z-a", 1.0))
    never = await start(box, 2, volume)
    keys = await processes_of(box, never)
    await kill_daemon(box)
    for key in keys:
        os.kill(key.pid, signal.SIGKILL)
    _forget_pids(box.home)
    assert (await resource(box, started)).alive
    assert (await row(box, started))["pid"] in {k.pid for k in await processes_of(box, started)}
    # The one that never ran never was: its token is free, its disk too.
    assert never not in {r.id for r in await box.resources(DEPLOYMENT)}
    (fresh,) = await launch(box, request(await offer(box), 2, volume))
    assert fresh != never


def _forget_pids(home: Path) -> None:
    code = (
        "import sqlite3, json, sys; db = sqlite3.connect(sys.argv[1])\n"
        "for i, b in db.execute(\"SELECT id, body FROM thing WHERE kind='instance'\").fetchall():\n"
        "    db.execute('UPDATE thing SET body=? WHERE id=?', (json.dumps(json.loads(b) | {'pid': 0}), i))\n"
        "db.commit()"
    )
    subprocess.run([sys.executable, "-c", code, str(home / "state.sqlite")], check=True, timeout=30)


async def test_a_partition_cuts_the_agent_from_its_server_and_survives_the_daemon(box: LocalProvider) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    instance = await start(box, EVERSTEP_SERVER=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    port = int(agent_env(box, instance)["EVERSTEP_SERVER"].rpartition(":")[2])

    async def ask(patience_s: float = 20.0) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"hello\n")
            async with asyncio.timeout(patience_s):
                return await reader.readline()
        finally:
            writer.close()

    assert await ask() == b"hello\n"
    await box.partition(instance)
    with pytest.raises(TimeoutError):
        await ask(0.2)
    await kill_daemon(box)
    await box.status()
    with pytest.raises(TimeoutError):
        await ask(0.2)
    await box.heal(instance)
    assert await ask() == b"hello\n"
    await box.partition(instance, mode="reset")
    with pytest.raises(ConnectionResetError):
        await ask()
    with pytest.raises(BadRequest, match="a partition is blackhole or reset, not 'maybe'"):
        await box.partition(instance, mode="maybe")
    server.close()


async def test_thirty_machines_at_once(box: LocalProvider) -> None:
    wanted = await offer(box)
    instances = await launch(box, *(request(wanted, n) for n in range(30)))
    await until(lambda: all((root(box, i) / "env").exists() for i in instances))
    assert len({agent_env(box, i)["EVERSTEP_ADDRESS"] for i in instances}) == 30
    assert (await offer(box)).available == 10
    await asyncio.gather(*(box.preempt(i) for i in instances[:15]), box.terminate(instances[15:]))
    ends = [(await until_ended(box, i)).end for i in instances]
    assert ends == [InstanceEnd.PREEMPTED] * 15 + [InstanceEnd.OWNER] * 15
    assert [c["reclaimed"] for c in await _charges_of(box, instances)] == [True] * 15 + [False] * 15


async def _charges_of(box: LocalProvider, instances: list[InstanceId]) -> list[Mapping[str, Any]]:
    charges = {c["resource"]: c for c in await box.meter(DEPLOYMENT)}
    return [charges[i] for i in instances]


async def test_a_full_disk_refuses_launches_and_loses_no_machine(box: LocalProvider) -> None:
    instance = await start(box)
    wanted = await offer(box)
    daemon = psutil.Process(await daemon_pid(box))
    size = max(p.stat().st_size for p in box.home.glob("state.sqlite*"))
    soft, hard = daemon.rlimit(limits.RLIMIT_FSIZE)
    daemon.rlimit(limits.RLIMIT_FSIZE, (size // 2, hard))

    async def write_much() -> None:
        for number in range(2, 40):
            await box.ensure_volume(VolumeSpec(DEPLOYMENT, JOB, f"v{number}", "z-a", 1.0))

    with pytest.raises(Unreachable, match=r"cannot write its state to .*; nothing was changed, make room on that disk"):
        await write_much()
    with pytest.raises(Unreachable, match="cannot write its state"):
        await launch(box, request(wanted, 2))
    assert (await resource(box, instance)).alive
    daemon.rlimit(limits.RLIMIT_FSIZE, (soft, hard))
    (second,) = await launch(box, request(wanted, 2))
    await kill_daemon(box)
    assert {r.id for r in await box.resources(DEPLOYMENT) if r.id.startswith("i-") and r.alive} == {instance, second}


async def test_a_damaged_state_is_told_to_the_caller_and_can_be_swept(box: LocalProvider) -> None:
    instance = await start(box)
    keys = await processes_of(box, instance)
    await kill_daemon(box)
    for path in box.home.glob("state.sqlite*"):
        path.unlink()
    (box.home / "state.sqlite").write_bytes(b"no database at all" * 1000)
    with pytest.raises(BadInput, match=r"state\.sqlite: is damaged \(file is not a database\)"):
        await box.status()
    assert all(alive(k) for k in keys)
    command = [sys.executable, "-m", "everstep.providers.local", "sweep", "--home", str(box.home)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=30)
    assert done.stdout.startswith(f"ended {len(keys)} processes")
    assert not [k for k in keys if alive(k)]
    (box.home / "state.sqlite").unlink()
    assert (await box.status())["instances"] == []


async def test_a_bad_configuration_starts_nothing(make_box: MakeBox) -> None:
    box = make_box(CONFIG + "boot: 3\n")
    with pytest.raises(BadInput, match=r"home\.yaml: boot: unknown key; did you mean 'boot_s'\?"):
        await box.offers(OfferQuery())
    assert not (box.home / "box.sock").exists()


async def test_a_malformed_trace_starts_nothing(make_box: MakeBox, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"metadata": {"gap_seconds": 60}, "data": [1, 1, "x"]}))
    box = make_box(CONFIG + "  z-t: {spot: {trace: t.json}}\n")
    with pytest.raises(BadInput, match=r"t\.json: data\[2\]: expected a whole number, 0 or more, found 'x'"):
        await box.offers(OfferQuery())


async def test_another_configuration_is_refused_while_the_box_has_machines(box: LocalProvider, tmp_path: Path) -> None:
    await start(box)
    other = tmp_path / "other.yaml"
    other.write_text(CONFIG)
    with pytest.raises(BadInput, match=r"other\.yaml: the box has 1 machine of .*home\.yaml; end them first"):
        await LocalProvider(box.home, other).status()
    (tmp_path / "home.yaml").write_text("nonsense")  # a server that is started again under a running job
    again = await LocalProvider(box.home, tmp_path / "home.yaml").status()
    assert again["config"].endswith("home.yaml")
    assert len(again["instances"]) == 1


@pytest.mark.parametrize("name", ["other.yaml", "home.yaml"])
async def test_a_box_without_machines_makes_way(box: LocalProvider, tmp_path: Path, name: str) -> None:
    """For another configuration and for another text of the same one."""
    before = await daemon_pid(box)
    assert (await LocalProvider(box.home, tmp_path / "home.yaml").status())["pid"] == before
    (tmp_path / name).write_text(CONFIG.replace("spot: 0.9", "spot: 0.8"))
    offers = await LocalProvider(box.home, tmp_path / name).offers(OfferQuery())
    assert {o.price_usd_per_h for o in offers} == {0.8, 3.06}
    (tmp_path / name).write_text("nonsense")
    with pytest.raises(BadInput):
        await LocalProvider(box.home, tmp_path / name).offers(OfferQuery())
    assert len(await LocalProvider(box.home).offers(OfferQuery())) == len(offers)


async def test_a_box_can_be_stopped_and_started_again(box: LocalProvider) -> None:
    instance = await start(box)
    keys = await processes_of(box, instance)
    for _ in range(3):
        await box.stop()
        assert not [k for k in keys if alive(k)]
        assert not (await resource(box, instance)).alive
    await box.stop()
    await box.stop()


async def test_a_box_deep_in_the_file_system(make_box: MakeBox) -> None:
    """Longer than a unix socket's name may be."""
    box = make_box(home="x" * 40)
    deep = box.home / ("y" * 60) / ("z" * 60)
    nested = LocalProvider(deep, box.home.parent / f"{box.home.name}.yaml", agent_argv=["true"])
    try:
        assert await nested.offers(OfferQuery())
    finally:
        await nested.stop()


async def test_ordered_errors_hit_so_many_calls(box: LocalProvider) -> None:
    wanted = request(await offer(box))
    await box.api_fault("launch", error="throttled", times=2)
    for _ in range(2):
        with pytest.raises(Throttled, match="launch fails, as was ordered"):
            await box.launch([wanted], all_or_nothing=False)
    assert list(await box.resources(DEPLOYMENT)) == []
    (launched,) = await box.launch([wanted], all_or_nothing=False)
    assert isinstance(launched, Launched)
    for method, error, text in [
        ("fly", "", "there is no call 'fly'"),
        ("launch", "tired", "there is no error 'tired'"),
    ]:
        with pytest.raises(BadRequest, match=text):
            await box.api_fault(method, error=error)


async def test_a_late_error_took_effect_and_the_token_finds_it(box: LocalProvider) -> None:
    wanted = request(await offer(box))
    await box.api_fault("launch", late=True)
    with pytest.raises(Unreachable):
        await box.launch([wanted], all_or_nothing=True)
    (there,) = await box.resources(DEPLOYMENT)
    assert there.token == LaunchToken("t1")
    assert await launch(box, wanted) == [there.id]


async def test_a_slow_answer_does_not_hold_up_others(box: LocalProvider) -> None:
    await box.status()
    await box.api_fault("offers", delay_s=600)
    slow = asyncio.create_task(box.offers(OfferQuery()))
    await asyncio.sleep(0.02)
    assert await box.offers(OfferQuery())
    assert not slow.done()
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)


async def test_a_daemon_that_dies_during_a_call_is_unreachable(box: LocalProvider) -> None:
    await box.api_fault("offers", delay_s=600)
    slow = asyncio.create_task(box.offers(OfferQuery()))
    await asyncio.sleep(0.05)
    await kill_daemon(box)
    with pytest.raises(Unreachable, match="the box went away during offers"):
        await slow
    assert await box.offers(OfferQuery())


async def test_failures_of_the_configuration_reach_the_caller(make_box: MakeBox) -> None:
    box = make_box(CONFIG + "fail: [{zone: z-a, error: no_capacity, times: 1}]\n")
    wanted = request(await offer(box))
    with pytest.raises(NoCapacity, match=r"no_capacity in z-a, as the configuration wants \(fail\[0\]\)"):
        await launch(box, wanted)
    assert len(await launch(box, wanted)) == 1


@pytest.mark.parametrize("verb", ["preempt", "kill", "partition", "heal"])
async def test_faults_need_a_machine_that_runs(box: LocalProvider, verb: str) -> None:
    instance = await start(box)
    with pytest.raises(BadRequest, match=f"there is no running instance i-none; running: {instance}"):
        await getattr(box, verb)("i-none")


async def test_a_box_without_an_agent_says_so(make_box: MakeBox) -> None:
    box = make_box(agent_argv=[])
    with pytest.raises(BadRequest, match="the box does not know the agent's command: give agent_argv"):
        await launch(box, request(await offer(box)))
