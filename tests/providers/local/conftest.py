from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from everstep.providers.local import LocalProvider
from everstep.providers.local.machines import BOX_MARK, box_mark, sweep
from everstep.providers.local.processes import marked

#: Stands in for the agent: says where it is, then waits to be stopped. MODE makes it misbehave.
STAND_IN = '''
import os, signal, sys, time
root = os.environ["EVERSTEP_ROOT"]
mode = os.environ.get("MODE", "")

def orphan(stubborn):
    """A process that did everything to get away: new session, double fork, no environment, deaf to SIGTERM."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            if stubborn:
                for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    signal.signal(s, signal.SIG_IGN)
            os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
        os._exit(0)
    os.wait()

if mode == "orphans":
    orphan(False); orphan(True)
if mode == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
elif mode == "fork_bomb":
    if os.fork() == 0:
        for _ in range(200):
            if os.fork() == 0:
                time.sleep(600)
            time.sleep(0.001)
        time.sleep(600)
else:
    def stop(*_):
        open(root + "/stopped", "w").close()
        if os.path.isdir(root + "/volume"):
            open(root + "/volume/stopped", "w").close()
        os._exit(0)
    signal.signal(signal.SIGTERM, stop)
if mode == "dies":
    with open(root + "/starts", "a") as f:
        f.write("x")
    os._exit(3)
print("agent of", os.environ["EVERSTEP_INSTANCE_ID"], flush=True)
with open(root + "/env.new", "w") as f:
    f.write("\\n".join(f"{k}={v}" for k, v in sorted(os.environ.items())))
os.rename(root + "/env.new", root + "/env")
while True:
    time.sleep(60)
'''

CONFIG = """
trace_hour_s: 3600
notice_s: 0.8
stop_grace_s: 5
disk_usd_per_gib_h: 0.0001
machines:
  small: {cpus: 2, memory_gib: 4, prices: {on_demand: 3.06, spot: 0.9}}
zones:
  z-a: {region: r1, spot: {capacity: 40}}
  z-b: {region: r1, spot: {capacity: 2}, on_demand: {capacity: 1}}
"""

MakeBox = Callable[..., LocalProvider]


@pytest.fixture
async def make_box(tmp_path: Path) -> AsyncIterator[MakeBox]:
    """Makes boxes, ends them all, and fails if a process of one is left."""
    boxes: list[LocalProvider] = []
    agent = tmp_path / "agent.py"
    agent.write_text(STAND_IN)

    def make(config: str = CONFIG, *, home: str = "home", agent_argv: list[str] | None = None) -> LocalProvider:
        path = tmp_path / f"{home}.yaml"
        path.write_text(config)
        argv = [sys.executable, "-S", "-E", str(agent)] if agent_argv is None else agent_argv
        box = LocalProvider(tmp_path / home, path, agent_argv=argv)
        boxes.append(box)
        return box

    yield make
    left = {}
    for box in boxes:
        try:
            await box.stop()
        finally:
            left.update({k: box.home for k in marked(f"{BOX_MARK}={box_mark(box.home)}")})
            sweep(box.home)
    assert not left, f"processes are left: {left}"


@pytest.fixture
def box(make_box: MakeBox) -> LocalProvider:
    return make_box()
