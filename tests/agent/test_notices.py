"""Notices: each metadata flavour against a small service of its own, and what the agent does on one."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from everstep.agent import notices
from everstep.agent.clock import Clock
from everstep.agent.notices import MetadataDown, Notice, NoticeWatcher
from everstep.agent.notices.ec2 import ACTION_PATH, REBALANCE_PATH, TOKEN_PATH
from everstep.agent.notices.ec2 import MAINTENANCE_PATH as MAINTENANCE_PATH_EC2
from everstep.agent.notices.gcp import MAINTENANCE_PATH, PREEMPTED_PATH
from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, spec, until

TERMINATE_AT = '{"action": "terminate", "time": "2035-01-02T03:04:05Z"}'
TERMINATE_UTC = 2051319845.0


class Metadata:
    """A metadata service; ``values`` by path; a ``token`` that is set is demanded as by IMDSv2."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.token: str | None = None
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.changed = threading.Condition()
        self.closed = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer.answer(self, "GET")

            def do_PUT(self) -> None:
                outer.answer(self, "PUT")

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def set(self, path: str, value: str) -> None:
        with self.changed:
            self.values[path] = value
            self.changed.notify_all()

    def answer(self, handler: BaseHTTPRequestHandler, method: str) -> None:
        url = urlsplit(handler.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.requests.append((method, url.path, dict(handler.headers.items())))
        status, body, headers = self._look(handler, method, url.path, query)
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body.encode())

    def _look(
        self, handler: BaseHTTPRequestHandler, method: str, path: str, query: dict[str, str]
    ) -> tuple[int, str, dict[str, str]]:
        if method == "PUT":
            good = path == TOKEN_PATH and handler.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            return (200, self.token or "", {}) if good else (400, "", {})
        if path.startswith("/computeMetadata"):
            if handler.headers.get("Metadata-Flavor") != "Google":
                return 403, "", {}
            with self.changed:
                if query.get("wait_for_change"):
                    self.changed.wait_for(lambda: self._etag(path) != query["last_etag"] or self.closed, 5.0)
                return 200, self.values[path], {"ETag": self._etag(path), "Metadata-Flavor": "Google"}
        if self.token is not None and handler.headers.get("X-aws-ec2-metadata-token") != self.token:
            return 401, "", {}
        return (200, self.values[path], {}) if path in self.values else (404, "", {})

    def _etag(self, path: str) -> str:
        return self.values[path].encode().hex()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def metadata() -> Iterator[Metadata]:
    one = Metadata()
    yield one
    one.close()


def only_watch(metadata: Metadata, flavour: str) -> notices.Watch:
    (watch,) = notices.watches(f"{flavour}={metadata.url}", Clock())
    return watch


@pytest.mark.parametrize("flavour", ["local", "aws"])
def test_ec2_style(metadata: Metadata, flavour: str) -> None:
    metadata.token = "first" if flavour == "aws" else None
    watch = only_watch(metadata, flavour)
    assert watch.poll() == []
    metadata.set(REBALANCE_PATH, '{"noticeTime": "2035-01-02T03:00:00Z"}')
    assert watch.poll() == [Notice("rebalance", None)]
    metadata.set(ACTION_PATH, TERMINATE_AT)
    assert watch.poll() == [Notice("terminate", TERMINATE_UTC), Notice("rebalance", None)]


def test_aws_token_is_renewed(metadata: Metadata) -> None:
    metadata.token = "first"
    watch = only_watch(metadata, "aws")
    assert watch.poll() == []
    metadata.token = "second"
    metadata.set(ACTION_PATH, TERMINATE_AT)
    assert watch.poll() == [Notice("terminate", TERMINATE_UTC)]
    assert [path for method, path, _ in metadata.requests if method == "PUT"] == [TOKEN_PATH, TOKEN_PATH]


def test_local_cloud_tells_the_end_of_life(metadata: Metadata) -> None:
    metadata.set(ACTION_PATH, '{"action": "terminate", "time": "2035-01-02T03:04:05.000Z", "kind": "max_life"}')
    assert only_watch(metadata, "local").poll() == [Notice("max_life", TERMINATE_UTC)]


@pytest.mark.parametrize("at", ["2 Jan 2035 03:04:05 GMT", "2035-01-02T03:04:05Z"])
def test_scheduled_maintenance(metadata: Metadata, at: str) -> None:
    events = [{"Code": "instance-stop", "State": state, "NotBefore": at} for state in ("completed", "active")]
    metadata.set(MAINTENANCE_PATH_EC2, json.dumps(events))
    assert only_watch(metadata, "local").poll() == [Notice("maintenance", TERMINATE_UTC)]


@pytest.mark.parametrize("body", ["rubbish", "[]", "7"])
def test_rubbish_is_no_notice(metadata: Metadata, body: str) -> None:
    metadata.set(ACTION_PATH, body)
    with pytest.raises(MetadataDown):
        only_watch(metadata, "local").poll()


@pytest.mark.parametrize("body", ['{"action": "terminate"}', '{"action": "terminate", "time": "soon"}'])
def test_action_without_a_usable_time_is_still_a_notice(metadata: Metadata, body: str) -> None:
    metadata.set(ACTION_PATH, body)
    assert only_watch(metadata, "local").poll() == [Notice("terminate", None)]


def test_gcp_long_poll(metadata: Metadata) -> None:
    metadata.values.update({PREEMPTED_PATH: "FALSE", MAINTENANCE_PATH: "NONE"})
    clock = Clock()
    found: list[Notice] = []
    watcher = NoticeWatcher(notices.watches(f"gcp={metadata.url}", clock), found.append)
    watcher.start()
    try:
        until(lambda: len(metadata.requests) >= 4, "both long polls waiting")
        assert found == []
        metadata.set(MAINTENANCE_PATH, "MIGRATE_ON_HOST_MAINTENANCE")
        metadata.set(PREEMPTED_PATH, "TRUE")
        until(lambda: found, "the preemption")
        metadata.set(MAINTENANCE_PATH, "TERMINATE_ON_HOST_MAINTENANCE")
        until(lambda: len(found) == 2, "the maintenance")
        assert [one.kind for one in found] == ["terminate", "maintenance"]
        assert found[0].deadline is not None
        assert 20 < found[0].deadline - clock.utc() <= 30
    finally:
        watcher.stop()


def test_each_notice_once_and_failures_do_not_end_the_watch(metadata: Metadata) -> None:
    class Flaky(notices.Watch):
        interval_s = 0.0
        polls = 0

        def poll(self) -> list[Notice]:
            self.polls += 1
            if self.polls == 1:
                raise RuntimeError("surprise")
            return [Notice("terminate", 5.0)] if self.polls < 50 else [Notice("terminate", 6.0)]

    found: list[Notice] = []
    flaky = Flaky()
    watcher = NoticeWatcher([flaky], found.append)
    watcher.start()
    until(lambda: len(found) == 2, "both notices")
    watcher.stop()
    assert [one.deadline for one in found] == [5.0, 6.0]


def test_unknown_flavour() -> None:
    with pytest.raises(ValueError, match="unknown metadata flavour 'azure'; known: none, aws, gcp, local"):
        notices.watches("azure=http://x", Clock())


# ---- the agent on a notice -----------------------------------------------------------------------------------------


def control_of(root: Any) -> dict[str, Any]:
    return dict(json.loads((root / "attempts" / "1" / "control.json").read_text()))


def test_notice_is_told_at_once_and_ranks_are_asked_to_save(
    server: AgentServer, agents: Agents, metadata: Metadata
) -> None:
    agent = agents.start(**{hs.BOOT_METADATA: f"local={metadata.url}"})
    driver = Driver(server, agent)
    what = spec("sleep 600")
    driver.run(what, hazard_per_h=0.5)
    driver.started()
    quiet = {"seq": 0, "save": False, "save_by": None, "stop": False, "hazard_per_h": 0.5}
    assert control_of(agent.root) == quiet
    metadata.set(ACTION_PATH, TERMINATE_AT)
    told = server.wait_message(agent.member, hs.MSG_NOTICE)
    assert (told["notice"], told["deadline"]) == ("terminate", TERMINATE_UTC)
    until(lambda: control_of(agent.root)["save"], "the wish to save")
    wish = {**quiet, "seq": 1, "save": True, "save_by": TERMINATE_UTC}
    assert control_of(agent.root) == wish
    # The server's order for the whole gang names the same deadline: nothing new for this node; a later one is new.
    driver.order(hs.PHASE_RUN, 1, what, hazard_per_h=2.5, save={"seq": 1, "by": TERMINATE_UTC})
    until(lambda: control_of(agent.root)["hazard_per_h"] == 2.5, "the new hazard")
    assert control_of(agent.root) == {**wish, "hazard_per_h": 2.5}
    driver.order(hs.PHASE_RUN, 1, what, hazard_per_h=2.5, save={"seq": 2, "by": None})
    until(lambda: control_of(agent.root)["seq"] == 2, "the second wish")
    assert len(agent.member.of_kind(hs.MSG_NOTICE)) == 1


def test_script_without_the_library_gets_its_signal_through_a_waiting_shell(
    server: AgentServer, agents: Agents, metadata: Metadata
) -> None:
    agent = agents.start(**{hs.BOOT_METADATA: f"local={metadata.url}"})
    driver = Driver(server, agent)
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('saving', flush=True) or sys.exit(0))\n"
        "print('training', flush=True)\n"
        "while True: time.sleep(0.02)\n"
    )
    (agent.root / "workdir").mkdir()
    (agent.root / "workdir" / "script.py").write_text(script)
    driver.run(spec("python3 script.py\nrc=$?\necho shell saw $rc\nexit $rc", on_notice="SIGUSR1"))
    driver.log("training")
    metadata.set(ACTION_PATH, TERMINATE_AT)
    ended = driver.ended()
    driver.log("saving\nshell saw 0")
    assert ended["outcome"] == hs.OUTCOME_STOPPED, "a clean exit after the signal is not the end of the job"


def test_on_notice_command(server: AgentServer, agents: Agents, metadata: Metadata) -> None:
    agent = agents.start(**{hs.BOOT_METADATA: f"local={metadata.url}"})
    driver = Driver(server, agent)
    driver.run(
        spec("until [ -e told ]; do sleep 0.02; done; sleep 600", on_notice='echo "for $EVERSTEP_JOB" | tee told')
    )
    driver.started()
    metadata.set(REBALANCE_PATH, '{"noticeTime": "2035-01-02T03:00:00Z"}')
    until(lambda: control_of(agent.root)["save"], "the wish to save")
    metadata.set(ACTION_PATH, TERMINATE_AT)
    driver.log("for j-1", name="exec-notice-1")
    assert (1, "exec-notice-2") not in agent.member.logs, "a recommendation alone does not run the command"
    assert agent.member.of_kind(hs.MSG_ENDED) == []


@pytest.mark.parametrize("preempted", [False, True])
def test_shutdown_hook_tells_which_it_was(
    server: AgentServer, agents: Agents, metadata: Metadata, preempted: bool
) -> None:
    agent = agents.start(**{hs.BOOT_METADATA: f"local={metadata.url}"})
    driver = Driver(server, agent)
    driver.run(spec("trap 'echo saved; exit 75' TERM; echo up; while true; do sleep 0.02; done"))
    driver.log("up")
    if preempted:
        soon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 30))
        metadata.set(ACTION_PATH, json.dumps({"action": "terminate", "time": soon}))
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(30) == 0
    assert driver.ended()["outcome"] == hs.OUTCOME_SAVED
    assert agent.member.of_kind(hs.MSG_SHUTDOWN)[0]["how"] == ("preempted" if preempted else "normal")
    assert agent.member.log_text(1, "0").startswith("up\nsaved")
    assert agent.descendants() == []
