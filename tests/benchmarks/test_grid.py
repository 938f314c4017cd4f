"""The benchmark of grids runs what it says, and its loops agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import grid
from everstep.sim.reference.grid import check
from everstep.sim.reference.rows import read_grid


def test_it_times_the_command_and_both_loops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    traces, rows = tmp_path, tmp_path / "rows.csv"
    grid._make(traces, rows)
    lines = rows.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + 3084
    check(read_grid(rows), traces)
    few = tmp_path / "few.csv"
    few.write_text("\n".join([lines[0], *lines[1:13], ""]), encoding="utf-8")
    assert grid.main(["--traces", str(traces), "--rows", str(few), "--runs", "1"]) == 0
    results = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(results) == 1 + 4 * 4
    assert results[0]["reached"]
    for result in results[1:]:
        assert result["runs"] == 3
        assert result["decisions"] < result["ticks"] / 2
