"""The whole path once: a task goes in, machines come and go, a checked bill comes out."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import everstep
from tests.e2e.rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e-smoke")]


def test_job_runs_succeeds_and_is_billed_as_metered(rig: Rig) -> None:
    job = rig.stepper(options="--steps 6")
    detail = rig.client.wait(job, timeout_s=90)
    assert (detail.phase, detail.exit_code, detail.step, detail.total) == ("succeeded", 0, 6, 6)
    assert [(line.attempt, line.step) for line in rig.trail("step")] == [(1, n) for n in range(1, 7)]
    rig.check_settled()
    rig.check_tokens()
    rig.check_ranks()


def test_python_runs_a_task_file_with_its_folder(rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/word.txt").write_text("brought along")
    task = tmp_path / "task.yaml"
    task.write_text(f"workdir: {tmp_path}/code\nsecrets: {{MARK: null}}\nrun: cat word.txt; test $MARK = 7\n")
    detail = everstep.run(everstep.load_task(task, secrets={"MARK": "7"}), home=rig.home)
    assert (detail.phase, detail.exit_code) == ("succeeded", 0)
    assert "brought along" in capsys.readouterr().out
    (tmp_path / "code/word.txt").write_text("brought again")
    detail = everstep.run(task, secrets={"MARK": "8"}, home=rig.home)
    assert (detail.phase, detail.exit_code) == ("failed", 1)
    assert "brought again" in capsys.readouterr().out
    rig.jobs += [job.job for job in rig.client.jobs(all=True)]
    rig.check_settled()


def test_failing_script_fails_with_its_exit_code_and_last_lines(rig: Rig) -> None:
    job = rig.submit("echo first; for n in $(seq 30); do echo line $n; done; echo the last word >&2; exit 41")
    detail = rig.client.wait(job, timeout_s=90)
    assert (detail.phase, detail.exit_code) == ("failed", 41)
    assert detail.attempts[-1].cause == "user_error"
    assert "the last word" in detail.attempts[-1].tail
    assert "line 30\nthe last word\n" in rig.log(job)
    rig.check_settled()


def test_failing_setup_fails_the_job_before_any_rank_runs(rig: Rig) -> None:
    job = rig.stepper(options="--steps 3", setup="echo preparing; echo no such wheel; exit 7")
    detail = rig.client.wait(job, timeout_s=90)
    assert detail.phase == "failed"
    assert "setup" in detail.why
    assert "no such wheel" in rig.log(job)
    assert rig.trail() == []
    rig.check_settled()


def test_secret_reaches_the_ranks_and_stays_out_of_logs_journal_and_disk(rig: Rig) -> None:
    value = "sesame-7f3a9c51d2"
    seen = rig.folder / "seen.txt"
    job = rig.submit(
        f'echo "it is $OPEN"; printf %s "$OPEN" | sha256sum > {seen}.part && mv {seen}.part {seen}; '
        "until [ -e go ]; do sleep 0.1; done",
        secrets={"OPEN": value},
        setup='echo "set up with $OPEN"',
    )
    rig.wait_for(seen.exists, "sign of the running script")
    assert seen.read_text().split()[0] == hashlib.sha256(value.encode()).hexdigest()
    rig.wait_for(lambda: "it is " in rig.log(job), "log line")
    # While it runs: on no command line and in no file but the vault.
    assert _files_with(rig.folder, value) == [rig.home.path / "secrets" / f"{job}.json"]
    assert _command_lines_with(value) == []
    rig.client.cancel(job)
    rig.client.wait(job, timeout_s=90)
    rig.check_settled()
    assert value not in rig.log(job)
    assert all(value not in str(event) for event in rig.events(job))
    rig.kill_server()
    rig.start()  # secrets of ended jobs are swept at every start, and now and then
    rig.wait_for(lambda: _files_with(rig.folder, value) == [], "deletion of the secret")


def _files_with(folder: Path, text: str) -> list[Path]:
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            if path.is_file() and not path.is_symlink() and text.encode() in path.read_bytes():
                found.append(path)
        except OSError:
            continue  # gone meanwhile
    return found


def _command_lines_with(text: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in line:
                found.append(line.decode(errors="replace"))
    return found
