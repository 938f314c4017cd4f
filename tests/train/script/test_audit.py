"""The self-audit: a save is restored in a child while training goes on, and compared with it some steps later."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from everstep.model import handshake
from everstep.train.run import main
from everstep.train.script.audit import copying, walls
from everstep.train.script.audit.evidence import Trail, difference
from everstep.train.script.output import Place
from everstep.train.script.output.journal import Journal
from tests.train.script.drill import DRIVER
from tests.train.script.scripts_for_session import HEAD
from tests.train.script.test_ranks import SCRIPT as RANKS
from tests.train.script.test_ranks import torchrun
from tests.train.zygote import Child, Zygote

HEAD += """
import ctypes
import os
import time
from pathlib import Path

OUTSIDE = os.environ.get("OUTSIDE", "")


def audited():
    # Not a variable: the audit would find there what the run had saved.
    return os.getcwd().endswith("/audit/work")


def told():
    facts = Path(os.environ.get("EVERSTEP_REPORT_DIR", "nowhere"), "facts-0.jsonl")
    return facts.exists() and '"audit"' in facts.read_text()


"""

# Goes on until its audit is through; the test would time out otherwise.
LOOP = """
for i in range(2000):
    print(i, step(1.0), flush=True)
    {body}
    time.sleep(0.02)
    if told():
        break
"""


class Audited:
    """One script that is audited, in ``work``, with its saves in ``work/saves``."""

    def __init__(self, scripts: Zygote, place: Path) -> None:
        self._scripts = scripts
        self.work = place / "work"
        self.reports = place / "reports"
        self.log = place / "log"
        self.target = ["train.py"]
        # A short path: workers put sockets there.
        self.env = {"TMPDIR": tempfile.mkdtemp(prefix="audited-"), "PYTHONHASHSEED": "0"}
        for folder in (self.work, self.reports):
            folder.mkdir()

    def start(self, script: str, *options: str, steps: int = 4) -> Child:
        path = self.target[0] if self.target[0] != "-m" else self.target[1].replace(".", "/") + ".py"
        (self.work / path).write_text(script)
        env = {**self.env, handshake.ENV_REPORT_DIR: str(self.reports)}
        command: list[str | Path] = [DRIVER, "--dir", "saves", "--every-steps", "3", "--audit", str(steps), *options]
        return self._scripts.start([*command, *self.target], cwd=self.work, log=self.log, env=env)

    def run(self, script: str, *options: str, steps: int = 4) -> dict[str, Any]:
        """The first verdict; the script ends well."""
        code = self.start(script, *options, steps=steps).wait()
        assert code == 0, self.log.read_text()
        return self.verdicts()[0]

    def verdicts(self) -> list[dict[str, Any]]:
        facts = map(json.loads, (self.reports / "facts-0.jsonl").read_text().splitlines())
        return [fact for fact in facts if fact["kind"] == handshake.FACT_AUDIT]

    def kept(self, step: int = 3) -> dict[str, Any]:
        return dict(json.loads((self.work / "saves" / f"audit-{step}.json").read_text()))

    def line(self, text: str) -> int:
        return (self.work / "train.py").read_text().splitlines().index(text) + 1


@pytest.fixture
def audited(scripts: Zygote, tmp_path: Path) -> Audited:
    return Audited(scripts, tmp_path)


def contents(folder: Path) -> dict[str, str]:
    found = sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def processes_in(folder: Path) -> list[int]:
    """Processes whose command line names the folder, or that work in it."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit() and int(process.name) != os.getpid():
            try:
                command, place = (process / "cmdline").read_bytes(), os.readlink(process / "cwd")
            except OSError:
                continue
            if str(folder).encode() in command or place.startswith(str(folder)):
                found.append(int(process.name))
    return found


# --- exact ------------------------------------------------------------------------------------------------------------

FILES = """
    log.write(f"{i}\\n")
    Path("state.txt").write_text(str(i))
    torch.save(model.state_dict(), "runs/best.pt")
"""


def test_an_exact_save_is_told_in_one_line_and_nothing_is_left(audited: Audited) -> None:
    (audited.work / "state.txt").write_text("what the user had")
    (audited.work / "data").mkdir()
    (audited.work / "data" / "input.txt").write_text("5")
    begin = 'assert Path("state.txt").read_text() == "what the user had"\nPath("runs").mkdir()\n'
    begin += 'log = open("log.txt", "w", buffering=1)\nscale = int(Path("data/input.txt").read_text())\n'
    verdict = audited.run(HEAD + begin + LOOP.format(body=FILES))
    assert verdict["text"] == "audit of save 1:3: exact after 4 steps"
    assert (verdict["verdict"], verdict["begin"], verdict["end"]) == ("exact", 3, 7)
    said = audited.log.read_text()
    assert said.count("everstep: ") == said.count("everstep: audit of save 1:3: exact after 4 steps\n") == 1
    done = len((audited.work / "log.txt").read_text().splitlines())
    out = (audited.work / "saves" / "stdout-0.log").read_text().splitlines()
    assert done == len(out) == len({line.split()[0] for line in out})
    assert set(contents(audited.work)) - {"train.py", "data/input.txt"} >= {"log.txt", "state.txt", "runs/best.pt"}
    assert not [path for path in audited.work.glob("saves/audit*")]
    assert not processes_in(audited.work)


def test_user_files_are_those_of_a_run_without_an_audit(scripts: Zygote, tmp_path: Path) -> None:
    script = HEAD + 'Path("runs").mkdir()\nlog = open("log.txt", "a", buffering=1)\n'
    script += LOOP.replace("2000", "30").format(body=FILES).replace("told()", "False")
    found = []
    for name, options in (("with", ["--audit-strict"]), ("without", [])):
        (tmp_path / name).mkdir()
        one = Audited(scripts, tmp_path / name)
        (one.work / "log.txt").write_text("before\n")
        child = one.start(script, *options) if options else one.start(script, "--audit-every", "1000", steps=999)
        assert child.wait() == 0, one.log.read_text()
        found.append({path: digest for path, digest in contents(one.work).items() if not path.startswith("saves")})
    assert found[0] == found[1]


WORKERS = """
class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 4000

    def __getitem__(self, index):
        return torch.randn(4) + index


loader = torch.utils.data.DataLoader(Noisy(), batch_size=2, shuffle=True, num_workers=1)
for x in loader:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02)
    if told():
        break
"""


def test_loader_workers(audited: Audited) -> None:
    assert audited.run(HEAD + WORKERS)["verdict"] == "exact"


PLACES = """
import argparse
import sys

options = argparse.ArgumentParser()
options.add_argument("--out", type=Path)
options.add_argument("--data")
options = options.parse_args()
assert Path(__file__).with_name("beside.txt").read_text() == "beside"
assert Path(options.data).read_text() == "data"
options.out.mkdir()
os.chdir(options.out)
log = open(options.out / "log.txt", "w", buffering=1)
"""


@pytest.mark.expensive(family="audits")
def test_paths_of_the_working_folder_lead_into_the_copy(audited: Audited) -> None:
    for name in ("src/beside.txt", "data.txt"):
        (audited.work / name).parent.mkdir(exist_ok=True)
        (audited.work / name).write_text(Path(name).stem)
    script = HEAD.replace('"/audit/work"', '"/audit/work" "/out"') + PLACES + LOOP.format(body="print(i, file=log)")
    audited.target = ["src/train.py", "--out", str(audited.work / "out"), "--data", str(audited.work / "data.txt")]
    assert audited.run(script)["verdict"] == "exact"
    numbers = (audited.work / "out" / "log.txt").read_text().split()
    assert numbers == [str(number) for number in range(len(numbers))]


@pytest.mark.expensive(family="audits")
def test_a_module_run_by_name(audited: Audited) -> None:
    (audited.work / "pkg").mkdir()
    (audited.work / "pkg" / "__init__.py").touch()
    (audited.work / "pkg" / "scale.py").write_text("SCALE = 2.0\n")
    audited.target = ["-m", "pkg.train"]
    script = HEAD + "from .scale import SCALE\n" + LOOP.format(body="pass").replace("step(1.0)", "step(SCALE)")
    assert audited.run(script)["verdict"] == "exact"


@pytest.mark.expensive(family="audits")
def test_every_n_th_save_is_audited_one_at_a_time(audited: Audited) -> None:
    more = (
        "def count():\n    return told() and Path(os.environ['EVERSTEP_REPORT_DIR'], 'facts-0.jsonl').read_text().count"
    )
    more += "('\"audit\"')\n\n\n"
    audited.run(HEAD + more + LOOP.format(body="pass").replace("if told()", "if count() >= 2"), "--audit-every", "2")
    # Another one may have begun when the run ended.
    first, second = audited.verdicts()[:2]
    assert first["verdict"] == second["verdict"] == "exact"
    assert second["begin"] % 3 == 0
    assert second["begin"] > first["end"]


# --- not exact --------------------------------------------------------------------------------------------------------

C_RANDOM = """
libc_seeded = ctypes.CDLL(None).srand(1)


def drawn():
    return ctypes.CDLL(None).rand() % 1000
"""


@pytest.mark.expensive(family="audits")
def test_state_that_lies_in_a_c_library_is_found_by_its_effect(audited: Audited) -> None:
    script = HEAD + C_RANDOM + LOOP.format(body="pass").replace("step(1.0)", "step(1 + drawn())")
    verdict = audited.run(script)
    assert verdict["verdict"] == "differs"
    assert verdict["first_difference"] == "parameter 0.weight (AdamW)"
    assert verdict["first_step"] in (4, 5)
    assert "at step 7, 4 steps later, parameter 0.weight (AdamW) differs (since step" in verdict["text"]
    assert str(audited.work / "saves" / "audit-3.json") in audited.log.read_text()
    kept = audited.kept()
    assert kept["objects"][0] == kept["first_difference"] == verdict["first_difference"]
    assert "AdamW state of 0.weight: exp_avg" in kept["objects"]
    assert "random numbers of torch" not in kept["objects"]


@pytest.mark.expensive(family="audits")
def test_strict_ends_the_run_with_exit_code_76(audited: Audited) -> None:
    script = HEAD + C_RANDOM + LOOP.format(body="pass").replace("step(1.0)", "step(1 + drawn())")
    assert audited.start(script, "--audit-strict").wait() == handshake.EXIT_REFUSED
    assert "everstep: ended by --audit-strict: audit of save 1:3: not exact" in audited.log.read_text()
    assert not (audited.work / "saves" / "audit").exists()


@pytest.mark.expensive(family="audits")
def test_strict_waits_where_the_script_is_through_first(audited: Audited) -> None:
    script = HEAD + C_RANDOM + "for i in range(9):\n    step(1 + drawn())\n"
    assert audited.start(script, "--audit-strict").wait() == handshake.EXIT_REFUSED


@pytest.mark.expensive(family="audits")
def test_what_cannot_be_restored_is_a_refusal_with_its_reason(audited: Audited) -> None:
    pipe = "reader, writer = os.pipe()\npipe = os.fdopen(writer, 'w')\n"
    verdict = audited.run(HEAD + pipe + LOOP.format(body="pipe.write('x')"))
    assert verdict["verdict"] == "refuses"
    assert "could not be restored" in verdict["text"]
    assert audited.kept()["verdict"] == "refuses"


@pytest.mark.expensive(family="audits")
def test_a_script_that_raises_in_the_audit_alone_is_not_exact(audited: Audited) -> None:
    verdict = audited.run(HEAD + LOOP.format(body="if audited() and i == 5: raise KeyError('moved')"))
    assert verdict["verdict"] == "differs"
    assert "behind step 6 the script ended by KeyError: 'moved', and here it did not" in verdict["text"]
    assert verdict["first_step"] == 6


# --- not known --------------------------------------------------------------------------------------------------------


@pytest.mark.expensive(family="audits")
def test_an_audit_that_crashes_is_no_verdict(audited: Audited) -> None:
    verdict = audited.run(HEAD + LOOP.format(body="if audited(): os.kill(os.getpid(), 11)"), "--audit-strict")
    assert verdict["verdict"] == "unknown"
    assert "its process ended by signal 11" in verdict["text"]


@pytest.mark.expensive(family="audits")
@pytest.mark.slow
def test_an_audit_that_hangs_is_ended_and_says_where(audited: Audited) -> None:
    script = HEAD + "def wait():\n    time.sleep(3600)\n\n" + LOOP.format(body="if audited(): wait()")
    verdict = audited.run(script, "--audit-timeout", "40")
    assert verdict["verdict"] == "unknown"
    line = audited.line("    time.sleep(3600)")
    assert verdict["text"].endswith(f"it was not through after 40 s; it was at train.py:{line} in wait")
    assert not processes_in(audited.work)


@pytest.mark.expensive(family="audits")
def test_a_run_that_ends_first_says_so_and_takes_the_audit_with_it(audited: Audited) -> None:
    verdict = audited.run(HEAD + "for i in range(9):\n    step()\n    time.sleep(0.01 + 3600 * audited())\n")
    assert verdict["text"] == "audit of save 1:3: nothing is known: the run ended before it was through"
    assert not [path for path in audited.work.glob("saves/audit*")]
    assert not processes_in(audited.work)


@pytest.mark.expensive(family="audits")
def test_kill_9_of_the_run_leaves_no_process_and_the_next_launch_no_folder(audited: Audited) -> None:
    # Slowly at first: an audit has what processor time is left, and the run must not end before it began.
    hurry = audited.work.parent / "hurry"
    pause = f"time.sleep(3600 if audited() else 0.02 if os.path.exists({str(hurry)!r}) else 0.5)"
    script = HEAD + WORKERS.replace("time.sleep(0.02)", pause)
    run = audited.start(script)
    trace = audited.work / "saves" / "audit" / "saves" / "stdout-0.log"
    # An audit and its workers have what processor time the others of this machine leave.
    wait_for(lambda: trace.exists() and len(processes_in(audited.work)) >= 4, 240.0)
    run.kill()
    run.wait()
    wait_for(lambda: not processes_in(audited.work))
    assert (audited.work / "saves" / "audit").exists()
    hurry.touch()
    # The script has not changed, and is told now: the first audit of the second launch.
    assert audited.start(script, "--audit-timeout", "1").wait() == 0, audited.log.read_text()
    assert not (audited.work / "saves" / "audit").exists()


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_several_ranks_are_told_that_none_is_audited(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(RANKS)
    options = ["--dir", "saves", "--every-steps", "3", "--audit", "2"]
    assert torchrun(tmp_path, "-m", "everstep.train.run", *options, "train.py") == 0
    said = (tmp_path / "launches.log").read_text()
    assert said.count("everstep: no save is audited: that is done for one process, not for 2\n") == 1, said


# --- walls ------------------------------------------------------------------------------------------------------------


def test_a_file_outside_of_the_working_folder_is_not_touched(audited: Audited, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    audited.env["OUTSIDE"] = str(outside)
    script = HEAD + 'log = open(OUTSIDE, "a")\n' + LOOP.format(body='log.write("x"); log.flush()')
    verdict = audited.run(script)
    assert verdict["verdict"] == "unknown"
    assert f"the script changes {outside}, which lies outside of its working folder" in verdict["text"]
    lines = (audited.work / "saves" / "stdout-0.log").read_text().splitlines()
    assert outside.read_text() == "x" * len(lines)


@pytest.mark.expensive(family="audits")
def test_what_goes_past_python_does_not_get_out_either(audited: Audited, tmp_path: Path) -> None:
    if not walls.kernel_helps():
        pytest.skip("this kernel has no Landlock")
    audited.env["OUTSIDE"] = str(tmp_path / "outside.txt")
    script = HEAD + LOOP.format(body='os.system(f"echo {audited()} >> {OUTSIDE}")')
    assert audited.run(script)["verdict"] == "exact"
    assert set((tmp_path / "outside.txt").read_text().split()) == {"False"}


# --- the parts --------------------------------------------------------------------------------------------------------


def test_the_copy_is_what_the_folder_was_at_the_first_start(tmp_path: Path) -> None:
    work, saves, copy = tmp_path / "work", tmp_path / "work" / "saves", tmp_path / "copy"
    saves.mkdir(parents=True)
    before = {"changed": "old", "gone": "old", "same": "same", "in/deep": "old"}
    for name, text in before.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text)
    (work / "grown").write_bytes(b"a" * (2 << 20))
    (work / "empty").mkdir()
    (work / "link").symlink_to("same")
    journal = Journal(saves, 0, Place({"work": work}))
    touched = {"changed": "write", "gone": "remove", "in/deep": "update", "grown": "append", "new": "write"}
    for name, how in {**touched, "made": "folder", "link": "remove"}.items():
        journal.first_touch(str(work / name), how)
    for name in ("changed", "in/deep", "new"):
        (work / name).write_text("new")
    (work / "gone").unlink()
    (work / "link").unlink()
    with (work / "grown").open("ab") as grown:
        grown.write(b"b")
    (work / "made").mkdir()
    (work / "made" / "unseen").touch()
    copying.copy_folder(work, copy, but=saves)
    copying.undo(journal, str(work), str(copy))
    found = {str(path.relative_to(copy)) for path in copy.rglob("*")}
    assert found == {*before, "grown", "in", "empty", "link"}
    assert {name: (copy / name).read_text() for name in before} == before
    assert (copy / "grown").read_bytes() == b"a" * (2 << 20)
    assert os.readlink(copy / "link") == "same"
    assert (work / "grown").stat().st_size == (2 << 20) + 1


def test_what_a_file_was_may_not_be_known_any_more(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    path = tmp_path / "work" / "grown"
    path.write_bytes(b"a" * (2 << 20))
    journal = Journal(tmp_path, 0, Place({"work": tmp_path / "work"}))
    journal.first_touch(str(path), "append")
    path.write_bytes(b"c" * (2 << 20))
    copying.copy_folder(tmp_path / "work", tmp_path / "copy", but=tmp_path)
    with pytest.raises(copying.Impossible, match=r"what .*grown was at the first start is not known any more"):
        copying.undo(journal, str(tmp_path / "work"), str(tmp_path / "copy"))


def gathered(change: str) -> dict[str, Any]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trail = Trail(10, 2)
    for number in range(2):
        model(torch.ones(3, 2)).square().sum().backward()
        if change == "weights" and number:
            model[0].bias.data[1] += 1e-7
        optimizer.step()
        assert trail.stepped(optimizer) == (number == 1)
    if change == "buffer":
        model[1].running_mean += 1
    elif change == "momentum":
        optimizer.state[model[1].weight]["momentum_buffer"][0] = 7.0
    elif change == "rate":
        optimizer.param_groups[0]["lr"] = 0.2
    elif change == "random":
        torch.rand(1)
    return trail.gather()


@pytest.mark.expensive(family="audits")
@pytest.mark.parametrize(
    ("change", "first", "step"),
    [
        ("weights", "parameter 0.bias (SGD)", None),
        ("buffer", "buffer 1.running_mean", None),
        ("momentum", "SGD state of 1.weight: momentum_buffer", None),
        ("rate", "SGD group 0: lr", None),
        ("random", "random numbers of torch", None),
    ],
)
def test_the_first_difference_is_named(change: str, first: str, step: int | None) -> None:
    assert difference(gathered(""), gathered("")) is None
    found = difference(gathered(""), gathered(change))
    assert found is not None
    assert (found.object, found.step) == (first, step)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--audit", "0"], "--audit: expected a number from 1, got '0'"),
        (["--audit", "3", "--audit-every", "often"], "--audit-every: expected a number from 1, got 'often'"),
        (["--audit-strict"], "add --audit K"),
        (["--audit"], "--audit needs a value"),
    ],
)
def test_a_wrong_command_line(
    options: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(SystemExit) as ended:
        main([*options, "train.py"] if options != ["--audit"] else options)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
