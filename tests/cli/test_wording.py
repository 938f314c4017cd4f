from __future__ import annotations

import dataclasses

import pytest

from everstep.cli import wording
from everstep.cli.follow import live_line
from tests.cli.conftest import RUNNING


@pytest.mark.parametrize(
    ("ready", "nodes", "short", "words"),
    [
        (0, 1, "0/1", "0/1 machine"),
        (1, 1, "1/1", "1/1 machine"),
        (1, 2, "1/2", "1/2 machines"),
        (3, 2, "2/2 +1", "3 machines for 2 places"),
        (2, 1, "1/1 +1", "2 machines for 1 place"),
    ],
)
def test_machines_are_counted_against_places(ready: int, nodes: int, short: str, words: str) -> None:
    view = dataclasses.replace(RUNNING, nodes=nodes, instances={"alive": ready, "ready": ready})
    assert (wording.machines(view), wording.machines_in_words(view)) == (short, words)
    assert words in live_line(view)
