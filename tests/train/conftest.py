from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.zygote import Zygote, zygote


@pytest.fixture(scope="session")
def scripts() -> Iterator[Zygote]:
    """Starts training scripts as real processes; what is left of them at the end is killed."""
    with zygote() as started:
        yield started
