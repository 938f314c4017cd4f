from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from everstep.cli.demo import scenario
from everstep.cli.demo.reference import script_folder
from everstep.cli.demo.stage import Stage

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def test_a_stage_survives_its_server_and_leaves_nothing(tmp_path: Path, leak_guard: str) -> None:
    stage = Stage(tmp_path)
    try:
        stage.start_server()
        with stage.client() as client:
            zones = {offer.zone for offer in client.offers(accelerator="V100")}
            assert zones == set(scenario.ZONES)
        before = stage.home.server()
        stage.kill_server()
        stage.start_server()
        after = stage.home.server()
        assert before is not None
        assert after is not None
        assert before.pid != after.pid
        assert stage.meter() == []
        assert stage.left_over() == []
    finally:
        left = stage.close()
    assert left == []
    assert stage.close() == [], "closing twice is no error"


def test_the_workdir_holds_what_the_task_needs(tmp_path: Path) -> None:
    work = Stage(tmp_path).workdir(script_folder(), "run: true\n")
    assert sorted(path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file()) == [
        "charlm.py",
        "data/apache-2.0.txt",
        "task.yaml",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, leak_guard: str, number: signal.Signals) -> None:
    (tmp_path / "tmp").mkdir()
    demo = subprocess.Popen(
        [sys.executable, "-m", "everstep", "demo", "--report", str(tmp_path / "report")],
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp"), "EVERSTEP_HOME": str(tmp_path / "home")},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        while not list((tmp_path / "tmp").glob("everstep-demo-*/calibration/rank-1.log")):
            assert demo.poll() is None
            time.sleep(0.02)
        demo.send_signal(number)
        _, err = demo.communicate(timeout=60)
    finally:
        demo.kill()
        demo.wait()
    assert demo.returncode == 130
    assert "Traceback" not in err
    assert not list((tmp_path / "tmp").glob("everstep-demo-*"))
    assert not (tmp_path / "report").exists()
    assert not (tmp_path / "home").exists(), "the user's own installation is not touched"
