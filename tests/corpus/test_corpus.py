"""Every script of the corpus, killed at random points, ends as if nobody had killed it.

``EVERSTEP_TEST_ALL=1`` runs all of them, with three kills each; a sample chosen by the commit gets two. Kills are drawn
from the commit, or from ``EVERSTEP_CORPUS_SEED``.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from tests import sampling
from tests.corpus.cases import HERE, Case, load
from tests.corpus.outcome import difference
from tests.corpus.trial import Settings, run_plain, run_trial

RUN_ALL = os.environ.get("EVERSTEP_TEST_ALL") == "1"
CASES = [pytest.param(case, id=name) for name, case in load().items() if RUN_ALL or not case.slow]
KILLS = 3 if RUN_ALL else 2


def the_seed() -> int:
    """Of the kills, and of the random state in which scripts without a seed begin."""
    named = os.environ.get("EVERSTEP_CORPUS_SEED")
    commit = sampling.current_commit(HERE)
    return int(named) if named else int.from_bytes(hashlib.sha256(commit.encode()).digest()[:3], "big")


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_killed_run_ends_as_the_plain_one(case: Case, tmp_path: Path) -> None:
    seed = the_seed()
    result = run_trial(case, tmp_path / case.name, Settings(kills=KILLS, seed=seed))
    again = f"python -m tests.corpus --seed {seed} --kills {KILLS} {case.name}"
    assert result.met(case), "\n".join(
        [f"{case.name} ({case.shape}): {result.verdict}: {result.detail}", *result.landed, result.stderr, again]
    )


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_plain_runs_are_equal(case: Case, tmp_path: Path) -> None:
    first, _ = run_plain(case, tmp_path / "first", the_seed())
    second, _ = run_plain(case, tmp_path / "second", the_seed())
    assert difference(first, second) is None
    assert first.files or first.stdout, "a script without any result proves nothing"
