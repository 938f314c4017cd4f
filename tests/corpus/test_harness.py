"""The corpus judges rightly: each way to fail is planted, by an engine made for it, and found."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import guards
from tests.corpus import cases, kills
from tests.corpus.cases import Case, load
from tests.corpus.kills import Course, Kill
from tests.corpus.outcome import Outcome, difference, read_files
from tests.corpus.processes import Launch, Running, python
from tests.corpus.trial import Result, Settings, run_plain, run_trial

#: Appends a line every few milliseconds, to stdout and to a file: what is done twice shows.
SCRIPT = """\
import time
for i in range(25):
    time.sleep(0.02)
    print(i, flush=True)
    with open("log.txt", "a") as f:
        f.write(f"{i}\\n")
"""

ENGINE = """\
import json, runpy, sys
from pathlib import Path

saves = Path(sys.argv[sys.argv.index("--dir") + 1])
script = sys.argv[5:]
(saves / "attempts").mkdir(parents=True, exist_ok=True)
attempt = len(list((saves / "attempts").iterdir())) + 1
"""

CLAIMS_TO_RESUME = """\
base = None if attempt == 1 else {"attempt": attempt - 1, "step": 1}
(saves / "attempts" / f"{attempt:06}.json").write_text(json.dumps({"base": base}))
(saves / f"{attempt:06}" / "000000001").mkdir(parents=True)
(saves / f"{attempt:06}" / "000000001" / "manifest.json").write_text("{}")
"""

TEE = """\
class Tee:
    def __init__(self):
        self.log = open(saves / "stdout-0.log", "w")
    def write(self, text):
        self.log.write(text)
        return sys.__stdout__.write(text)
    def flush(self):
        self.log.flush()
        sys.__stdout__.flush()
sys.stdout = Tee()
"""

RUN = "runpy.run_path(script[0], run_name='__main__')\nsys.stdout.flush()\n"
BEGIN_ANEW = "Path('log.txt').unlink(missing_ok=True)\n"


def trial(tmp_path: Path, engine: str, *, patience_s: float = 30.0, **changed: object) -> tuple[Case, Result]:
    """The verdict on `SCRIPT` under an engine with this source, after two kills by its output."""
    (tmp_path / "lines.py").write_text(SCRIPT)
    (tmp_path / "engine.py").write_text(engine)
    case = replace(Case("lines", "lines", "exact", folder=tmp_path), **changed)  # type: ignore[arg-type]
    settings = Settings(kills=2, seed=3, patience_s=patience_s, engine=(str(tmp_path / "engine.py"),))
    return case, run_trial(case, tmp_path / "trial", settings)


def test_repeated_work_is_wrong(tmp_path: Path) -> None:
    case, result = trial(tmp_path, ENGINE + CLAIMS_TO_RESUME + TEE + RUN)
    assert (result.verdict, result.met(case)) == ("wrong", False)
    assert result.detail.startswith("log.txt: ")
    assert result.landed
    assert result.resumed


def test_a_log_that_misses_lines_is_wrong(tmp_path: Path) -> None:
    _, result = trial(tmp_path, ENGINE + CLAIMS_TO_RESUME + BEGIN_ANEW + RUN)
    assert result.verdict == "wrong"
    assert result.detail.startswith("stdout: 0 bytes")


@pytest.mark.parametrize(("expect", "allowed"), [("exact", False), ("may_refuse", True)])
def test_beginning_anew_is_no_resume(tmp_path: Path, expect: str, allowed: bool) -> None:
    case, result = trial(tmp_path, ENGINE + TEE + BEGIN_ANEW + RUN, expect=expect)
    assert (result.verdict, result.met(case)) == ("restarted", allowed)


def test_same_result_from_a_save_is_exact(tmp_path: Path) -> None:
    case, result = trial(tmp_path, ENGINE + CLAIMS_TO_RESUME + TEE + BEGIN_ANEW + RUN)
    assert (result.verdict, result.met(case)) == ("exact", True)


@pytest.mark.parametrize(("expect", "allowed"), [("exact", False), ("may_refuse", True)])
def test_refusal_names_the_place(tmp_path: Path, expect: str, allowed: bool) -> None:
    leave = "sys.stderr.write('everstep: generator data, train.py:12: use a for loop\\n'); sys.exit(76)"
    case, result = trial(tmp_path, ENGINE + leave, expect=expect)
    assert (result.verdict, result.met(case)) == ("refused", allowed)
    assert "train.py:12" in result.detail


@pytest.mark.parametrize(
    ("leave", "detail"),
    [
        ("sys.stderr.write('everstep: no\\n'); sys.exit(76)", "a refusal without a place: 'everstep: no'"),
        ("sys.exit(75)", "exit code 75 instead of 0"),
        ("sys.exit(1)", "exit code 1 instead of 0"),
        ("import time; time.sleep(60)", "no end within 1.5 s, with nobody killing it"),
    ],
)
def test_other_ends_are_broken(tmp_path: Path, leave: str, detail: str) -> None:
    case, result = trial(tmp_path, ENGINE + leave, patience_s=1.5, expect="may_refuse")
    assert (result.verdict, result.detail, result.met(case)) == ("broken", detail, False)


def test_plain_run_that_fails_is_broken(tmp_path: Path) -> None:
    _, result = trial(tmp_path, ENGINE + RUN, exit=3)
    assert result.verdict == "broken"
    assert result.detail.startswith("plain run: exit code 0 instead of 3")


def test_lost_machine_takes_everything_with_it(tmp_path: Path) -> None:
    child = "import time; time.sleep(60)"
    start = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}], start_new_session=True)"
    command = python("-c", f"{start}; print(1, flush=True); time.sleep(60)")
    running = Running(Launch(command, tmp_path, tmp_path / "out", tmp_path / "err"))
    assert running.wait_until(lambda running: running.written > 0, timeout_s=30.0)
    mark = running._mark
    deadline = time.monotonic() + 10.0
    while len(guards.processes_of(mark)) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(guards.processes_of(mark)) == 2
    running.lose()
    assert guards.processes_of(mark) == []


# --- comparing ----------------------------------------------------------------------------------------------------


def saved(tmp_path: Path, value: object) -> Outcome:
    """What a script leaves that saved `value`."""
    torch.save(value, tmp_path / "out.pt")
    return Outcome(0, b"done\n", {"out.pt": (tmp_path / "out.pt").read_bytes()})


def test_one_bit_of_a_tensor_is_found(tmp_path: Path) -> None:
    weights = torch.tensor([1.0, 2.0])
    plain = saved(tmp_path, {"model": [weights]})
    weights[0] = torch.nextafter(weights[0], weights[1])
    assert difference(plain, saved(tmp_path, {"model": [weights]})) == (
        "out.pt: ['model'][0] differs by up to 1.19e-07"
    )


def test_nothing_is_found_in_equal_values_written_differently(tmp_path: Path) -> None:
    text = "a text of its own"
    tensor = torch.tensor([float("nan"), -0.0])
    once = saved(tmp_path, [text, text, tensor])
    twice = saved(tmp_path, [text, text.encode().decode(), tensor])
    assert once.files != twice.files
    assert difference(once, twice) is None


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ([torch.zeros(2, dtype=torch.float64), 1.5], "[0] is"),
        ([-torch.zeros(2), 1.5], "[0] differs by up to 0"),
        ([torch.zeros(2), 1.25], "[1] is 1.25 instead of 1.5"),
        ([torch.zeros(2)], "value has 1 items instead of 2"),
        ((torch.zeros(2), 1.5), "value is a tuple instead of a list"),
        ({"a": 1}, "value is a dict instead of a list"),
    ],
)
def test_values_that_differ(tmp_path: Path, other: object, text: str) -> None:
    found = difference(saved(tmp_path, [torch.zeros(2), 1.5]), saved(tmp_path, other))
    assert found is not None
    assert found.startswith(f"out.pt: {text}")


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Outcome(1, b"ab\n", {"log": b"1\n"}), "exit code 1 instead of 0"),
        (Outcome(0, b"ab\n", {}), "log is missing"),
        (Outcome(0, b"ab\n", {"log": b"1\n", "new": b""}), "new should not be there"),
        (Outcome(0, b"ab\n", {"log": b"1\n1\n"}), "log: 4 bytes instead of 2; at 2: b'1\\n' instead of b''"),
        (Outcome(0, b"ac\n", {"log": b"1\n"}), "stdout: 3 bytes instead of 3; at 1: b'c\\n' instead of b'b\\n'"),
    ],
)
def test_files_and_output_that_differ(other: Outcome, text: str) -> None:
    assert difference(Outcome(0, b"ab\n", {"log": b"1\n"}), other) == text


def test_links_and_folders_are_read(tmp_path: Path) -> None:
    (tmp_path / "epoch").mkdir()
    (tmp_path / "epoch" / "model").write_bytes(b"1")
    (tmp_path / "latest").symlink_to("epoch")
    assert read_files(tmp_path) == {"epoch/model": b"1", "latest": b"-> epoch"}


# --- kills and table ----------------------------------------------------------------------------------------------

COURSE = Course(startup_s=1.0, total_s=3.0, printed=1000)


def test_a_seed_gives_the_same_kills_again() -> None:
    plans = [kills.draw(random.Random(seed), COURSE, 3) for seed in (5, 5, 6)]
    assert plans[0] == plans[1] != plans[2]


def test_kills_are_of_all_kinds_and_within_the_run() -> None:
    drawn = [kill for seed in range(50) for kill in kills.draw(random.Random(seed), COURSE, 4).kills]
    assert {kill.kind for kill in drawn} == set(kills.KINDS)
    assert all(kill.at < 1.0 for kill in drawn if kill.kind in ("clock", "term", "early"))
    assert all(sum(kill.latest for kill in drawn[i : i + 4]) < COURSE.printed for i in range(0, len(drawn), 4))
    assert str(Kill("clock", 1.234, latest=5)) == "clock 1.23 s"


def test_every_script_is_in_the_table() -> None:
    table = load()
    assert all(case.script.exists() for case in table.values())
    files = {path.stem for path in cases.SCRIPTS.glob("*.py")}
    folders = {path.parent.name for path in cases.SCRIPTS.glob("*/*.py")}
    assert files | folders == set(table)
    assert len(table) >= 48


def test_few_may_refuse() -> None:
    table = load()
    may = [case.name for case in table.values() if case.expect == "may_refuse"]
    assert 10 * len(may) <= len(table), may


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ('shape = "s"\nexpect = "perhaps"', "expect is 'perhaps'"),
        ('shape = "s"\nexpect = "may_refuse"', "a reason goes with may_refuse"),
        ('shape = "s"\nexpect = "exact"\nreason = "r"', "a reason goes with may_refuse"),
        ('shape = "s"\nexpect = "exact"\nrank = 2', "rank"),
    ],
)
def test_mistakes_in_the_table(tmp_path: Path, entry: str, text: str) -> None:
    (tmp_path / "table.toml").write_text(f"[script]\n{entry}\n")
    with pytest.raises((TypeError, ValueError), match=text):
        load(tmp_path / "table.toml")


def test_unseeded_scripts_begin_from_the_recorded_state(tmp_path: Path) -> None:
    (tmp_path / "draw.py").write_text(
        "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(()).item())\n"
    )
    case = Case("draw", "draws", "exact", unseeded=True, folder=tmp_path)
    drawn = [run_plain(case, tmp_path / str(i), seed)[0].stdout for i, seed in enumerate((1, 1, 2))]
    assert drawn[0] == drawn[1] != drawn[2]
