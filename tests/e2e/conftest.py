"""Whole installations, with everything they know when a test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import R, Rig, taken_down

RIGS = pytest.StashKey[list[Rig]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if report.when == "call" and report.failed:
        for rig in item.stash.get(RIGS, []):
            report.sections.append(("what the installation knows", rig.diagnosis()))
    return report


@pytest.fixture
def take_in(request: pytest.FixtureRequest, leak_guard: str) -> Iterator[Callable[[R], R]]:
    """Takes installations in: they are taken down at the end, and fail the test if anything outlives them."""
    rigs = request.node.stash.setdefault(RIGS, [])
    with ExitStack() as stack:

        def take(rig: R) -> R:
            rigs.append(stack.enter_context(taken_down(rig)))
            return rig

        yield take


@pytest.fixture
def make_rig(take_in: Callable[[Rig], Rig], tmp_path: Path) -> Callable[..., Rig]:
    """Makes installations on the cloud in a box."""
    numbers = count()
    return lambda **options: take_in(Rig(tmp_path / f"rig{next(numbers)}", **options))


@pytest.fixture
def rig(make_rig: Callable[..., Rig]) -> Rig:
    """An installation with its server running."""
    made = make_rig()
    made.start()
    return made
