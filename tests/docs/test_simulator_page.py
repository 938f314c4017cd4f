"""The page about the simulator does what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import pages


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.expensive(family="pages")
def test_the_page_does_what_it_shows(repository: Path, tmp_path: Path, leak_guard: str) -> None:
    assert pages.run(repository / "docs" / "simulator.md", tmp_path) >= 4
