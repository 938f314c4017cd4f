"""The life of an agent against the strict server: join, prepare, check, run, end, release."""

from __future__ import annotations

import stat

from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, spec


def test_full_life(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    what = spec(
        'echo "rank $NODE_RANK of $SKYPILOT_NUM_NODES"; mkdir -p out; echo result > out/file',
        setup="echo setting up",
        outputs=["out"],
        release_outputs=True,
    )
    driver.prepare(what)
    ready = server.wait_message(agent.member, hs.MSG_READY)
    driver.order(hs.PHASE_CHECK, 1, what)
    assert server.wait_message(agent.member, hs.MSG_CHECKED)["unreachable"] == []
    driver.order(hs.PHASE_RUN, 1, what)
    ended = driver.ended()
    assert (ended["outcome"], ended["rc"], ended["failed_rank"]) == (hs.OUTCOME_OK, 0, None)
    driver.log("rank 0 of 1")
    driver.log("setting up", name="setup")
    again = server.wait_message(agent.member, hs.MSG_READY, count=2)
    assert again["port"] != ready["port"]
    assert again["prepared"] == ready["prepared"]
    credential = agent.root / "agent" / "credential.json"
    assert stat.S_IMODE(credential.stat().st_mode) == 0o600
    driver.order(hs.PHASE_RELEASE, 1, what)
    assert agent.process.wait(20) == 0
    assert agent.member.outputs == {"out/file": b"result\n"}
    stored = agent.member.of_kind(hs.MSG_OUTPUTS_STORED)[0]
    assert (stored["files"], stored["error"]) == (1, None)
    assert [message["how"] for message in agent.member.of_kind(hs.MSG_SHUTDOWN)] == ["normal"]
    assert agent.descendants() == []
