"""A standby becomes exactly the rank that would have been started, or the rank is started in the usual way."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from everstep.agent import reserve, standby, standby_hook
from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, spec, until

# Stands in for torch: tells by which attempt's environment it was imported, and by whom.
TORCH = """
import os
attempt = os.environ.get("EVERSTEP_ATTEMPT")
pid = os.getpid()
"""
SCRIPT = '''"""A training."""
from __future__ import annotations
import json, os, sys
import torch
from torch import nn

seen = {
    "argv": sys.argv, "orig_argv": sys.orig_argv, "name": __name__, "file": __file__, "spec": __spec__,
    "path": sys.path, "cwd": os.getcwd(), "main": sys.modules["__main__"].__dict__ is globals(),
    "env": dict(os.environ), "custom": sys.modules.get("sitecustomize", None) is not None,
    "flags": list(sys.flags), "options": sys._xoptions,
}
print("SEEN " + json.dumps(seen), flush=True)
print("attempt", os.environ.get("EVERSTEP_ATTEMPT"), "torch of", torch.attempt, torch.pid == os.getpid(), flush=True)

def fail():
    raise ValueError("of its own")

fail()
'''


def _torch(folder: Path) -> Path:
    package = folder / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TORCH)
    (package / "nn.py").write_text("")
    return folder


class Waiting:
    """A standby without an agent: what the keeper does, by hand."""

    def __init__(self, folder: Path, env: Mapping[str, str], script: str = SCRIPT) -> None:
        self.hook = folder / "hook"
        self.hook.mkdir()
        (self.hook / "sitecustomize.py").write_bytes(Path(standby_hook.__file__).read_bytes())
        self.work = folder / "work"
        self.work.mkdir()
        (self.work / "script.py").write_text(script)
        self.argv = ["bash", "-c", f"{sys.executable} script.py --lr 0.1"]
        self.env = dict(env)

    def plain(self, **changed: str) -> tuple[int, str]:
        done = subprocess.run(
            self.argv, env={**self.env, **changed}, cwd=self.work, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def awakened(self, *, meanwhile: Any = lambda: None, **changed: str) -> tuple[int, str]:
        ours, its = socket.socketpair()
        path = f"{self.hook}{os.pathsep}{self.env['PYTHONPATH']}"
        hook = {"PYTHONPATH": path, standby.ENV_HOOK: f"{its.fileno()}:{self.work / 'script.py'}"}
        with subprocess.Popen(
            self.argv,
            env={**self.env, **hook},
            cwd=self.work,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            pass_fds=(its.fileno(),),
        ) as process:
            its.close()
            meanwhile()
            wire = {"argv": self.argv, "cwd": str(self.work), "env": self.env, "hook": hook}
            one = standby.Standby(process.pid, os.open(os.devnull, os.O_RDONLY), ours, wire)
            proc = {"argv": self.argv, "cwd": str(self.work), "env": {**self.env, **changed}}
            assert one.fits(proc)
            one.go(proc)
            os.close(one.output)
            output, _ = process.communicate(timeout=60)
            ours.close()
        return process.returncode, output


@pytest.fixture
def waiting(tmp_path: Path) -> Waiting:
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(_torch(tmp_path / "packages")), "EVERSTEP_ATTEMPT": "1"}
    return Waiting(tmp_path, env)


def _parts(output: str) -> tuple[dict[str, Any], str]:
    """What the script saw, and everything else that was printed."""
    seen = next(line for line in output.splitlines() if line.startswith("SEEN "))
    return json.loads(seen.removeprefix("SEEN ")), output.replace(seen, "")


def test_a_standby_runs_the_script_as_if_it_were_started_now(waiting: Waiting) -> None:
    plain_rc, plain = waiting.plain(EVERSTEP_ATTEMPT="2", MASTER_ADDR="10.0.0.2")
    rc, output = waiting.awakened(EVERSTEP_ATTEMPT="2", MASTER_ADDR="10.0.0.2")
    assert rc == plain_rc == 1
    assert _parts(output)[0] == _parts(plain)[0]
    assert "attempt 2 torch of 1 True" in output, "torch was not imported in advance"
    traceback = plain[plain.index("Traceback") :]
    assert output.endswith(traceback)


def test_the_sitecustomize_that_is_hidden_still_runs_once(waiting: Waiting, tmp_path: Path) -> None:
    (tmp_path / "packages" / "sitecustomize.py").write_text("print('customized', flush=True)")
    _, plain = waiting.plain()
    _, output = waiting.awakened()
    assert output.count("customized") == plain.count("customized") == 1
    assert _parts(output)[0]["custom"] is True


def test_a_script_that_changed_meanwhile_is_started_anew(waiting: Waiting) -> None:
    script = waiting.work / "script.py"
    rc, output = waiting.awakened(
        meanwhile=lambda: (_let_it_read(), script.write_text(SCRIPT.replace("of its own", "of another"))),
        EVERSTEP_ATTEMPT="2",
    )
    assert rc == 1
    assert "ValueError: of another" in output
    assert "attempt 2 torch of 2 True" in output


def test_a_module_beside_the_script_that_shadows_an_import_is_honoured(waiting: Waiting) -> None:
    (waiting.work / "torch.py").write_text("attempt, pid, nn = 'beside', 0, None")
    _, output = waiting.awakened(EVERSTEP_ATTEMPT="2")
    assert "attempt 2 torch of beside False" in output


def _let_it_read() -> None:
    import time

    time.sleep(1.0)  # either order is right: the script is read again before it is run


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import os\nimport torch\nfrom torch import nn\nimport mine\nimport json\n", ["os", "torch", "torch"]),
        ("'''doc'''\nimport torch.distributed as dist\n", ["torch.distributed"]),
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\n", []),
        ("import mine\nimport torch\n", []),
        ("from . import torch\n", []),
        ("if True:\n    import torch\n", []),
        ("import json\n", []),
        ("import torch\ntorch.optim.SGD\n", ["torch", "torch._dynamo"]),
        ("import torch\ntorch.optim.SGD\ntorch._dynamo.reset()\n", ["torch"]),
        ("import torch\nfrom everstep import train\ntorch.optim.SGD\n", ["torch"]),
    ],
)
def test_only_what_a_script_imports_before_anything_else_is_imported(
    source: str, names: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "script.py"
    path.write_text(source)
    assert standby_hook._first_imports(str(path)) == (source.encode(), names)


@pytest.mark.parametrize(
    "text",
    [
        "cd src && python train.py",
        "python train.py | tee log",
        "LR=1 bash train.sh",
        "python train.py --name 'a b'",
        "python train.py $STEPS",
        "python train.py\npython eval.py",
        "python train.py &",
        "python *.py",
    ],
)
def test_shell_texts_that_a_shell_would_treat_have_no_standby(text: str, tmp_path: Path) -> None:
    _script(tmp_path)
    assert _found(["bash", "-c", text], tmp_path) is None


@pytest.mark.parametrize(
    "words",
    [
        "python -m train",
        "python -S train.py",
        "python -c 1",
        "python other.py",
        "torchrun train.py",
        "wrapped train.py",
    ],
)
def test_unusual_commands_have_no_standby(words: str, tmp_path: Path) -> None:
    _script(tmp_path)
    assert _found(words.split(), tmp_path) is None


@pytest.mark.parametrize("text", ["python train.py --lr 0.1", "exec python -u train.py\n", "./bin/python train.py"])
def test_usual_commands_have_one(text: str, tmp_path: Path) -> None:
    _script(tmp_path)
    found = _found(["bash", "-c", text], tmp_path)
    assert found is not None
    assert os.path.samefile(found[1], tmp_path / "train.py")


def test_functions_of_the_shell_are_unusual() -> None:
    argv = ["bash", "-c", "python train.py"]
    assert reserve.plain_words(argv, {}) == ["python", "train.py"]
    assert reserve.plain_words(argv, {"BASH_ENV": "rc"}) is None
    assert reserve.plain_words(argv, {"BASH_FUNC_python%%": "() { :; }"}) is None


def _script(folder: Path) -> None:
    (folder / "train.py").write_text("import torch")
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    wrapper = folder / "bin" / "wrapped"
    wrapper.write_text("#!/bin/sh\nexec python $@")
    wrapper.chmod(0o755)


def _found(argv: list[str], folder: Path) -> tuple[str, Path] | None:
    env = {"PATH": str(folder / "bin")}
    words = reserve.plain_words(argv, env)
    return None if words is None else reserve.python_and_script(words, env, folder)


def test_a_standby_fits_only_what_differs_in_variables_that_may_change() -> None:
    env = {"RANK": "0", "OMP_NUM_THREADS": "1", hs.ENV_ATTEMPT: "1"}
    wire = {"argv": ["python", "a.py"], "cwd": "/w", "env": env, "hook": {}}
    one = standby.Standby(0, -1, socket.socket(), wire)
    assert one.fits({**wire, "env": {**env, "RANK": "1", hs.ENV_ATTEMPT: "2", "MASTER_PORT": "1"}})
    assert not one.fits({**wire, "env": {**env, "OMP_NUM_THREADS": "2"}})
    assert not one.fits({**wire, "env": {**env, "NEW": "1"}})
    assert not one.fits({**wire, "env": {"RANK": "0", hs.ENV_ATTEMPT: "1"}})
    assert not one.fits({**wire, "argv": ["python", "b.py"]})
    assert not one.fits({**wire, "cwd": "/v"})
    one.link.close()


# --- With an agent ----------------------------------------------------------------------------------------------------


def _task(tmp_path: Path, **envs: str) -> dict[str, Any]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    packages = _torch(tmp_path / "packages")
    run = f"{sys.executable} {script}"
    return spec(run, **{hs.SPEC_ENVS: {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1", **envs}})


def _standbys(agent: Any) -> list[int]:
    """Waiting interpreters: processes that were given the hook."""
    found = []
    for proc in agent.descendants():
        try:
            environ = Path(f"/proc/{proc.pid}/environ").read_bytes()
        except OSError:
            continue
        if f"\0{standby.ENV_HOOK}=".encode() in environ and b":" in environ.split(f"{standby.ENV_HOOK}=".encode())[1]:
            found.append(proc.pid)
    return found


def test_the_rank_of_an_attempt_is_the_standby_of_its_machine(
    server: AgentServer, agents: Agents, tmp_path: Path
) -> None:
    agent = agents.start()
    driver, what = Driver(server, agent), _task(tmp_path)
    driver.prepare(what, attempt=0)
    until(lambda: len(_standbys(agent)) == 1, "a standby")
    driver.order(hs.PHASE_RUN, 1, what)
    assert driver.ended()["rc"] == 1
    driver.log("ValueError: of its own")
    driver.log("attempt 1 torch of 0 True")


def test_a_standby_that_was_killed_is_not_missed(server: AgentServer, agents: Agents, tmp_path: Path) -> None:
    agent = agents.start()
    driver, what = Driver(server, agent), _task(tmp_path)
    driver.prepare(what)
    until(lambda: len(_standbys(agent)) == 1, "a standby")
    for pid in _standbys(agent):
        os.kill(pid, 9)
    until(lambda: not _standbys(agent), "its end")
    driver.order(hs.PHASE_RUN, 1, what)
    assert driver.ended()["rc"] == 1
    driver.log("attempt 1 torch of 1 True")


def test_switched_off_there_is_none(server: AgentServer, agents: Agents, tmp_path: Path) -> None:
    agent = agents.start()
    driver, what = Driver(server, agent), _task(tmp_path, EVERSTEP_WARM_STANDBY="0")
    driver.run(what)
    assert driver.ended()["rc"] == 1
    driver.log("attempt 1 torch of 1 True")


def test_a_killed_agent_leaves_no_standby(server: AgentServer, agents: Agents, tmp_path: Path) -> None:
    agent = agents.start()
    driver, what = Driver(server, agent), _task(tmp_path)
    driver.prepare(what)
    until(lambda: len(_standbys(agent)) == 1, "a standby")
    agent.kill9()
    until(lambda: agent.descendants() == [], "the end of all descendants")


def test_a_machine_is_ready_when_its_standby_has_imported(server: AgentServer, agents: Agents, tmp_path: Path) -> None:
    agent = agents.start()
    driver, what = Driver(server, agent), _task(tmp_path)
    gate = tmp_path / "gate"
    slow = f"import os, time\nwhile not os.path.exists({str(gate)!r}):\n    time.sleep(0.01)\n"
    (tmp_path / "packages" / "torch" / "__init__.py").write_text(slow + TORCH)
    server.wait(lambda: agent.member.joined, what="join")
    driver.order(hs.PHASE_PREPARE, 0, what)
    until(lambda: len(_standbys(agent)) == 1, "a standby")
    assert agent.member.of_kind(hs.MSG_READY) == []
    began = time.monotonic()
    time.sleep(0.3)
    waited_s = time.monotonic() - began
    gate.touch()
    ready = server.wait_message(agent.member, hs.MSG_READY)
    assert ready["setup_s"] >= waited_s, "what was imported meanwhile is part of the set-up"
    driver.order(hs.PHASE_RUN, 1, what)
    driver.ended()
    told = agent.member.of_kind(hs.MSG_READY)
    assert len(told) > 1, "with the port of the next attempt"
    assert {message["setup_s"] for message in told} == {ready["setup_s"]}, "it was set up once"


def test_after_a_failure_standbys_get_ready_while_a_machine_is_replaced(
    server: AgentServer, agents: Agents, tmp_path: Path
) -> None:
    agent = agents.start()
    driver, what = Driver(server, agent), _task(tmp_path)
    driver.run(what)
    assert driver.ended()["rc"] == 1
    until(lambda: len(_standbys(agent)) == 1, "a standby")
    driver.order(hs.PHASE_RUN, 2, what)
    assert driver.ended(attempt=2)["rc"] == 1
    driver.log("attempt 2 torch of 1 True", attempt=2)
