from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.blobs.strict_s3 import StrictS3, serving
from tests.server import fakes


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[fakes.Rig]:
    made = fakes.rig(tmp_path)
    yield made
    made.context.close()
    await made.context.store.close()


@pytest.fixture(scope="module")
def s3() -> Iterator[StrictS3]:
    """With a bucket named ``bucket``."""
    pytest.importorskip("moto", reason="moto[server,s3] is not installed")
    with serving() as started:
        started.make_bucket("bucket")
        yield started
