"""Throughputs: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.market.throughputs import read_throughputs
from everstep.model.errors import BadInput


def test_rates_by_model_and_accelerator(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("gpu,model,steps_per_s\nK80,a,1\nv100,a,4\nv100,b,2.5\n")
    assert read_throughputs(path) == {"a": {"k80": 1.0, "v100": 4.0}, "b": {"v100": 2.5}}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,k80,fast", "steps_per_s: expected steps per second, above 0, found 'fast'"),
        ("a,k80,0", "steps_per_s: expected steps per second, above 0, found 0"),
        ("a,V100,3", "gpu: v100 is there twice for a"),
        (",k80,3", "model: the cell is empty"),
    ],
)
def test_a_bad_row_is_refused_with_one_line(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"model,gpu,steps_per_s\na,v100,1\n{row}\n")
    with pytest.raises(BadInput) as caught:
        read_throughputs(path)
    assert str(caught.value) == f"{path}:3: {message}"
