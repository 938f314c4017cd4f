"""Preparation: folders, mounts, set-up once per boot, failures that name their reason, secrets that stay."""

from __future__ import annotations

import io
import tarfile

import pytest

from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, spec


def archive(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            info.mode = 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def test_folder_and_mounts_arrive_and_setup_runs_in_them(server: AgentServer, agents: Agents) -> None:
    work = server.add_folder(archive({"code/main.sh": "echo from main"}))
    data = server.add_folder(archive({"numbers": "1 2 3"}))
    agent = agents.start()
    driver = Driver(server, agent)
    mounts = {"data": {"workdir": data}, "/bucket": {"source": "s3://bucket"}}
    what = spec(
        "bash code/main.sh; cat data/numbers ready", setup="cp code/main.sh ready", workdir=work, file_mounts=mounts
    )
    driver.run(what)
    assert driver.ended()["outcome"] == hs.OUTCOME_OK
    driver.log("from main\n1 2 3echo from main")
    beat = server.wait_message(agent.member, hs.MSG_HEARTBEAT, where=lambda m: "warnings" in m)
    assert beat["warnings"] == ["file_mounts: /bucket is not an uploaded folder and was left out"]


def test_setup_runs_once_per_boot_and_contents(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    what = spec("true", setup="echo once >> ran")
    driver.run(what, attempt=1)
    driver.ended(attempt=1)
    driver.order(hs.PHASE_PREPARE, 2, what)
    driver.order(hs.PHASE_RUN, 2, what)
    driver.ended(attempt=2)
    agent.kill9()
    new = agents.start(again=agent)
    server.wait_message(new.member, hs.MSG_READY, count=4)
    assert (agent.root / "workdir" / "ran").read_text() == "once\n"
    other = spec("true", setup="echo twice >> ran")
    driver.order(hs.PHASE_RUN, 3, other)
    driver.ended(attempt=3)
    assert (agent.root / "workdir" / "ran").read_text() == "once\ntwice\n"


def test_setup_is_told_the_address_of_every_node_and_waits_for_those_that_boot_later(
    server: AgentServer, agents: Agents
) -> None:
    what = spec("true", num_nodes=2, setup="echo $SKYPILOT_SETUP_NODE_RANK of $SKYPILOT_SETUP_NODE_IPS > told", slot=1)
    agent = agents.start()
    first = Driver(server, agent)
    server.wait(lambda: agent.member.joined, what="join")
    nobody: dict[str, object] = {hs.ORDERS_PEERS: [], hs.ORDERS_NODE_RANK: None}
    first.order(hs.PHASE_PREPARE, None, what, **nobody)
    server.wait_message(agent.member, hs.MSG_HEARTBEAT, count=3)
    assert not (agent.root / "workdir" / "told").exists()
    peers = [{"rank": 0, "address": "10.0.0.9", "probe_port": 1}, {"rank": 1, "address": "127.0.0.1", "probe_port": 2}]
    first.order(hs.PHASE_PREPARE, None, what, **{**nobody, hs.ORDERS_PEERS: peers})
    server.wait_message(agent.member, hs.MSG_READY)
    assert (agent.root / "workdir" / "told").read_text() == "1 of 10.0.0.9 127.0.0.1\n"


def test_setup_goes_on_without_machines_that_never_join_and_its_log_says_so(
    server: AgentServer, agents: Agents
) -> None:
    what = spec("true", num_nodes=2, setup="echo with $SKYPILOT_SETUP_NODE_IPS")
    agent = agents.start(first="from everstep.agent import prepare; prepare.GATHER_S = 0.5")
    driver = Driver(server, agent)
    server.wait(lambda: agent.member.joined, what="join")
    alone: dict[str, object] = {hs.ORDERS_PEERS: [], hs.ORDERS_NODE_RANK: None}
    driver.order(hs.PHASE_PREPARE, 1, what, **alone)
    server.wait_message(agent.member, hs.MSG_READY)
    driver.log(
        "[everstep] setup did not wait any longer: 1 of 2 nodes joined within 0.5 s; "
        "SKYPILOT_SETUP_NODE_IPS has their addresses alone\nwith 127.0.0.1\n",
        name="setup",
    )
    peers = [{"rank": rank, "address": f"10.0.0.{rank}", "probe_port": 1} for rank in (0, 1)]
    driver.order(hs.PHASE_PREPARE, 1, what, **{**alone, hs.ORDERS_PEERS: peers})
    beats = len(agent.member.of_kind(hs.MSG_HEARTBEAT))
    server.wait_message(agent.member, hs.MSG_HEARTBEAT, count=beats + 3)
    assert agent.member.log_text(1, "setup").count("with ") == 1, "who comes too late does not make it run again"


def test_disk_of_an_earlier_machine_spares_the_download_not_the_setup(server: AgentServer, agents: Agents) -> None:
    work = server.add_folder(archive({"file": "x"}))
    what = spec("true", setup="cat file >> ran; echo set up on $EVERSTEP_INSTANCE", workdir=work)
    first = agents.start("i-1")
    Driver(server, first).prepare(what)
    first.kill9()
    server.folders.clear()
    second = agents.start("i-2", **{hs.BOOT_ROOT: str(first.root)})
    Driver(server, second).prepare(what)
    assert (first.root / "workdir" / "ran").read_text() == "xx"
    assert second.member.messages[0]["seq"] == 1
    server.wait(lambda: "\n" in second.member.log_text(1, "setup"), what="the log of the second set-up")
    assert second.member.log_text(1, "setup") == "set up on i-2\n", "without the first machine's log"


def test_failed_setup_is_told_once_with_its_last_words(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    server.wait(lambda: agent.member.joined)
    what = spec("true", setup="echo looking; echo no such package >&2; exit 9")
    driver.order(hs.PHASE_PREPARE, 1, what)
    failed = server.wait_message(agent.member, hs.MSG_SETUP_FAILED)
    assert (failed["rc"], failed["tail"]) == (9, "looking\nno such package")
    driver.log("no such package", name="setup")
    driver.order(hs.PHASE_PREPARE, 1, what)
    driver.order(hs.PHASE_PREPARE, 2, spec("true", setup="echo fine"))
    server.wait_message(agent.member, hs.MSG_READY)
    assert len(agent.member.of_kind(hs.MSG_SETUP_FAILED)) == 1


def test_missing_folder_is_a_failure_with_a_reason(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    server.wait(lambda: agent.member.joined)
    Driver(server, agent).order(hs.PHASE_PREPARE, 1, spec("true", workdir="0" * 64))
    assert "no such folder" in server.wait_message(agent.member, hs.MSG_SETUP_FAILED)["tail"]


def test_release_ends_a_setup_that_hangs(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    server.wait(lambda: agent.member.joined)
    driver.order(hs.PHASE_PREPARE, 1, spec("true", setup="echo hanging; sleep 600"))
    driver.log("hanging", name="setup")
    driver.order(hs.PHASE_RELEASE, 1, spec("true"))
    assert agent.process.wait(20) == 0
    assert agent.descendants() == []


@pytest.mark.parametrize("how", ["setup", "run", "exec"])
def test_secrets_never_leave(server: AgentServer, agents: Agents, how: str) -> None:
    secret = "hunter2-very-secret"
    key = "-----BEGIN-----\nabcdefghijkl\n-----END-----"
    text = (
        'printf %s "$PASSWORD" | head -c 9; sleep 0.1; printf %s "$PASSWORD" | tail -c +10; echo; echo "$KEY"; exit 3'
    )
    envs = {"PASSWORD": secret, "KEY": key, "OPEN": "shown"}
    what = spec("true", envs=envs, secret_names=["PASSWORD", "KEY"])
    what[{"setup": hs.SPEC_SETUP, "run": hs.SPEC_RUN, "exec": hs.SPEC_TASK_NAME}[how]] = text if how != "exec" else "x"
    agent = agents.start()
    driver = Driver(server, agent)
    server.wait(lambda: agent.member.joined)
    driver.order(hs.PHASE_PREPARE, 1, what)
    if how == "setup":
        tail = server.wait_message(agent.member, hs.MSG_SETUP_FAILED)["tail"]
    else:
        server.wait_message(agent.member, hs.MSG_READY)
        more = {"exec": [{"id": "e1", "command": text}]} if how == "exec" else {}
        driver.order(hs.PHASE_RUN if how == "run" else hs.PHASE_HOLD, 1, what, **more)
        tail = driver.ended()["tail"] if how == "run" else ""
    name = {"setup": "setup", "run": "0", "exec": "exec-e1"}[how]
    driver.log("***\n***\n", name=name)
    if how == "exec":
        assert server.wait_message(agent.member, hs.MSG_EXEC_ENDED)["rc"] == 3
    assert tail in ("***\n***", "")
    left = [one.log_text(*key_) for one in server.members.values() for key_ in one.logs] + [str(agent.member.messages)]
    assert not any(secret in one or "abcdefghijkl" in one for one in left)
    state = b"".join(one.read_bytes() for one in agent.root.rglob("*") if one.is_file())
    assert secret.encode() not in state, "nor are they kept on the disk"
    assert secret not in agent.stderr()


def test_exec_runs_once_beside_the_ranks(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    what = spec("sleep 600")
    driver.run(what)
    driver.started()
    command = [{"id": "e-1", "command": "echo hello from $EVERSTEP_JOB; echo x >> count; exit 4"}]
    driver.order(hs.PHASE_RUN, 1, what, exec=command)
    ended = server.wait_message(agent.member, hs.MSG_EXEC_ENDED)
    assert (ended["id"], ended["rc"]) == ("e-1", 4)
    driver.log("hello from j-1", name="exec-e-1")
    second = [*command, {"id": "e-2", "command": "echo up; sleep 600"}]
    driver.order(hs.PHASE_RUN, 1, what, exec=second)
    driver.log("up", name="exec-e-2")
    driver.order(hs.PHASE_RUN, 1, what, exec=command)
    gone = server.wait_message(agent.member, hs.MSG_EXEC_ENDED, count=2)
    assert (gone["id"], gone["rc"]) == ("e-2", -9)
    assert (agent.root / "workdir" / "count").read_text() == "x\n"
    assert agent.member.of_kind(hs.MSG_ENDED) == []
