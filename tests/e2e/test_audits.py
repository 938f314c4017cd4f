"""`checkpoint.audit` in a task: a real job tries out its own save, and everybody who looks at the job hears of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import pytest

from tests.e2e.rig import PATIENCE_S, SCRIPTS, Rig

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.xdist_group("e2e-unmodified")]


def _everstep(rig: Rig, *words: str) -> str:
    """What the command line prints."""
    done = subprocess.run(
        [sys.executable, "-m", "everstep", *words],
        env={**os.environ, "EVERSTEP_HOME": str(rig.home.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return done.stdout


def _run(rig: Rig, *options: str) -> str:
    words = [sys.executable, str(SCRIPTS / "selfaudit.py"), *options]
    return rig.submit(shlex.join(words), checkpoint={"every": "1s", "audit": 3})


def test_the_verdict_on_a_save_is_in_the_events_and_in_the_status_of_its_job(rig: Rig) -> None:
    jobs = {"exact": _run(rig), "differs": _run(rig, "--hidden")}
    for verdict, job in jobs.items():
        # The audit has the lowest priority there is: on a busy machine it takes its time.
        rig.wait_for(lambda job=job: rig.events(job, "CheckpointAudited"), "a verdict", timeout_s=4 * PATIENCE_S)  # type: ignore[misc]
        rig.wait_phase(job, "succeeded")
        (audit,) = rig.events(job, "CheckpointAudited")
        save = audit.body["save"]
        assert (audit.body["verdict"], audit.body["attempt"], save.partition(":")[0]) == (verdict, 1, "1"), audit.text
        assert audit.text.startswith(f"audit of save {save}: ")
        assert audit.text in _everstep(rig, "events", job)
        assert audit.text in _everstep(rig, "status", job)
        assert rig.detail(job).attempts[-1].audit == audit.text
    assert "exact after 3 steps" in rig.detail(jobs["exact"]).attempts[-1].audit
    differs = rig.detail(jobs["differs"]).attempts[-1].audit
    assert "3 steps later, parameter weight (SGD) differs" in differs, "it names the first object that differs"
    rig.check_settled()
