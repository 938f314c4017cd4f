"""The server is away, wrong, old, forgetful or hostile: training goes on as long as it may, and nothing is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer, Member
from tests.agent.conftest import Agents, Driver, spec, until

UNTIL_FILE = "touch started; while [ ! -e go ]; do sleep 0.05; done"


class TestShortLease:
    @pytest.fixture
    def server(self) -> Iterator[AgentServer]:
        one = AgentServer(lease_s=1.5, heartbeat_s=0.2)
        yield one
        one.close()
        assert one.violations == []

    def test_outage_longer_than_the_lease_saves_and_stops(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec("trap 'echo saved; exit 75' TERM; touch started; while true; do sleep 0.05; done"))
        until((agent.root / "workdir" / "started").exists, "the start of the rank")
        server.set_down(True)
        control = agent.root / "attempts" / "1" / "control.json"
        until(lambda: json.loads(control.read_text())[hs.CONTROL_STOP], "the wish to stop")
        until(lambda: b'"lease_expired"' in (agent.root / "agent" / "outbox.jsonl").read_bytes(), "the queued message")
        assert agent.process.poll() is None, "it keeps trying"
        server.set_down(False)
        assert driver.ended()["outcome"] == hs.OUTCOME_SAVED
        assert server.wait_message(agent.member, hs.MSG_LEASE_EXPIRED)["attempt"] == 1
        # It is a good member again.
        driver.order(hs.PHASE_RUN, 2, spec("echo back"))
        assert driver.ended(attempt=2)["outcome"] == hs.OUTCOME_OK

    def test_lease_lives_while_the_server_answers(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec(UNTIL_FILE))
        server.wait_message(agent.member, hs.MSG_HEARTBEAT, where=lambda m: m["attempt"] == 1, count=12)
        (agent.root / "workdir" / "go").touch()
        assert driver.ended()["outcome"] == hs.OUTCOME_OK
        assert agent.member.of_kind(hs.MSG_LEASE_EXPIRED) == []


class TestLongLease:
    def test_short_outage_is_invisible_and_reports_arrive_later(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec(UNTIL_FILE + "; echo done"))
        driver.started()
        until((agent.root / "workdir" / "started").exists, "the start of the rank")
        server.set_down(True)
        (agent.root / "workdir" / "go").touch()
        until(lambda: b'"ended"' in (agent.root / "agent" / "outbox.jsonl").read_bytes(), "the queued end")
        assert agent.member.of_kind(hs.MSG_ENDED) == []
        server.set_down(False)
        assert driver.ended()["outcome"] == hs.OUTCOME_OK
        driver.log("done")

    def test_reports_survive_the_death_of_the_agent_during_an_outage(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec(UNTIL_FILE))
        driver.started()
        server.set_down(True)
        (agent.root / "workdir" / "go").touch()
        until(lambda: b'"ended"' in (agent.root / "agent" / "outbox.jsonl").read_bytes(), "the queued end")
        agent.kill9()
        agents.start(again=agent)
        server.set_down(False)
        assert driver.ended()["outcome"] == hs.OUTCOME_OK
        assert agent.member.joins == 1

    def test_repeated_and_older_orders_change_nothing(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        what = spec("echo begin >> begun; touch started; while [ ! -e go ]; do sleep 0.05; done")
        driver.run(what, attempt=3)
        driver.started(attempt=3)
        stop = {"save": False, "grace_s": 0.0, "reason": "old"}
        for phase, attempt, more in [
            (hs.PHASE_RUN, 3, {}),
            (hs.PHASE_HOLD, 2, {"stop": stop}),
            (hs.PHASE_RUN, 1, {}),
            (hs.PHASE_CHECK, 3, {}),
            (hs.PHASE_PREPARE, 3, {}),
            (hs.PHASE_RUN, 3, {}),
        ]:
            driver.order(phase, attempt, what, **more)
            beats = len(agent.member.of_kind(hs.MSG_HEARTBEAT))
            server.wait_message(agent.member, hs.MSG_HEARTBEAT, count=beats + 2)
        assert agent.member.of_kind(hs.MSG_HEARTBEAT)[-1]["attempt"] == 3
        (agent.root / "workdir" / "go").touch()
        assert driver.ended(attempt=3)["outcome"] == hs.OUTCOME_OK
        assert (agent.root / "workdir" / "begun").read_text() == "begin\n"
        assert [one["attempt"] for one in agent.member.of_kind(hs.MSG_STARTED)] == [3]

    def test_newer_attempt_ends_the_older_one(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec("sleep 600"))
        driver.started()
        driver.order(hs.PHASE_RUN, 2, spec("echo second"))
        assert driver.ended(attempt=1)["outcome"] == hs.OUTCOME_STOPPED
        assert driver.ended(attempt=2)["outcome"] == hs.OUTCOME_OK
        kinds = [
            (m["kind"], m["attempt"]) for m in agent.member.messages if m["kind"] in (hs.MSG_STARTED, hs.MSG_ENDED)
        ]
        assert kinds == [("started", 1), ("ended", 1), ("started", 2), ("ended", 2)]

    def test_fenced_by_the_server(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec("sleep 600"))
        driver.started()
        fenced = threading.Event()

        def intercept(method: str, path: str) -> tuple[int, bytes] | None:
            if path == hs.PATH_REPORTS and not fenced.is_set():
                fenced.set()
                return 409, b'{"error": "fenced"}'
            return None

        server.intercept = intercept
        assert driver.ended()["outcome"] == hs.OUTCOME_STOPPED

    def test_unknown_credential_stops_everything(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec("sleep 600"))
        driver.started()
        server.intercept = lambda method, path: (401, b'{"error": "unknown credential"}')
        assert agent.process.wait(20) == 3
        assert agent.descendants() == []

    def test_server_that_knows_nobody_while_it_starts_is_forgiven(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec(UNTIL_FILE))
        driver.started()
        refused = []

        def intercept(method: str, path: str) -> tuple[int, bytes] | None:
            if path == hs.PATH_REPORTS and not refused:
                refused.append(path)
                return 401, b'{"error": "who are you?"}'
            return None

        server.intercept = intercept
        server.wait(lambda: refused, what="the refusal")
        beats = len(agent.member.of_kind(hs.MSG_HEARTBEAT))
        server.wait_message(agent.member, hs.MSG_HEARTBEAT, count=beats + 10)
        (agent.root / "workdir" / "go").touch()
        assert driver.ended()["outcome"] == hs.OUTCOME_OK

    def test_rubbish_is_survived(self, server: AgentServer, agents: Agents) -> None:
        rubbish = [
            (500, b"oops"),
            (200, b"{not json"),
            (200, b"[]"),
            (200, b'{"ack": "many", "version": "x", "phase": 7, "offset": -1}'),
            (200, b'{"ack": 10000000, "version": 99, "phase": "dance", "offset": true}'),
            (503, b'{"error": "busy"}'),
            (302, b""),
            (404, b"nowhere"),
            (200, b'{"version": 5, "phase": "run", "attempt": 1}'),
            (200, b'{"version": 6, "phase": "run", "attempt": null, "spec": []}'),
        ]
        some = [rubbish[0], rubbish[3], rubbish[4], rubbish[9]]  # in a row: pauses grow
        left = {hs.PATH_REPORTS: rubbish, hs.PATH_ORDERS: some, hs.PATH_LOGS: rubbish[1:5]}
        true_reports = [False]

        def intercept(method: str, path: str) -> tuple[int, bytes] | None:
            if path == hs.PATH_REPORTS:  # every second answer is true: pauses stay short
                true_reports[0] = not true_reports[0]
                if true_reports[0]:
                    return None
            return left[path].pop(0) if left.get(path) else None

        agent = agents.start()
        driver = Driver(server, agent)
        server.wait(lambda: agent.member.joined)
        server.intercept = intercept
        driver.run(spec("echo through it all"))
        assert driver.ended()["outcome"] == hs.OUTCOME_OK
        driver.log("through it all")
        server.wait(lambda: not any(left.values()), what="all rubbish told", timeout_s=40)
        assert agent.process.poll() is None

    def test_version_mismatch_is_said_and_final(self, server: AgentServer, agents: Agents) -> None:
        server.intercept = lambda method, path: (426, b'{"error": "the server speaks 7, the agent 1 to 1"}')
        agent = agents.start()
        assert agent.process.wait(20) == 2
        assert "version mismatch" in agent.stderr()
        assert "the server speaks 7" in agent.stderr()

    def test_wrong_token_is_said_and_final(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start(**{hs.BOOT_TOKEN: "stolen"})
        assert agent.process.wait(20) == 2
        assert "join token" in agent.stderr()

    def test_server_that_comes_late(self, server: AgentServer, agents: Agents) -> None:
        server.set_down(True)
        agent = agents.start()
        until(lambda: "cannot join yet" in agent.stderr(), "the first failed join")
        server.set_down(False)
        server.wait(lambda: agent.member.joined, what="join")

    def test_log_offsets_after_a_server_that_forgot(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(
            spec(
                "for i in 1 2 3; do echo line $i; done; touch started; while [ ! -e go ]; do sleep 0.05; done; echo end"
            )
        )
        driver.log("line 3")
        with server.changed:
            del agent.member.logs[1, "0"][4:]  # the server's disk was put back
        (agent.root / "workdir" / "go").touch()
        driver.log("end")
        assert agent.member.log_text(1, "0") == "line 1\nline 2\nline 3\nend\n"

    def test_logs_of_a_killed_agent_are_shipped_by_the_next(self, server: AgentServer, agents: Agents) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        server.intercept = lambda method, path: (503, b"") if path == hs.PATH_LOGS else None
        driver.run(spec("echo unsent"))
        driver.ended()
        agent.kill9()
        server.intercept = lambda method, path: None
        agents.start(again=agent)
        driver.log("unsent")

    def test_message_that_the_server_cannot_read_does_not_hold_up_others(
        self, server: AgentServer, agents: Agents
    ) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        server.wait(lambda: agent.member.joined)
        truth = server.reports
        refused = []

        def reports(member: Member, body: Any) -> tuple[int, dict[str, Any]]:
            if any(message["kind"] == hs.MSG_STARTED for message in body["messages"]):
                refused.append(len(body["messages"]))
                return 422, {"error": "what is started?"}
            return truth(member, body)

        server.reports = reports  # type: ignore[method-assign]
        driver.run(spec("echo on"))
        assert driver.ended()["outcome"] == hs.OUTCOME_OK
        told = server.wait_message(agent.member, hs.MSG_HEARTBEAT, where=lambda m: "warnings" in m)
        assert "what is started?" in told["warnings"][0]
        assert agent.member.of_kind(hs.MSG_STARTED) == []

    def test_server_that_refuses_everything_for_a_while_loses_nothing(
        self, server: AgentServer, agents: Agents
    ) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        server.wait(lambda: agent.member.joined)
        truth = server.reports
        stand_ins = 0

        def reports(member: Member, body: Any) -> tuple[int, dict[str, Any]]:
            nonlocal stand_ins
            if stand_ins == 3:
                return truth(member, body)
            stand_ins += "warnings" in body["messages"][0]
            return 400, {"error": "bad gateway configuration"}

        server.reports = reports  # type: ignore[method-assign]
        driver.run(spec("echo on"))
        assert driver.ended()["outcome"] == hs.OUTCOME_OK
        assert stand_ins == 3
        assert [m for m in agent.member.of_kind(hs.MSG_HEARTBEAT) if "warnings" in m] == []
        kinds = [m["kind"] for m in agent.member.messages if m["kind"] != hs.MSG_HEARTBEAT]
        assert kinds[:3] == [hs.MSG_READY, hs.MSG_STARTED, hs.MSG_READY]

    def test_server_put_back_to_an_older_state_gets_the_messages_again(
        self, server: AgentServer, agents: Agents
    ) -> None:
        agent = agents.start()
        driver = Driver(server, agent)
        driver.run(spec("echo once"))
        driver.ended()
        with server.changed:
            # Only what follows an unbroken prefix is taken: the server is strict about gaps.
            del agent.member.messages[1:]
        assert driver.ended()["outcome"] == hs.OUTCOME_OK
        numbers = [message["seq"] for message in agent.member.messages]
        assert numbers == list(range(1, len(numbers) + 1))
        server.violations[:] = [text for text in server.violations if not text.startswith("seq ")]
