"""Which Pythons the start-up shim lets pass, which it has run by the runner, and what a script sees of that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from everstep.agent import shimming
from everstep.agent.environment import Node
from everstep.agent.shim import command, ledger
from everstep.agent.shim.look import look
from everstep.model import handshake as hs
from everstep.testing.agent_server import AgentServer
from tests.agent.conftest import Agents, Driver, python39, spec, until
from tests.agent.test_standby import Waiting

#: In the place of the runner: tells how it was called, then runs the script in the simplest way.
RUNNER = """
import json, os, runpy, sys

early = os.environ.get("EVERSTEP_ATTEMPT")

def main(argv):
    print("RUNNER " + json.dumps(argv), flush=True)
    print("imported in attempt", early, "started with", os.environ.pop("EVERSTEP_SHIM_STARTED", None), flush=True)
    rest = argv[2:]
    sys.argv = rest[1:] if rest[0] == "-m" else rest
    sys.path[0] = os.getcwd()
    (runpy.run_module if rest[0] == "-m" else runpy.run_path)(sys.argv[0], run_name="__main__")
"""
SCRIPT = """
import json, os, sys
import torch
print("SEEN " + json.dumps({"pid": os.getpid(), "env": dict(os.environ), "argv": sys.argv, "flags": list(sys.flags)}))
"""


# --- Command lines ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("python train.py", ([], "train.py", False, [])),
        ("python -u -W error train.py -m x", (["-u", "-Werror"], "train.py", False, ["-m", "x"])),
        ("python -OWignore -X dev a/b.py --lr 1", (["-OWignore", "-Xdev"], "a/b.py", False, ["--lr", "1"])),
        ("python -m pkg.train --lr 1", ([], "pkg.train", True, ["--lr", "1"])),
        ("python -um pkg.train", (["-u"], "pkg.train", True, [])),
        ("python -mpkg a", ([], "pkg", True, ["a"])),
        ("python --check-hash-based-pycs never t.py", (["--check-hash-based-pycs", "never"], "t.py", False, [])),
    ],
)
def test_a_command_line_is_taken_apart_as_the_interpreter_does(words: str, expected: tuple[Any, ...]) -> None:
    found = command.read(words.split())
    assert found is not None
    assert (list(found.options), found.target, found.is_module, list(found.arguments)) == expected


@pytest.mark.parametrize("words", ["python", "python -", "python -c pass", "python -uc pass", "python -i t.py"])
def test_what_runs_no_file_is_none(words: str) -> None:
    assert command.read(words.split()) is None


# --- What a script is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"t.py": "import torch"}, "torch"),
        ({"t.py": "import json"}, ""),
        ({"t.py": "import model", "model.py": "from torch import nn"}, "torch"),
        ({"t.py": "from pkg.deep import fit", "pkg/__init__.py": "", "pkg/deep/__init__.py": "import torch"}, "torch"),
        ({"t.py": "from pkg import a", "pkg/a.py": "from . import b", "pkg/b.py": "import torch"}, "torch"),
        ({"t.py": "def f():\n    import torch"}, "torch"),
        ({"t.py": "'''\nimport torch\n'''"}, ""),
        ({"t.py": "import torch\nfrom everstep import train"}, "library t.py:2, torch"),
        ({"t.py": "import m", "m.py": "import torch, everstep.train"}, "library m.py:1, torch"),
        ({"t.py": "import torch\nimport lightning as L"}, "Lightning (t.py:2), torch"),
        ({"t.py": "import torch\nfrom transformers import AutoModel"}, "torch"),
        ({"t.py": "import torch\nfrom transformers import Trainer"}, "the Trainer of transformers (t.py:2), torch"),
        ({"t.py": "import transformers as t\nt.Trainer()"}, "the Trainer of transformers (t.py:2)"),
        ({"t.py": "from accelerate import Accelerator"}, "Accelerate (t.py:1)"),
        ({"t.py": "from torch.distributed.run import main"}, "torch, launches"),
        ({"t.py": "from torch.distributed import run"}, "torch, launches"),
        ({"t.py": "import torch ("}, ""),
    ],
)
def test_what_is_found_in_a_script_and_its_modules(files: dict[str, str], expected: str, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = look(str(tmp_path / "t.py"), [str(tmp_path)], ())
    told = [f"library {found.library}" if found.library else "", found.framework]
    told += ["torch" if found.torch else "", "launches" if found.launches else ""]
    assert ", ".join(one for one in told if one) == expected


# --- Real interpreters ------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """A working folder, packages, and a shim whose runner only tells."""

    folder: Path
    shim: Path
    mode: str = hs.MODE_AUTO

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def env(self, **more: str) -> dict[str, str]:
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(self.folder / "packages")}
        env |= {hs.ENV_CHECKPOINT_DIR: "/saves", hs.ENV_REPORT_DIR: str(self.folder), hs.ENV_CHECKPOINT_MODE: self.mode}
        return {**env, **shimming.variables(self.shim, self.mode, env), **more}

    def run(self, *words: str, python: str = sys.executable, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *words],
            cwd=self.work,
            env=self.env(**more),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def write(self, name: str, text: str = SCRIPT) -> None:
        (self.work / name).parent.mkdir(parents=True, exist_ok=True)
        (self.work / name).write_text(text)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    shim = shimming.install(tmp_path / "shim")
    assert shim is not None
    for name in ("work", "packages/torch"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "packages" / "torch" / "__init__.py").write_text("")
    train = shim / "library" / "everstep" / "train"
    (train / "__init__.py").write_text("")
    (train / "run.py").write_text(RUNNER)
    one = Place(tmp_path, shim)
    one.write("train.py")
    return one


def told(done: subprocess.CompletedProcess[str]) -> list[str] | None:
    """How the runner was called; None if it was not."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("RUNNER ")]
    assert len(lines) <= 1
    return None if not lines else list(json.loads(lines[0].removeprefix("RUNNER ")))


def seen(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    line = next(line for line in done.stdout.splitlines() if line.startswith("SEEN "))
    return dict(json.loads(line.removeprefix("SEEN ")))


def test_a_script_is_run_by_the_runner_and_sees_the_environment_it_would_have(place: Place) -> None:
    done = place.run("-u", "-W", "error", "train.py", "--lr", "0.1", PYTHONHASHSEED="7")
    called = told(done)
    assert called is not None, done.stderr
    assert called[0] == "--dir"
    assert called[1].startswith("/saves/automatic/train-")
    assert called[2:] == ["train.py", "--lr", "0.1"]
    script = seen(done)
    plain = place.run("train.py", EVERSTEP_CHECKPOINT_MODE="library", PYTHONHASHSEED="7")
    assert told(plain) is None
    ours = {"EVERSTEP_SHIM_PID", "PYTHONPATH", hs.ENV_CHECKPOINT_MODE}
    assert {k: v for k, v in script["env"].items() if k not in ours} == {
        k: v for k, v in seen(plain)["env"].items() if k not in ours
    }
    assert script["env"]["PYTHONPATH"] == str(place.folder / "packages")
    assert (script["argv"], script["env"]["EVERSTEP_SHIM_PID"]) == (["train.py", "--lr", "0.1"], str(script["pid"]))
    assert done.stderr == ""


def test_sets_of_strings_have_the_same_order_in_every_attempt(place: Place) -> None:
    assert seen(place.run("train.py"))["env"]["PYTHONHASHSEED"] == "0"


def test_a_module_is_run_by_the_runner(place: Place) -> None:
    place.write("pkg/__init__.py", "")
    place.write("pkg/main.py")
    called = told(place.run("-m", "pkg.main", "1"))
    assert called is not None
    assert called[2:] == ["-m", "pkg.main", "1"]


def test_children_of_a_script_are_left_alone(place: Place) -> None:
    place.write("outer.py", "import subprocess, sys, torch\nsubprocess.run([sys.executable, 'train.py'])\n")
    done = place.run("outer.py")
    called = told(done)
    assert called is not None
    assert called[2:] == ["outer.py"]
    assert seen(done)["argv"] == ["train.py"]


def test_children_of_what_is_left_alone_are_looked_at(place: Place) -> None:
    place.write("start.py", "import subprocess, sys\nsubprocess.run([sys.executable, 'train.py'])\n")
    called = told(place.run("start.py"))
    assert called is not None
    assert called[2:] == ["train.py"]
    called = told(place.run("-c", "import subprocess, sys; subprocess.run([sys.executable, 'train.py'])"))
    assert called is not None


def test_installed_programs_are_left_alone(place: Place) -> None:
    tool = place.folder / "packages" / "site-packages" / "tool.py"
    tool.parent.mkdir()
    tool.write_text("import torch\nprint('the tool')")
    done = place.run(str(tool))
    assert (told(done), done.stdout) == (None, "the tool\n")
    assert told(place.run("-m", "pip", "--version")) is None
    assert told(place.run("-m", "json.tool", "--help")) is None


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SCRIPT + "\ntry:\n    import everstep\nexcept ImportError:\n    pass", ""),
        (SCRIPT.replace("import torch", ""), ""),
        (
            SCRIPT + "\ntry:\n    import lightning\nexcept ImportError:\n    pass",
            "everstep: train.py is not resumed automatically: its loop is in the hands of Lightning (train.py:7), "
            "which everstep does not resume yet; if killed, it starts from the beginning unless it loads its own "
            "checkpoints. To try anyway: checkpoint.mode: script\n",
        ),
    ],
)
def test_auto_leaves_alone_what_is_not_ours_to_resume_and_script_does_not(place: Place, text: str, line: str) -> None:
    place.write("train.py", text)
    done = place.run("train.py")
    assert (told(done), done.stderr, done.returncode) == (None, line, 0)
    assert seen(done)["argv"] == ["train.py"]
    assert place.run("train.py", RANK="1").stderr == ""
    place.mode = hs.MODE_SCRIPT
    assert told(place.run("train.py")) is not None


@pytest.mark.parametrize("mode", [hs.MODE_LIBRARY, hs.MODE_OFF])
def test_the_other_modes_change_nothing_for_any_python(place: Place, mode: str) -> None:
    place.mode = mode
    assert "EVERSTEP_SHIM" not in place.env()
    assert place.env()["PYTHONPATH"] == str(place.folder / "packages")


def test_a_python_without_torch_or_too_old_runs_the_script_as_it_is_and_the_log_says_so(place: Place) -> None:
    (place.folder / "packages" / "torch" / "__init__.py").unlink()
    (place.folder / "packages" / "torch").rmdir()
    place.write("train.py", "try:\n    import torch\nexcept ImportError:\n    print('no torch')")
    python = place.folder / "bare" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", python.parents[1]], check=True)
    done = place.run("train.py", python=str(python))
    text = "everstep: train.py is not resumed automatically: this Python has no torch\n"
    assert (done.stdout, done.stderr) == ("no torch\n", text)
    old = python39()
    if old == sys.executable:
        pytest.skip("no older Python on this machine")
    done = place.run("train.py", python=old)
    assert done.stdout == "no torch\n"
    assert (
        done.stderr == "everstep: train.py is not resumed automatically: this Python is 3.9, at least 3.10 is needed\n"
    )


def test_on_several_machines_ranks_must_be_known(place: Place) -> None:
    done = place.run("train.py", EVERSTEP_NUM_NODES="2")
    assert (told(done), done.returncode) == (None, 0)
    assert (
        "train.py is not resumed automatically: 2 machines run it and RANK does not say which is which" in done.stderr
    )
    assert told(place.run("train.py", EVERSTEP_NUM_NODES="2", RANK="1")) is not None


def test_whatever_is_broken_in_here_the_script_runs(place: Place) -> None:
    (place.shim / "hook" / "everstep_shim" / "look.py").write_text("raise RuntimeError('broken')")
    done = place.run("train.py")
    assert (told(done), done.returncode) == (None, 0)
    assert done.stderr == "everstep: not resumed automatically (RuntimeError: broken)\n"


def test_without_a_runner_that_starts_the_script_runs_as_it_is(place: Place) -> None:
    (place.shim / "library" / "everstep" / "train" / "run.py").write_text("import torch.of_another_time")
    done = place.run("-W", "error", "train.py", "--lr", "1")
    assert (told(done), done.returncode, seen(done)["argv"]) == (None, 0, ["train.py", "--lr", "1"])
    assert done.stderr == (
        "everstep: not resumed automatically, the runner does not start "
        "(ModuleNotFoundError: No module named 'torch.of_another_time')\n"
    )


def test_the_sitecustomize_that_is_hidden_still_runs_once(place: Place) -> None:
    (place.folder / "packages" / "sitecustomize.py").write_text("print('customized', flush=True)")
    assert place.run("train.py").stdout.count("customized") == 1
    assert place.run("-c", "pass").stdout == "customized\n"


def test_the_standby_of_a_script_that_we_run_is_the_runner(place: Place, tmp_path: Path) -> None:
    """What it sees is what it would see if it were started now; but the runner was imported in advance."""
    (tmp_path / "waiting").mkdir()
    waiting = Waiting(tmp_path / "waiting", place.env(EVERSTEP_ATTEMPT="1"), SCRIPT)
    _, plain = waiting.plain(EVERSTEP_ATTEMPT="2", MASTER_PORT="7")
    rc, output = waiting.awakened(EVERSTEP_ATTEMPT="2", MASTER_PORT="7")
    assert (rc, output.count("RUNNER"), output.count("SEEN")) == (0, 1, 1)
    assert "imported in attempt 1" in output
    assert "imported in attempt 2" in plain

    def seen(text: str) -> dict[str, Any]:
        line = next(line for line in text.splitlines() if line.startswith("SEEN "))
        found: dict[str, Any] = json.loads(line.removeprefix("SEEN "))
        for name in (found, found["env"]):
            name.pop("pid", None), name.pop("EVERSTEP_SHIM_PID", None)
        return found

    assert seen(output) == seen(plain)
    # The second run of the same command has the next folder, awakened or not.
    folders = [json.loads(text.split("RUNNER ")[1].splitlines()[0])[1] for text in (plain, output)]
    assert folders[1] == f"{folders[0]}-2"
    started = json.loads(output.split("started with ")[1].splitlines()[0])
    assert (started["EVERSTEP_ATTEMPT"], started["PYTHONHASHSEED"]) == ("2", "0")
    assert started["PYTHONPATH"] == waiting.env["PYTHONPATH"]
    assert "EVERSTEP_STANDBY" not in started


def test_a_standby_is_looked_at_when_its_time_has_come(place: Place, tmp_path: Path) -> None:
    """It may be for the runner when it begins to wait, and not at the end, or the other way round."""
    for name in "ab":
        (tmp_path / name).mkdir()
    library = f"{SCRIPT}if False:\n    import everstep\n"
    rc, output = Waiting(tmp_path / "b", place.env(EVERSTEP_ATTEMPT="1"), library).awakened(EVERSTEP_ATTEMPT="2")
    assert (rc, output.count("RUNNER"), output.count("SEEN")) == (0, 0, 1)
    assert '"EVERSTEP_ATTEMPT": "2"' in output
    changing = Waiting(tmp_path / "a", place.env(EVERSTEP_ATTEMPT="1"), SCRIPT)
    script = changing.work / "script.py"
    rc, output = changing.awakened(meanwhile=lambda: script.write_text(library), EVERSTEP_ATTEMPT="2")
    assert (rc, output.count("RUNNER"), output.count("SEEN")) == (0, 0, 1)


# --- Folders ----------------------------------------------------------------------------------------------------------


def _folder(done: subprocess.CompletedProcess[str]) -> str:
    called = told(done)
    assert called is not None
    return called[1].removeprefix("/saves/automatic/")


def test_each_command_has_a_folder_and_the_same_again_after_its_end_the_next(place: Place) -> None:
    one, other = _folder(place.run("train.py")), _folder(place.run("train.py", "--fold", "1"))
    assert one != other
    assert _folder(place.run("train.py")) == f"{one}-2"
    assert _folder(place.run("train.py", "--fold", "1")) == f"{other}-2"


@pytest.mark.parametrize("end", ["raise ValueError", "os._exit(76)", "os.kill(os.getpid(), 9)"])
def test_what_did_not_end_goes_on_in_its_folder(place: Place, end: str) -> None:
    place.write("train.py", f"{SCRIPT}\nsys.stdout.flush()\n{end}")
    assert _folder(place.run("train.py")) == _folder(place.run("train.py"))


def test_ranks_that_torchrun_starts_again_go_on_in_their_folder_even_if_one_had_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train = command.Command([], "train.py", False, [])
    env = {hs.ENV_REPORT_DIR: str(tmp_path), hs.ENV_CHECKPOINT_DIR: "/saves", "RANK": "0"}
    first = ledger.begin(train, env)
    ledger._write(first.file, {"started": 0, "ends": 1})
    assert ledger.begin(train, {**env, "TORCHELASTIC_RESTART_COUNT": "1"}).folder == first.folder
    ledger._write(first.file, {"started": 0, "ends": 1})
    assert ledger.begin(train, {**env, "TORCHELASTIC_RESTART_COUNT": "0"}).folder == f"{first.folder}-2"


# --- With an agent ----------------------------------------------------------------------------------------------------


def _task(run: str, packages: Path, **more: Any) -> dict[str, Any]:
    envs = {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    return spec(run, **{hs.SPEC_ENVS: envs, hs.SPEC_CHECKPOINT_MODE: hs.MODE_AUTO, **more})


def test_an_agent_from_its_pyz_brings_the_library_along(server: AgentServer, agents: Agents) -> None:
    """The user's Python here has no everstep at all, the agent's may be older than the library wants."""
    agent = agents.start()
    driver = Driver(server, agent)
    driver.run(_task("find $EVERSTEP_SHIM -name '*.py' | sed \"s|$EVERSTEP_SHIM/||\" | sort", Path("/none")))
    assert driver.ended()["outcome"] == hs.OUTCOME_OK
    repository = Path(shimming.__file__).resolve().parents[2]
    train = sorted(path.relative_to(repository) for path in (repository / "everstep" / "train").rglob("*.py"))
    # Lines may be on their way still when the end is told.
    server.wait(lambda: agent.member.log_text(1, "0").count("library/everstep/train") >= len(train), what="the listing")
    text = agent.member.log_text(1, "0")
    names = [line.removeprefix("library/") for line in text.splitlines() if line.startswith("library/everstep/train")]
    assert sorted(names) == sorted(map(str, train))
    assert "library/everstep/model/handshake.py\n" in text
    assert "hook/sitecustomize.py\n" in text


def test_a_standby_that_cannot_import_the_runner_starts_it_in_its_time(
    server: AgentServer, agents: Agents, tmp_path: Path
) -> None:
    packages = tmp_path / "packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch" / "__init__.py").write_text("")
    script = tmp_path / "train.py"
    script.write_text("import torch\nprint('trained')")
    what = _task(f"{sys.executable} {script}", packages)
    agent = agents.start()
    driver = Driver(server, agent)
    driver.prepare(what, attempt=0)
    driver.order(hs.PHASE_RUN, 1, what)
    until(lambda: "everstep" in agent.member.log_text(1, "0"), "the runner")  # it fails on this torch, in its own words
    driver.ended()


def test_a_refusal_below_torchrun_is_told_as_one_with_its_reason(
    server: AgentServer, agents: Agents, tmp_path: Path
) -> None:
    fact = json.dumps({"t": 1.0, "kind": hs.FACT_WARNING, "text": "train.py has changed since the save"})
    lines = f"echo '{fact}' > $EVERSTEP_REPORT_DIR/facts-0.jsonl; for n in $(seq 40); do echo line $n; done; "
    driver = Driver(server, agents.start())
    driver.run(spec(f"{lines} echo '  exitcode  : 76 (pid: 7)'; exit 1"))
    ended = driver.ended()
    assert (ended["outcome"], ended["rc"]) == (hs.OUTCOME_FAILED, hs.EXIT_REFUSED)
    assert ended["tail"].endswith("\neverstep: train.py has changed since the save")


def test_without_a_place_for_it_nothing_is_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert shimming.install(tmp_path / "file") is None
    assert shimming.variables(None, hs.MODE_AUTO, {"PYTHONPATH": "/x"}) == {}
    assert Node("i", "a", 0, tmp_path, tmp_path, "m").shim is None
