from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from everstep.cli.demo import reference
from everstep.cli.demo.scenario import SCRIPT
from everstep.model.errors import EverstepError

pytestmark = pytest.mark.e2e

HEAD = """
import argparse, os, time
from pathlib import Path
p = argparse.ArgumentParser()
p.add_argument("--steps", type=int)
p.add_argument("--out", type=Path)
a = p.parse_args()
rank = os.environ["RANK"]
"""


def script(folder: Path, body: str) -> Path:
    (folder / SCRIPT).write_text(HEAD + body)
    return folder


def test_two_ranks_train_and_leave_weights(tmp_path: Path, leak_guard: str) -> None:
    body = """
Path(f"seen-{rank}").write_text(os.environ["WORLD_SIZE"] + os.environ["MASTER_ADDR"] + str(a.steps))
if rank == "0": a.out.write_bytes(b"w")
"""
    reference.train(script(tmp_path, body), tmp_path / "logs", steps=7, out=tmp_path / "w.pt")
    assert (tmp_path / "w.pt").read_bytes() == b"w"
    assert {(tmp_path / f"seen-{rank}").read_text() for rank in (0, 1)} == {"2127.0.0.17"}


def test_a_rank_that_fails_is_named_with_its_last_line(tmp_path: Path, leak_guard: str) -> None:
    body = 'if rank == "1": raise SystemExit("no such luck")'
    with pytest.raises(EverstepError, match=r"rank 1 of the undisturbed run failed \(1\): no such luck"):
        reference.train(script(tmp_path, body), tmp_path / "logs", steps=1, out=tmp_path / "w.pt")


def test_a_run_without_weights_is_no_success(tmp_path: Path, leak_guard: str) -> None:
    with pytest.raises(EverstepError, match="left no weights"):
        reference.train(script(tmp_path, ""), tmp_path / "logs", steps=1, out=tmp_path / "w.pt")


def test_ranks_end_with_whoever_started_them(tmp_path: Path, leak_guard: str) -> None:
    body = 'os.fork(); Path(f"up-{rank}").touch(); time.sleep(600)'

    def interrupted() -> None:
        with reference.ranks(script(tmp_path, body), tmp_path / "logs", steps=1, out=tmp_path / "w.pt"):
            while not all((tmp_path / f"up-{rank}").exists() for rank in (0, 1)):
                time.sleep(0.01)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()


def test_step_time_is_measured_behind_the_warm_up(tmp_path: Path, leak_guard: str) -> None:
    body = """
for step in range(1, a.steps + 1):
    if rank == "0": print(f"step {step} loss 1", flush=True)
    if step == 30: time.sleep(0.2)
"""
    measured = reference.step_s(script(tmp_path, body), tmp_path / "logs")
    # 0.2 s over the 120 steps behind the warm-up, however fast the machine is; the log is looked at every 5 ms.
    assert measured >= 0.15 / 120


def test_a_script_that_does_not_train_is_told(tmp_path: Path, leak_guard: str) -> None:
    with pytest.raises(EverstepError, match="did not train"):
        reference.step_s(script(tmp_path, ""), tmp_path / "logs")


def test_nothing_is_asked_of_the_users_own_installation(tmp_path: Path) -> None:
    environment = reference.rank_environment(1, 29500, tmp_path)
    assert (environment["RANK"], environment["WORLD_SIZE"], environment["MASTER_PORT"]) == ("1", "2", "29500")
    assert environment["EVERSTEP_CHECKPOINT_DIR"] == str(tmp_path)
    assert "EVERSTEP_REPORT_DIR" not in os.environ
