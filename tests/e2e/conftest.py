"""Whole installations, with everything they know when a test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import Rig, installation

RIGS = pytest.StashKey[list[Rig]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if report.when == "call" and report.failed:
        for rig in item.stash.get(RIGS, []):
            report.sections.append(("what the installation knows", rig.diagnosis()))
    return report


@pytest.fixture
def make_rig(request: pytest.FixtureRequest, tmp_path: Path, leak_guard: str) -> Iterator[Callable[..., Rig]]:
    """Makes installations; all are taken down at the end, and fail the test if anything outlives them."""
    rigs = request.node.stash.setdefault(RIGS, [])
    with ExitStack() as stack:

        def make(**options: Any) -> Rig:
            rig = stack.enter_context(installation(tmp_path / f"rig{len(rigs)}", **options))
            rigs.append(rig)
            return rig

        yield make


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """An installation with its server running."""
    made = make_rig()
    made.start()
    return made
