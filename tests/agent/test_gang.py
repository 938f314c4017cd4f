"""Several agents, real torch: the environment of ``run`` is enough for torchrun and for ranks that the agent starts."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.agent.portholder import HeldPort
from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, spec, until

BIN = Path(sys.executable).parent

REDUCE = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
t = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(t)
print("sum", t.item(), "of", dist.get_world_size(), "local", os.environ["LOCAL_RANK"], flush=True)
dist.destroy_process_group()
"""


def pair(server: AgentServer, agents: Agents) -> tuple[Driver, dict[str, str]]:
    gang = [agents.start("i-0"), agents.start("i-1")]
    for agent in gang:
        (agent.root / "workdir").mkdir()
        (agent.root / "workdir" / "train.py").write_text(REDUCE)
    return Driver(server, *gang), {"PATH": f"{BIN}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}


@pytest.mark.expensive(family="agent gangs")
@pytest.mark.slow
def test_torchrun_without_arguments(server: AgentServer, agents: Agents) -> None:
    driver, envs = pair(server, agents)
    what = spec("torchrun train.py", num_nodes=2, envs=envs)
    for attempt in (1, 2):  # the second one on a new port, announced in advance
        driver.prepare(what, attempt)
        if attempt == 2:
            server.wait_message(driver.gang[0].member, hs.MSG_READY, count=2)
        driver.order(hs.PHASE_RUN, attempt, what)
        for rank in (0, 1):
            assert driver.ended(rank, attempt)["outcome"] == hs.OUTCOME_OK
            driver.log("sum 3.0 of 2 local 0", rank, attempt)
    ports = [message["port"] for message in driver.gang[0].member.of_kind(hs.MSG_READY)]
    assert len(set(ports)) == len(ports) == 3


@pytest.mark.expensive(family="agent gangs")
@pytest.mark.slow
def test_ranks_started_by_the_agent(server: AgentServer, agents: Agents) -> None:
    driver, envs = pair(server, agents)
    what = spec(argv=[str(BIN / "python"), "train.py"], ranks_per_node=2, num_nodes=2, envs=envs)
    driver.prepare(what)
    driver.order(hs.PHASE_CHECK, 1, what)
    for agent in driver.gang:
        assert server.wait_message(agent.member, hs.MSG_CHECKED)["unreachable"] == []
    driver.order(hs.PHASE_RUN, 1, what)
    for rank in (0, 1):
        assert driver.ended(rank)["outcome"] == hs.OUTCOME_OK
        for local in (0, 1):
            driver.log(f"sum 10.0 of 4 local {local}", rank, name=str(2 * rank + local))


def test_unreachable_peer_is_named(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    what = spec("true", num_nodes=3)
    driver.prepare(what)
    assert agent.member.joined is not None
    with socket.socket() as silent:  # bound, not listening: refuses; the other one answers, but is no agent
        silent.bind(("127.0.0.1", 0))
        alien = server.url.rpartition(":")[2]
        peers = [
            {"rank": 0, "address": "127.0.0.1", "probe_port": agent.member.joined[hs.JOIN_PROBE_PORT]},
            {"rank": 1, "address": "127.0.0.2", "probe_port": silent.getsockname()[1]},
            {"rank": 2, "address": "127.0.0.1", "probe_port": int(alien)},
        ]
        driver.order(hs.PHASE_CHECK, 1, what, peers=peers)
        checked = server.wait_message(agent.member, hs.MSG_CHECKED)
    assert checked["unreachable"] == ["127.0.0.2", "127.0.0.1"]


def test_sky_pilot_and_own_names(server: AgentServer, agents: Agents) -> None:
    driver = Driver(server, agents.start("i-0"), agents.start("i-1"))
    driver.run(
        spec("env", num_nodes=2, name="train", checkpoint_dir="ck", checkpoint_mirror="s3://saves/j-1"), base="3:40"
    )
    driver.ended(1)
    text = driver.gang[1].member.log_text(1, "1")
    server.wait(lambda: "EVERSTEP_BASE" in driver.gang[1].member.log_text(1, "1"))
    text = driver.gang[1].member.log_text(1, "1")
    for line in (
        "SKYPILOT_NODE_RANK=1",
        "SKYPILOT_NUM_NODES=2",
        "SKYPILOT_NUM_GPUS_PER_NODE=0",
        "SKYPILOT_NODE_IPS=127.0.0.1\n127.0.0.1",
        "SKYPILOT_TASK_ID=j-1_train",
        "EVERSTEP_TASK_ID=j-1_train",
        "EVERSTEP_BASE=3:40",
        f"EVERSTEP_CHECKPOINT_DIR={driver.gang[1].root}/workdir/ck",
        "EVERSTEP_CHECKPOINT_MIRROR=s3://saves/j-1",
        "PET_NODE_RANK=1",
        "PET_NPROC_PER_NODE=1",
        "MASTER_ADDR=127.0.0.1",
    ):
        assert line in text
    for name in ("EVERSTEP_TOKEN", "EVERSTEP_SERVER", "\nRANK=", "\nWORLD_SIZE=", "\nLOCAL_RANK="):
        assert name not in text


def test_a_job_without_a_checkpoint_folder_gets_one_on_the_disk(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(spec('echo "in $EVERSTEP_CHECKPOINT_DIR."', checkpoint_dir="", name=None), node_rank=None)
    driver.log(f"in {agent.root}/checkpoints.")


def test_torchrun_reads_the_names_we_set() -> None:
    from torch.distributed.run import get_args_parser

    code = (
        "import json; from torch.distributed.run import get_args_parser as parser; "
        "print(json.dumps(vars(parser().parse_args(['x.py']))))"
    )
    env = {
        **os.environ,
        "PET_RDZV_BACKEND": "static",
        "PET_NNODES": "3",
        "PET_NODE_RANK": "2",
        "PET_MASTER_ADDR": "10.0.0.1",
        "PET_MASTER_PORT": "1234",
        "PET_NPROC_PER_NODE": "4",
    }
    assert get_args_parser().parse_args(["x.py"]).nnodes == "1:1"
    parsed = json.loads(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True).stdout)
    names = ("rdzv_backend", "nnodes", "node_rank", "master_addr", "master_port", "nproc_per_node")
    assert [str(parsed[name]) for name in names] == ["static", "3", "2", "10.0.0.1", "1234", "4"]


def test_held_port_is_kept_from_others_and_free_for_torch() -> None:
    from torch.distributed import TCPStore

    held = HeldPort()
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", held.port))
    for _ in range(2):  # also a second time, while the first one's connections linger
        store = TCPStore("127.0.0.1", held.port, 1, is_master=True)
        store.set("key", "value")
        assert store.get("key") == b"value"
        del store
    held.release()
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        stranger.bind(("127.0.0.1", held.port))


def test_library_reports_become_messages(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    script = r"""
cd "$EVERSTEP_REPORT_DIR"
echo '{"t": 1, "kind": "restored", "base": "1:5", "restore_s": 0.25, "missed": "1:3"}' >> facts-0.jsonl
echo '{"t": 1, "kind": "restored", "base": "1:5", "restore_s": 0.5}' >> facts-1.jsonl
echo 'torn' >> facts-0.jsonl
echo '{"t": 2, "kind": "warning", "text": "slow disk"}' >> facts-0.jsonl
echo '{"t": 2, "kind": "saved", "step": 7, "bytes": 10, "save_s": 1, "stall_s": 0.1, "durable": true}' >> facts-0.jsonl
{ echo '{"t": 9.5, "rank": 0, "step": 8, "total": 10, "first_step_at": 3.5, "steps_done": 3,'
  echo '"metrics": {"loss": 0.5, "bad": "x"}, "stall_s": 0.1}'; } > p
mv p progress-0.json
until grep -q '"stop": true' "$EVERSTEP_CONTROL_FILE"; do sleep 0.02; done
echo '{"t": 11, "kind": "saved", "step": 9, "bytes": 10, "save_s": 1, "stall_s": 0.1, "durable": true}' >> facts-0.jsonl
exit 1
"""
    what = spec(script)
    driver.run(what)
    progress = server.wait_message(agent.member, hs.MSG_PROGRESS)
    assert (progress["step"], progress["total"], progress["metrics"]) == (8, 10, {"loss": 0.5})
    assert [(m["restore_s"], m["missed"]) for m in agent.member.of_kind(hs.MSG_RESTORED)] == [(0.25, "1:3")]
    assert [m["step"] for m in agent.member.of_kind(hs.MSG_SAVED)] == [7]
    server.wait_message(agent.member, hs.MSG_HEARTBEAT, where=lambda m: m.get("warnings") == ["rank 0: slow disk"])
    # With our library no signal is sent: the control file says it all. torchrun turns exit code 75 into 1.
    driver.order(hs.PHASE_HOLD, 1, what, stop={"save": True, "grace_s": 15.0, "reason": "test"})
    ended = driver.ended()
    assert (ended["outcome"], ended["rc"], ended["step"], ended["first_step_at"]) == (hs.OUTCOME_SAVED, 1, 8, 3.5)
    assert (ended["steps_done"], ended["last_step_at"]) == (3, 9.5)


def test_stop_with_save_kills_when_the_grace_is_over(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    what = spec("trap '' TERM; echo up; while true; do sleep 0.02; done")
    driver.run(what)
    driver.log("up")
    driver.order(hs.PHASE_HOLD, 1, what, stop={"save": True, "grace_s": 0.3, "reason": "test"})
    ended = driver.ended()
    assert (ended["outcome"], ended["signal"]) == (hs.OUTCOME_STOPPED, 9)
    until(lambda: not [one for one in agent.descendants() if one.ppid == 1], "no orphans")
