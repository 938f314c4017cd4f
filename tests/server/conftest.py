from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.server import fakes


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[fakes.Rig]:
    made = fakes.rig(tmp_path)
    yield made
    made.context.close()
    await made.context.store.close()
