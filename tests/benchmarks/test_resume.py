"""The benchmark of resumes times real relaunches, and knows one that began anew."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import resume


@pytest.mark.expensive(family="benchmarks")
def test_a_killed_script_is_timed_from_its_first_new_step(capsys: pytest.CaptureFixture[str]) -> None:
    resume.main(["--rounds", "1", "--epochs", "3", "--step-ms", "0.1"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(f["bench"], f["unit"], f["n"]) for f in found] == [("resume", "%", 1)] * 2 + [("resume", "s", 1)]
    assert found[0]["steps"] == 100


def test_a_script_that_does_not_kill_itself_is_no_measurement(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('done')\n")
    with pytest.raises(RuntimeError, match="ended with 0"):
        resume._first_step(tmp_path, ())


def test_a_relaunch_from_the_first_step_is_no_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(resume, "_first_step", lambda place, under: (1, 3.0))
    with pytest.raises(RuntimeError, match="no save to go on from"):
        resume._relaunch(tmp_path, "command", 1)
