"""Of the corpus, `make test` runs a few scripts, chosen by the commit: a smaller share than of other families."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import sampling

HERE = Path(__file__).resolve().parent
#: Test -> share of the scripts that it runs on.
SHARES = {"test_killed_run_ends_as_the_plain_one": 0.07, "test_two_plain_runs_are_equal": 0.02}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the scripts whose turn it is not. One that is named on the command line by its id always runs."""
    if os.environ.get("EVERSTEP_TEST_ALL") == "1" or any("::" in argument for argument in config.args):
        return
    left_out: set[pytest.Item] = set()
    for test, share in SHARES.items():
        family = [item for item in items if item.path.parent == HERE and getattr(item, "originalname", "") == test]
        chosen = sampling.choose(
            {test: [item.nodeid for item in family]}, sampling.current_commit(HERE), fraction=share
        )
        left_out.update(item for item in family if item.nodeid not in chosen)
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
