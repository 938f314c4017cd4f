"""Ranks ask the server for signed URLs through their agent, whose credential they never see."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import stat
import sys
from collections.abc import Mapping
from types import MappingProxyType

from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, RunningAgent, spec, until

LIST = "import sys; from everstep.train.signed import SignedStore as S; from pathlib import Path; "
LIST += "print('found', S('s3://b/j-1', Path(sys.argv[1])).list('a/'))"


def ask(
    agent: RunningAgent, path: str, *, method: str = "POST", headers: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, bytes]:
    """A request of this user's on the socket of an agent."""
    with contextlib.ExitStack() as stack:
        folder = os.open(agent.root / "agent" / "desk", os.O_RDONLY)
        stack.callback(os.close, folder)
        line = stack.enter_context(socket.socket(socket.AF_UNIX))
        line.connect(f"/proc/self/fd/{folder}/objects.sock")
        connection = http.client.HTTPConnection("agent", timeout=60)
        connection.sock = line
        connection.request(method, path, body=None if headers or method == "GET" else b"{}", headers=dict(headers))
        response = connection.getresponse()
        return response.status, response.read()


def answers(agent: RunningAgent) -> bool:
    """Whether anybody is there."""
    try:
        return ask(agent, f"{hs.PATH_OBJECTS}list") == (200, b"{}")
    except OSError:
        return False


def test_a_rank_asks_and_gets_the_answer_of_the_server(server: AgentServer, agents: Agents) -> None:
    asked: list[str] = []

    def answer(method: str, path: str) -> tuple[int, bytes] | None:
        if not path.startswith(hs.PATH_OBJECTS):
            return None
        asked.append(f"{method} {path}")
        return 200, json.dumps({"objects": {"a/b": 3}}).encode()

    server.intercept = answer
    agent = agents.start()
    driver = Driver(server, agent)
    run = f'{sys.executable} -c "{LIST}" "$EVERSTEP_OBJECTS"; env; ls -ld "$(dirname "$EVERSTEP_OBJECTS")"'
    driver.run(spec(run, checkpoint_mirror="s3://b/j-1"), node_rank=None)
    driver.log("found {'a/b': 3}")
    driver.ended()
    assert asked == [f"POST {hs.PATH_OBJECTS}list"]
    credential = json.loads((agent.root / "agent" / "credential.json").read_text())["credential"]
    assert credential not in agent.member.log_text(1, "0")
    assert stat.S_IMODE((agent.root / "agent" / "desk").stat().st_mode) == 0o700


def test_answers_come_through_as_they_are_and_nothing_else_is_passed_on(server: AgentServer, agents: Agents) -> None:
    server.intercept = lambda method, path: (200, b"{}") if path.startswith(hs.PATH_OBJECTS) else None
    agent = agents.start()
    until(lambda: answers(agent), "an answer", timeout_s=60.0)
    for path in (hs.PATH_REPORTS, hs.PATH_ORDERS, f"{hs.PATH_OBJECTS}other", f"{hs.PATH_OBJECTS}../join", "/"):
        assert ask(agent, path)[0] == 404
    assert ask(agent, f"{hs.PATH_OBJECTS}list", method="GET")[0] == 501
    for length in (str((1 << 20) + 1), "-1", "many"):
        assert ask(agent, f"{hs.PATH_OBJECTS}create?key=a", headers={"Content-Length": length})[0] == 413
    words = b'{"error": "not for you"}'
    for status, through in ((200, 200), (401, 401), (404, 404), (422, 422), (500, 503), (503, 503)):
        server.intercept = lambda _, path, s=status: (s, words) if path.startswith(hs.PATH_OBJECTS) else None
        found, body = ask(agent, f"{hs.PATH_OBJECTS}sign")
        assert found == through
        assert b"not for you" in body


def test_an_agent_that_is_started_again_answers_at_the_same_place(server: AgentServer, agents: Agents) -> None:
    server.intercept = lambda method, path: (200, b"{}") if path.startswith(hs.PATH_OBJECTS) else None
    agent = agents.start()
    until(lambda: answers(agent), "an answer", timeout_s=60.0)
    agent.kill9()
    assert not answers(agent)
    again = agents.start(again=agent)
    until(lambda: answers(again), "an answer", timeout_s=60.0)
