"""Nothing that was started may outlive what started it, whatever it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.agent import proctree, program
from everstep.agent.settings import Settings
from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, spec, until

ESCAPE = """
python3 - <<'PY'
import os, signal, time
def stubborn():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:              # double fork: an orphan in a session of its own
        stubborn()
        if os.fork() == 0:
            os.closerange(0, 64)    # holds no pipe of ours
            time.sleep(600)
        time.sleep(600)
    os._exit(0)
os.wait()
stubborn()
print("escaped", flush=True)
{then}
PY
"""


def test_escaping_descendants_are_gone_when_the_rank_ends(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(spec(ESCAPE.replace("{then}", "")))
    assert driver.ended()["outcome"] == hs.OUTCOME_OK
    driver.log("escaped")
    assert _ranks(agent.descendants()) == []


def test_stubborn_descendants_are_killed_on_stop(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    what = spec(ESCAPE.replace("{then}", "time.sleep(600)"))
    driver.run(what)
    driver.log("escaped")
    assert len(_ranks(agent.descendants())) >= 3
    driver.order(hs.PHASE_HOLD, 1, what, stop={"save": False, "grace_s": 0.2, "reason": "test"})
    ended = driver.ended()
    assert ended["outcome"] == hs.OUTCOME_STOPPED
    assert _ranks(agent.descendants()) == []


def test_killed_agent_leaves_no_process(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(spec(ESCAPE.replace("{then}", "time.sleep(600)")))
    driver.log("escaped")
    agent.kill9()
    until(lambda: agent.descendants() == [], "the end of all descendants")


def test_restarted_agent_kills_what_is_left_even_when_keepers_died_too(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(spec(ESCAPE.replace("{then}", "time.sleep(600)")))
    driver.log("escaped")
    # Agent and keepers stopped first, then killed: none of them can clean up after the others.
    keepers = [one for one in agent.descendants() if b"keeper" in _command_line(one)]
    agent.process.send_signal(signal.SIGSTOP)
    for keeper in keepers:
        proctree.send(keeper, signal.SIGSTOP)
    for keeper in keepers:
        proctree.send(keeper, signal.SIGKILL)
    agent.kill9()
    orphans = agent.descendants()
    assert orphans, "the double-forked ones have lost their keeper and live on"
    new = agents.start(again=agent)
    ended = driver.ended()
    assert (ended["outcome"], ended["signal"], ended["agent_killed"]) == (hs.OUTCOME_FAILED, signal.SIGKILL, True)
    alive = {(one.pid, one.start) for one in new.descendants()}
    assert not alive & {(one.pid, one.start) for one in orphans}
    assert agent.member.joins == 1, "the credential was kept: no second join"


def test_killed_keeper_is_reported_and_its_tree_swept(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(spec(ESCAPE.replace("{then}", "time.sleep(600)")))
    driver.log("escaped")
    parents = {proctree.read(one.ppid) for one in _ranks(agent.descendants())}
    keeper = next(one for one in parents if one is not None and b"keeper" in _command_line(one))
    proctree.send(keeper, signal.SIGKILL)
    ended = driver.ended()
    assert (ended["outcome"], ended["signal"]) == (hs.OUTCOME_FAILED, signal.SIGKILL)
    assert _ranks(agent.descendants()) == []
    driver.order(hs.PHASE_RUN, 2, spec("echo again"))
    assert driver.ended(attempt=2)["outcome"] == hs.OUTCOME_OK


def test_one_failed_rank_ends_the_others_and_is_named(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    run = 'echo "I am $RANK of $WORLD_SIZE"; if [ $RANK = 1 ]; then echo the reason >&2; exit 7; fi; sleep 600'
    driver.run(spec(run, ranks_per_node=3))
    ended = driver.ended()
    assert (ended["outcome"], ended["rc"], ended["failed_rank"]) == (hs.OUTCOME_FAILED, 7, 1)
    assert ended["tail"].splitlines()[-1] == "the reason"
    driver.log("I am 2 of 3", name="2")
    assert _ranks(agent.descendants()) == []


def test_killed_rank_is_told_by_its_signal(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(spec("kill -9 $$", ranks_per_node=1))
    ended = driver.ended()
    assert (ended["outcome"], ended["rc"], ended["signal"]) == (hs.OUTCOME_FAILED, -9, 9)


def test_program_that_does_not_exist(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(spec(argv=["no-such-program"], ranks_per_node=2))
    ended = driver.ended()
    assert (ended["outcome"], ended["rc"]) == (hs.OUTCOME_FAILED, 127)
    assert "no-such-program" in ended["tail"]


def test_hold_without_a_stop_ends_ranks_at_once(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    what = spec("trap '' TERM; echo up; while true; do sleep 0.02; done", stop_grace_s=600.0)
    driver.run(what)
    driver.log("up")
    driver.order(hs.PHASE_HOLD, 1, what)
    ended = driver.ended()
    assert (ended["outcome"], ended["signal"]) == (hs.OUTCOME_STOPPED, signal.SIGKILL)


def test_second_agent_on_one_root_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "_LOCK_WAIT_S", 0.0)
    boot = {hs.BOOT_SERVER: "http://h:1", hs.BOOT_ROOT: str(tmp_path), hs.BOOT_INSTANCE: "i"}
    settings = Settings.from_environment(boot)
    settings.state.mkdir()
    first = program._lock(settings)
    assert first is not None
    assert program._lock(settings) is None
    first.close()
    again = program._lock(settings)
    assert again is not None
    again.close()


def test_full_disk_while_a_rank_writes_logs_breaks_no_rank(server: AgentServer, agents: Agents) -> None:
    agent = agents.start()
    driver = Driver(server, agent)
    (agent.root / "logs").mkdir()
    (agent.root / "logs" / "1").write_text("in the way: no log can be written")
    driver.run(spec("for i in $(seq 2000); do echo a line that goes nowhere; done"))
    assert driver.ended()["outcome"] == hs.OUTCOME_OK


HANDLERS = """
import os, signal, sys
signum = int(sys.argv[1])
signal.signal(signum, signal.SIG_DFL)
if os.fork() == 0:                                   # handles it
    signal.signal(signum, lambda *_: None)
    if os.fork() == 0:                               # inherited the handler
        print("up", flush=True)
    while True:
        signal.pause()
signal.pause()
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_soft_targets_are_the_topmost_handlers(signum: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", HANDLERS, str(int(signum))], stdout=subprocess.PIPE) as top:
        try:
            assert top.stdout is not None
            assert top.stdout.readline() == b"up\n"
            assert len(proctree.descendants(top.pid)) == 2
            assert [one.ppid for one in proctree.soft_targets(top.pid, signum)] == [top.pid]
            assert proctree.soft_targets(top.pid, signal.SIGUSR2) == []
        finally:
            left = proctree.kill_all(lambda: proctree.descendants(top.pid), reap=top.kill, timeout_s=10.0)
    assert left == []


def test_signal_never_hits_a_reused_pid() -> None:
    me = proctree.read(os.getpid())
    assert me is not None
    impostor = proctree.Proc(me.pid, me.ppid, me.start + 1, me.state)
    assert proctree.send(impostor, signal.SIGKILL) is False


def _ranks(procs: list[proctree.Proc]) -> list[proctree.Proc]:
    """Without keepers, and without a keeper that is just being started and still looks like its agent."""
    return [one for one in procs if b"agent.pyz" not in _command_line(one)]


def _command_line(proc: proctree.Proc) -> bytes:
    try:
        with open(f"/proc/{proc.pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""
