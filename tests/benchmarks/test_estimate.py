"""The calibration of estimates: windows are cut and judged as stated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.estimate import _calibration


def test_windows_that_always_have_spot_are_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"metadata": {"gap_seconds": 600, "zone": "a"}, "data": [1] * 6 * 200}
    (tmp_path / "a.json").write_text(json.dumps(document))
    made, every = _calibration(tmp_path, "uniform_progress", 20, 60.0)
    # 72 h are seen, a window takes 60 h: two of them fit, at 72 h and 132 h.
    assert (made["windows"], every["windows"]) == (2, 2)
    assert every["median"] == 1.0
    assert every["reached"] is False, "too wide is not calibrated either"
    assert len(capsys.readouterr().out.splitlines()) == 2
