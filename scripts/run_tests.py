"""Run the tests; what failed gets a second run, alone and one after the other: ``make test``.

Many tests wait for real processes, and a machine that is too busy for one of them can fail it. A test that fails alone
too is broken. One that only failed beside the others is named at the end, loudly: it has a race, which is to be mended.
More failures than `MOST` get no second run: then it is not chance.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.source_tree import REPOSITORY

WORKERS = 3
"""More than processors: many tests wait for real processes."""
MOST = 4

_FAILED = 1  # pytest's exit status for "tests ran, and some failed"


def main(arguments: Sequence[str], run: Callable[[Sequence[str]], tuple[int, list[str]]]) -> int:
    """Run pytest with `arguments`, and a few that failed once more.

    Args:
        arguments: For pytest.
        run: Runs pytest with arguments, to its exit status and the ids of the tests that failed.

    Returns:
        The exit status: of the second run if there was one.
    """
    # Tests of one group (@pytest.mark.xdist_group) share a worker, so that the heavy ones do not starve each other.
    status, failed = run(["-n", str(WORKERS), "--dist", "loadgroup", *arguments])
    if status != _FAILED or not 0 < len(failed) <= MOST:
        return status
    print(f"\n{len(failed)} failed; once more, one after the other:", *failed, sep="\n  ", flush=True)
    status, _ = run(failed)
    if status == 0:
        print("\nFAILED BESIDE OTHER TESTS, PASSED ALONE; a race, to be mended:", *failed, sep="\n  ")
    return status


def _pytest(arguments: Sequence[str]) -> tuple[int, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "failed")
        environment = {**os.environ, "EVERSTEP_TEST_FAILED": str(report)}  # tests/conftest.py writes it
        # Container images often set this. Then every worker would rewrite all tests, and each of the thousands of
        # processes that they start would compile what it imports: a fifth of the whole time.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-m", "pytest", *arguments]
        status = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
        return status, report.read_text().splitlines() if report.exists() else []


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:], _pytest))
