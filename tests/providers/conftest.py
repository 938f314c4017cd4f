from __future__ import annotations

from pathlib import Path

import pytest

from tests import vendors


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendors.hide_real_ones(monkeypatch, tmp_path)
