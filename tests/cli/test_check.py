"""`everstep check` on real processes: each verdict, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.check import EXIT_CODES
from everstep.client.check import Verdict
from tests.cli.conftest import Cli
from tests.client.check import scripts

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.xdist_group("check"),
    pytest.mark.usefixtures("leak_guard"),
]

KEYS = {
    *("verdict", "kills", "exact", "first_difference", "resume_s", "save_s", "state_bytes", "lost_steps"),
    *("weights_sha256_plain", "weights_sha256_resumed"),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "project"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


def checked(cli: Cli, folder: Path, script: str, *options: str, kills: int = 1) -> tuple[int, dict[str, Any]]:
    (folder / "train.py").write_text(script)
    done = cli("check", "--kills", str(kills), "-o", "json", *options, "--", sys.executable, "train.py")
    assert done.out, done.err
    report = json.loads(done.out)
    assert set(report) >= KEYS
    assert json.loads(Path(report["report"]).with_name("report.json").read_text())["verdict"] == report["verdict"]
    assert report["verdict"] in Path(report["report"]).read_text()
    assert sorted(path.name for path in folder.iterdir()) == [".everstep", "train.py"]
    return done.code, report


def test_an_unmodified_script_is_exact(cli: Cli, folder: Path) -> None:
    code, report = checked(cli, folder, scripts.UNMODIFIED, kills=2)
    assert (code, report["verdict"], report["exact"]) == (0, "exact", True), report
    assert report["mode"] == "script"
    assert report["weights_sha256_plain"] == report["weights_sha256_resumed"] is not None
    assert report["kills"] == 2 == len(report["lost_steps"])
    assert report["launches"][1]["from_step"] > 0
    assert report["state_bytes"] > 0
    assert report["resume_s"]["total"] > report["resume_s"]["import_torch"] > 0
    assert report["checkpoint"]["mode"] == "script"


@pytest.mark.expensive(family="check")
def test_the_library_is_exact(cli: Cli, folder: Path) -> None:
    code, report = checked(cli, folder, scripts.ATTACHED)
    assert (code, report["verdict"], report["mode"]) == (0, "exact", "library"), report


@pytest.mark.expensive(family="check")
def test_the_library_with_accumulated_gradients(cli: Cli, folder: Path) -> None:
    code, report = checked(cli, folder, scripts.ACCUMULATING)
    assert (code, report["verdict"], report["mode"], report["steps"]) == (0, "exact", "library", 25), report
    assert report["launches"][-1]["from_step"] + report["launches"][-1]["steps"] == 25


@pytest.mark.expensive(family="check")
def test_own_checkpoints_without_the_random_state(cli: Cli, folder: Path) -> None:
    code, report = checked(cli, folder, scripts.OWN_CHECKPOINTS, "--mode", "off")
    assert (code, report["verdict"], report["exact"]) == (10, "resumes, not exact", False), report
    first = report["first_difference"]
    assert first["object"] == "parameter '0.weight' of SGD"
    assert "random state" in first["likely_cause"]
    # Every fifth step is saved; the relaunch goes on at one of them.
    assert report["launches"][1]["from_step"] % 5 == 0 < report["launches"][1]["from_step"]
    assert first["step"] == report["launches"][1]["from_step"] + 1
    assert report["weights_sha256_plain"] != report["weights_sha256_resumed"]


@pytest.mark.expensive(family="check")
def test_nobody_saves(cli: Cli, folder: Path) -> None:
    code, report = checked(cli, folder, scripts.UNMODIFIED, "--mode", "off")
    assert (code, report["verdict"]) == (12, "no resume"), report
    assert report["launches"][1]["from_step"] == 0


@pytest.mark.expensive(family="check")
def test_a_refusal_is_quoted(cli: Cli, folder: Path) -> None:
    code, report = checked(cli, folder, scripts.REFUSING, "--mode", "off")
    assert (code, report["verdict"]) == (11, "refuses")
    assert report["reason"] == "train.py:30: sampler: cannot be rebuilt"


@pytest.mark.expensive(family="check")
def test_seeded_by_the_clock(cli: Cli, folder: Path) -> None:
    code, report = checked(cli, folder, scripts.TIME_SEEDED)
    assert (code, report["verdict"], report["kills"]) == (13, "not deterministic", 0)
    assert "train.py" in report["first_difference"]["likely_cause"]
    assert "time.time_ns()" in report["first_difference"]["likely_cause"]


@pytest.mark.expensive(family="check")
def test_times_in_a_log_are_no_difference(cli: Cli, folder: Path) -> None:
    timed = scripts.UNMODIFIED + '\nopen("log", "w").write(f"took {time.time()} s")\n'
    code, report = checked(cli, folder, timed)
    assert (code, report["not_compared"]) == (0, ["file log"]), report


@pytest.mark.expensive(family="check")
def test_the_first_steps_alone(cli: Cli, folder: Path) -> None:
    endless = scripts.UNMODIFIED.replace("range(60)", "range(10**9)")
    code, report = checked(cli, folder, endless, "--steps", "40")
    assert (code, report["verdict"], report["steps"], report["whole"]) == (0, "exact", 40, False), report


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise SystemExit('no data here')", "run plainly, the script ended with exit code 1: no data here"),
        (
            scripts.FAILING,
            "ended with exit code 1 after 60 steps: ValueError: no more data; a check needs one that ends",
        ),
        ("print('hello')", "the script made no optimizer step in its process"),
    ],
)
def test_nothing_can_be_said(cli: Cli, folder: Path, script: str, said: str) -> None:
    (folder / "train.py").write_text(script)
    done = cli("check", "--", sys.executable, "train.py")
    assert done.code == 1
    assert said in done.err


def test_an_interrupt_leaves_nothing_behind(folder: Path) -> None:
    (folder / "train.py").write_text(scripts.UNMODIFIED.replace("range(60)", "range(10**9)"))
    program = "from everstep.cli.main import main; main()"
    command = [sys.executable, "-c", program, "check", "--", sys.executable, "train.py"]
    # A group of its own, as a terminal makes one.
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    limit = time.monotonic() + 60
    while not _steps(folder) and time.monotonic() < limit:
        time.sleep(0.05)
    assert _steps(folder), "no step"
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "interrupted" in err
    assert not list(folder.glob(".everstep/check/*/runs/*/work"))


def _steps(folder: Path) -> bool:
    trails = folder.glob(".everstep/check/*/runs/plain/launch-1/rank-0.trail")
    return any(" step " in trail.read_text() for trail in trails)


def test_every_verdict_has_an_exit_code_of_its_own() -> None:
    assert set(EXIT_CODES) == {str(verdict) for verdict in Verdict}
    assert len({*EXIT_CODES.values(), 1, 2, 3, 130}) == len(EXIT_CODES) + 4
