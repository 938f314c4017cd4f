from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from everstep.client import launcher
from everstep.client import results as r
from everstep.client.api import Client
from everstep.client.home import Home, ServerInfo
from everstep.client.launcher import ServerFailed, ServerStatus
from everstep.model.errors import Unreachable
from everstep.providers.local import rpc
from tests.cli.conftest import NOW, Cli, FakeClient

INFO = ServerInfo("http://127.0.0.1:7", 42, NOW, "d-1", "0.1.0")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Arguments of every start; no process is made."""
    calls: list[tuple[str, ...]] = []

    def start(home: Home, *, arguments: tuple[str, ...] = (), **_: object) -> ServerInfo:
        calls.append(arguments)
        return INFO

    monkeypatch.setattr(launcher, "start_background", start)
    return calls


def test_start_passes_its_options_on(cli: Cli, started: list[tuple[str, ...]], tmp_path: Path) -> None:
    done = cli("server", "start", "--port", "7", "--insecure", "--cloud", str(tmp_path / "box.yaml"))
    assert done.out == "running at http://127.0.0.1:7 (pid 42)\n"
    assert started == [("--port", "7", "--cloud", str(tmp_path / "box.yaml"), "--insecure")]


def test_a_server_that_runs_takes_no_other_options(
    cli: Cli, started: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "running at http://127.0.0.1:7 (pid 42)"
    monkeypatch.setattr(launcher, "is_running", lambda home: True)
    monkeypatch.setattr(launcher, "status", lambda home: ServerStatus(True, True, INFO, text))
    assert cli("server", "start").out == f"already {text}\n"
    done = cli("server", "start", "--port", "9", "--insecure")
    assert (done.code, done.out, done.err) == (
        2,
        "",
        f"everstep server start: --port 9 --insecure cannot be given to a server that runs already: {text}; "
        "stop it first: everstep server stop\n",
    )
    assert started == [()]


def test_a_server_that_runs_as_it_is_asked_to_is_good(
    cli: Cli, started: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    box = tmp_path / "box.yaml"
    text = "running at http://127.0.0.1:7 (pid 42)"
    info = replace(INFO, options={"--host": "127.0.0.1", "--port": "7", "--insecure": "", "--cloud": str(box)})
    monkeypatch.setattr(launcher, "is_running", lambda home: True)
    monkeypatch.setattr(launcher, "status", lambda home: ServerStatus(True, True, info, text))
    monkeypatch.chdir(tmp_path)
    for options in (["--port", "7"], ["--insecure", "--cloud", "box.yaml"], ["--host", "127.0.0.1", "--port", "7"]):
        assert cli("server", "start", *options).out == f"already {text}\n"
    done = cli("server", "start", "--port", "7", "--insecure", "--tls", "--backup", "")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("everstep server start: --backup '' --tls cannot be given to a server that runs already")


def test_a_server_that_comes_up_meanwhile_is_compared_once_it_runs(
    cli: Cli, started: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "running at http://127.0.0.1:7 (pid 42)"
    running = ServerStatus(True, True, replace(INFO, options={"--port": "7"}), text)

    def status(home: Home) -> ServerStatus:
        return running if started else ServerStatus(True, False, None, "a server is starting or stopping")

    monkeypatch.setattr(launcher, "is_running", lambda home: True)
    monkeypatch.setattr(launcher, "status", status)
    assert cli("server", "start", "--port", "7").out == f"already {text}\n"
    started.clear()
    assert cli("server", "start", "--port", "9").code == 2


def test_a_server_that_does_not_start_is_told_in_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(home: Home, *, arguments: tuple[str, ...] = (), **_: object) -> ServerInfo:
        raise ServerFailed("the server did not start (exit code 1)\nport 7 is taken")

    monkeypatch.setattr(launcher, "start_background", start)
    done = cli("server", "start")
    assert (done.code, done.err) == (
        1,
        "everstep server start: the server did not start (exit code 1) port 7 is taken\n",
    )


@pytest.mark.parametrize(
    ("phases", "told"),
    [({"ended": 7}, ""), ({"running": 1, "ended": 2}, "1 job goes on"), ({"running": 2, "paused": 1}, "3 jobs go on")],
)
def test_stop_says_which_jobs_go_on_without_the_server(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, phases: dict[str, int], told: str
) -> None:
    monkeypatch.setattr(launcher, "stop", lambda home: True)
    monkeypatch.setattr(Client, "__init__", lambda self, **_: None)
    monkeypatch.setattr(Client, "close", lambda self: None)
    monkeypatch.setattr(Client, "health", lambda self: r.Health("0", "d", 1, 0.0, 0.0, phases))
    done = cli("server", "stop")
    assert done.out == "stopped\n"
    assert done.err.startswith(told)
    assert bool(done.err) == bool(told)


@pytest.mark.parametrize(("ran", "said"), [(True, "stopped\n"), (False, "no server runs for {home}\n")])
def test_stop(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ran: bool, said: str) -> None:
    monkeypatch.setattr(launcher, "stop", lambda home: ran)
    assert cli("server", "stop").out == said.format(home=tmp_path / "home")


def test_status_of_no_server_is_3_in_every_form(cli: Cli) -> None:
    assert cli("server", "status").code == 3
    done = cli("server", "status", "-o", "json")
    assert (done.code, json.loads(done.out)["running"]) == (3, False)


def test_status(cli: Cli, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    health = r.Health("0.1.0", "d-1", 42, NOW, NOW + 90, {"running": 2}, (r.ProviderHealth("aws", False, "no key"),))
    monkeypatch.setattr(launcher, "status", lambda home: ServerStatus(True, True, INFO, "running at x"))
    monkeypatch.setattr(client, "health", lambda: health, raising=False)
    out = cli("server", "status").out
    for words in ("running at x", "1 min 30 s", "2 running", "aws no key"):
        assert words in out
    assert json.loads(cli("server", "status", "-o", "json").out)["jobs"] == {"running": 2}


# --- The cloud in a box ----------------------------------------------------------------------------------------------


def machine(name: str, *, alive: bool = True) -> dict[str, Any]:
    return {
        "id": name, "job": "j-1", "zone": "box-a", "machine_type": "m1", "market": "spot", "price_usd_per_h": 0.4,
        "started_at": NOW, "agent_state": "running", "notice": None, "partition": "", "end": None, "alive": alive,
    }  # fmt: skip


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the box was asked to do."""
    asked: list[tuple[str, dict[str, Any]]] = []

    async def call(home: Path, method: str, params: Mapping[str, Any]) -> Any:
        if method == "status":
            return {"instances": [machine("i-aa1"), machine("i-ab2"), machine("i-cc3", alive=False)]}
        asked.append((method, dict(params)))
        return None

    monkeypatch.setattr(rpc, "call", call)
    return asked


@pytest.mark.parametrize(
    ("line", "method", "params"),
    [
        ("preempt i-aa", "preempt", {"notice": True, "notice_s": None}),
        ("preempt i-aa --notice-s 5", "preempt", {"notice": True, "notice_s": 5.0}),
        ("preempt i-aa --no-notice", "preempt", {"notice": False, "notice_s": None}),
        ("kill i-aa1", "kill", {"detect_s": 0.0, "silent": False}),
        ("kill i-aa --silent --detect-s 3", "kill", {"detect_s": 3.0, "silent": True}),
        ("partition i-aa", "partition", {"mode": "blackhole"}),
        ("partition i-aa --reset", "partition", {"mode": "reset"}),
        ("heal i-aa", "partition", {"mode": ""}),
    ],
)
def test_faults(
    cli: Cli, box: list[tuple[str, dict[str, Any]]], line: str, method: str, params: dict[str, Any]
) -> None:
    done = cli("local", *line.split())
    assert done.code == 0, done.err
    assert box == [(method, {"instance": "i-aa1", **params})]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("i-a", "everstep local: INSTANCE: 'i-a' begins 2 live machines; write more of one of i-aa1, i-ab2"),
        ("i-c", "everstep local: INSTANCE: no live machine begins with 'i-c'; everstep local ls lists them"),
    ],
)
def test_a_wrong_machine_breaks_nothing(cli: Cli, box: list[Any], name: str, text: str) -> None:
    done = cli("local", "kill", name)
    assert (done.code, done.err, box) == (2, f"{text}\n", [])


def test_the_box_itself_can_be_stopped(cli: Cli, box: list[tuple[str, dict[str, Any]]]) -> None:
    assert cli("local", "stop").out == "stopped\n"
    assert box == [("stop", {})]


def test_ls(cli: Cli, box: list[Any]) -> None:
    assert [line.split()[0] for line in cli("local", "ls").out.splitlines()] == ["MACHINE", "i-aa1", "i-ab2"]
    assert len(json.loads(cli("local", "ls", "--all", "-o", "json").out)) == 3


@pytest.mark.parametrize(("ran", "said"), [(True, "stopped\n"), (False, "no server runs for {home}\n")])
def test_a_box_that_goes_on_without_its_server_is_told(
    cli: Cli, box: list[Any], monkeypatch: pytest.MonkeyPatch, home: Home, ran: bool, said: str
) -> None:
    monkeypatch.setattr(launcher, "stop", lambda home: ran)
    done = cli("server", "stop")
    line = "the cloud in a box goes on, with 2 machines, until everstep local stop ends both\n"
    assert (done.code, done.out, done.err) == (0, said.format(home=home.path), line)


def test_a_box_that_goes_on_without_machines_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(home: Path, method: str, params: Mapping[str, Any]) -> Any:
        return {"instances": [machine("i-cc3", alive=False)]}

    monkeypatch.setattr(rpc, "call", call)
    monkeypatch.setattr(launcher, "stop", lambda home: True)
    assert cli("server", "stop").err == (
        "the cloud in a box goes on, without machines, until everstep local stop ends it\n"
    )


@pytest.mark.parametrize("trouble", [FileNotFoundError("no box"), Unreachable("it went away"), TimeoutError()])
def test_a_box_that_does_not_answer_is_not_waited_for(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    async def call(home: Path, method: str, params: Mapping[str, Any]) -> Any:
        raise trouble

    monkeypatch.setattr(rpc, "call", call)
    monkeypatch.setattr(launcher, "stop", lambda home: True)
    done = cli("server", "stop")
    assert (done.code, done.out, done.err) == (0, "stopped\n", "")


def test_no_box_is_one_line_and_starts_none(cli: Cli, tmp_path: Path) -> None:
    done = cli("local", "ls", "--box", str(tmp_path))
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert "no cloud in a box runs in" in done.err
    assert list(tmp_path.iterdir()) == []
