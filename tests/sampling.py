"""Which cases of an expensive family run: a sample that changes with every commit, so that in time all of them do."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

DEFAULT_FRACTION = 0.08
MOST = 2
"""Of one family: some have hundreds of cases, and a run shall not take longer with each that is added."""


def score(commit: str, test_id: str) -> float:
    """A number in [0, 1) that depends on both arguments and on nothing else."""
    digest = hashlib.sha256(f"{commit}\0{test_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose(families: Mapping[str, Iterable[str]], commit: str, fraction: float = DEFAULT_FRACTION) -> set[str]:
    """The test ids to run: those with a score below `fraction`; of each family one at least and `MOST` at most."""
    chosen: set[str] = set()
    for test_ids in families.values():
        ranked = sorted((score(commit, test_id), test_id) for test_id in test_ids)[:MOST]
        chosen.update(test_id for place, (value, test_id) in enumerate(ranked) if value < fraction or place == 0)
    return chosen


def current_commit(root: Path) -> str:
    """What the sample hangs on: ``EVERSTEP_TEST_COMMIT``, else what the commit that is checked out says of the code and
    of the tests (one that changes documents alone runs the same sample), else a fixed word."""
    named = os.environ.get("EVERSTEP_TEST_COMMIT")
    if named:
        return named
    try:
        asked = ["git", "rev-parse", "HEAD:./src", "HEAD:./tests"]
        done = subprocess.run(asked, cwd=_top(root), capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "no-commit"
    return "-".join(line[:12] for line in done.stdout.split()) if done.returncode == 0 else "no-commit"


def _top(folder: Path) -> Path:
    return next((at for at in (folder, *folder.parents) if (at / "pyproject.toml").exists()), folder)
