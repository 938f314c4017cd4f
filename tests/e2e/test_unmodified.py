"""A script that knows nothing of everstep loses its machines; its weights are those of a plain run of the script."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.rig import PATIENCE_S, SCRIPTS, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-unmodified")]

SCRIPT = SCRIPTS / "plain.py"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2")


def _plain(folder: Path, *launcher: str) -> str:
    """Output of the script without everstep around it, which runs in ``folder``."""
    folder.mkdir()
    command = [sys.executable, *launcher, *(["--standalone"] if launcher else []), str(SCRIPT)]
    done = subprocess.run(
        [*command, "--step-s", "0", "--out", "digest.txt"],
        cwd=folder,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=4 * PATIENCE_S,
    )
    return done.stdout


def _submit(rig: Rig, *launcher: str, before: str = "", max_restarts: int = 0) -> str:
    step_s = "0.3" if launcher else "0.1"  # two ranks share the data: half as many steps must outlast two losses
    words = [sys.executable, *launcher, str(SCRIPT), "--step-s", step_s, "--out", "digest.txt"]
    # As people write it: nothing in the text says that the script is to be resumed. Each machine has a working folder
    # of another name, in which nothing is when the machine is new.
    keep = f"cp -r digest.txt runs {shlex.quote(str(rig.folder / 'kept'))}"
    text = f"set -e\n{before}\necho in $PWD\n{shlex.join(words)}\nmkdir {rig.folder / 'kept'}\n{keep}\necho done"
    return rig.submit(
        text,
        stop_grace="6s",
        checkpoint={"every": "1s", "dir": str(rig.folder / "saves")},
        envs={"GLOO_SOCKET_IFNAME": "lo"},
        recovery={"max_restarts": max_restarts},
    )


def _contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _first_line(rig: Rig, job: str, attempt: int) -> str:
    said = "".join(part.text for part in rig.client.logs(job, attempt=attempt, rank=0))
    return next(line for line in said.splitlines() if line.startswith("in "))


def _saved(rig: Rig, job: str, attempt: int) -> bool:
    return any(event.body["attempt"] == attempt for event in rig.events(job, "CheckpointSaved"))


def _notice(rig: Rig, job: str) -> None:
    rig.box("preempt", instance=rig.members(job)[0], notice=True, notice_s=6.0)


def _no_notice(rig: Rig, job: str) -> None:
    rig.box("preempt", instance=rig.members(job)[0], notice=False, notice_s=None)


@pytest.mark.expensive(family="training through losses")
@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["python", "torchrun"])
@pytest.mark.parametrize("lose", [_notice, _no_notice])
def test_weights_and_files_after_two_losses_are_those_of_a_plain_run(
    rig: Rig, lose: Callable[[Rig, str], None], launcher: tuple[str, ...]
) -> None:
    output = _plain(rig.folder / "plain", *launcher)
    job = _submit(rig, *launcher)
    for attempt in (1, 2):
        rig.wait_for(lambda attempt=attempt: _saved(rig, job, attempt), f"a save of attempt {attempt}")  # type: ignore[misc]
        lose(rig, job)
    detail = rig.wait_phase(job, "succeeded")
    assert _contents(rig.folder / "kept") == _contents(rig.folder / "plain"), "weights and logs, byte for byte"
    assert [a.cause for a in detail.attempts] == ["preemption", "preemption", "success"]
    assert detail.user_failures == 0
    for before, now in zip(detail.attempts, detail.attempts[1:], strict=False):
        assert now.base is not None
        assert now.base.startswith(f"{before.attempt}:"), "it went on where the attempt before had saved"
    assert (detail.step, detail.total) == ((64, 64) if not launcher else (32, 32))
    places = [_first_line(rig, job, attempt) for attempt in (1, 2, 3)]
    assert len(set(places)) == 3, "each attempt had a working folder of its own"
    said = rig.log(job)
    if launcher:  # torchrun has a word or two of its own to say
        said = "".join(line for line in said.splitlines(keepends=True) if line[:3] in ("in ", "epo", "wei", "don"))
    assert said == f"{places[0]}\n{output}done\n", "what was done again is not told again, byte for byte"
    (log,) = (rig.folder / "saves" / "automatic").glob("plain-*/stdout-0.log")
    assert log.read_text() == output, "the output of all attempts is that of a plain run, byte for byte"
    rig.check_settled()


@pytest.mark.expensive(family="training through losses")
@pytest.mark.parametrize("launcher", [(), TORCHRUN], ids=["python", "torchrun"])
def test_abort_at_its_very_end_costs_a_restart_from_the_last_save(rig: Rig, launcher: tuple[str, ...]) -> None:
    output = _plain(rig.folder / "plain", *launcher)
    first_alone = "if [ $EVERSTEP_ATTEMPT = 1 ]; then export ABORT_AT_END=1; fi"
    job = _submit(rig, *launcher, before=first_alone, max_restarts=1)
    detail = rig.wait_phase(job, "succeeded")
    assert [a.cause for a in detail.attempts] == ["user_error", "success"]
    (base,) = (a.base for a in detail.attempts[1:])
    assert base is not None
    assert base.startswith("1:"), "it did not begin anew"
    assert _contents(rig.folder / "kept") == _contents(rig.folder / "plain"), "weights and logs, byte for byte"
    (log,) = (rig.folder / "saves" / "automatic").glob("plain-*/stdout-0.log")
    assert log.read_text() == output, "the output of both attempts is that of a plain run, byte for byte"
    rig.check_settled()


def test_a_refusal_ends_the_job_at_once_and_says_why(rig: Rig) -> None:
    script = rig.folder / "changing.py"
    script.write_text(SCRIPT.read_text())
    words = [sys.executable, str(script), "--step-s", "0.1", "--out", str(rig.digest_file)]
    job = rig.submit(shlex.join(words), checkpoint={"every": "1s"}, recovery={"max_restarts": 5})
    rig.wait_for(lambda: _saved(rig, job, 1), "a save")
    script.write_text(SCRIPT.read_text().replace("momentum=0.9", "momentum=0.8"))
    _no_notice(rig, job)
    detail = rig.client.wait(job, timeout_s=PATIENCE_S)
    assert (detail.phase, detail.exit_code) == ("failed", 76)
    assert detail.why.startswith(f"refused to go on: {script} has changed since the save")
    assert detail.user_failures == 1
    assert not rig.digest_file.exists()
    rig.check_settled()
