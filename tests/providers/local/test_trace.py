from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.model.errors import BadInput
from everstep.providers.local.trace import AfterTrace, Trace, read_trace

GOOD: dict[str, Any] = {"metadata": {"gap_seconds": 60}, "data": [1, 0, 2], "prices": [0.5, 0.5, 0.75]}

traces = st.builds(
    Trace,
    gap_s=st.sampled_from([1.0, 60.0, 195.0]),
    available=st.lists(st.integers(0, 3), min_size=1, max_size=8).map(tuple),
    after=st.sampled_from(AfterTrace),
    offset_s=st.sampled_from([0.0, 60.0, 130.0]),
)


def test_a_good_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(GOOD))
    trace = read_trace(path)
    assert [trace.available_at(s) for s in (0, 59, 60, 120, 500)] == [1, 1, 0, 2, 2]
    assert [trace.price_at(s) for s in (0, 120)] == [0.5, 0.75]
    assert list(trace.changes(0, 1000)) == [60, 120]
    looped = read_trace(path, after=AfterTrace.LOOP, offset_s=60)
    assert [looped.available_at(s) for s in (0, 60, 120, 180)] == [0, 2, 1, 0]
    assert looped.next_change(0) == 60


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": [1, 2, -1], "prices": None}, "data[2]: expected a whole number, 0 or more, found -1"),
        ({"data": [1, "two", 3]}, "data[1]: expected a whole number, 0 or more, found 'two'"),
        ({"data": [1, 0.5, 3]}, "data[1]: expected a whole number, 0 or more, found 0.5"),
        ({"data": [1, True, 3]}, "data[1]: expected a whole number, 0 or more, found True"),
        ({"prices": [0.5, None, 1]}, "prices[1]: expected a price in USD per hour, 0 or more, found None"),
        ({"prices": [0.5, 0.5, float("nan")]}, "prices[2]: expected a price in USD per hour, 0 or more, found nan"),
        ({"prices": [0.5]}, "prices: has 1 values, but data has 3; give one price per tick, or none at all"),
        ({"data": []}, "data: has no ticks; give one number per tick"),
        ({"data": {"0": 1}}, "data: expected a list, found dict; give one number per tick"),
        ({"metadata": {}}, "metadata.gap_seconds: expected seconds per tick, above 0, found None"),
        ({"metadata": {"gap_seconds": 0}}, "metadata.gap_seconds: expected seconds per tick, above 0, found 0"),
        ({"metadata": None}, "metadata.gap_seconds: expected seconds per tick, above 0, found None"),
    ],
)
def test_a_malformed_file_is_named_with_key_and_index(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(BadInput) as caught:
        read_trace(path)
    assert str(caught.value) == f"{path}: {message}"


@pytest.mark.parametrize(("text", "message"), [("[1, 2]", "expected an object"), ("{", "is not JSON")])
def test_a_file_that_is_no_trace(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=message):
        read_trace(path)
    with pytest.raises(BadInput, match=r"none\.json: cannot be read: No such file"):
        read_trace(tmp_path / "none.json")


@given(traces, st.floats(0, 3000), st.floats(0, 3000))
def test_nothing_changes_between_changes(trace: Trace, start: float, length: float) -> None:
    times = [start, *trace.changes(start, start + length), start + length]
    assert times == sorted(times)
    for before, after in pairwise(times):
        middle = before + (after - before) / 2
        if after - before > 1e-6:
            assert trace.available_at(middle) == trace.available_at(before + 1e-6)


@given(traces, st.floats(0, 3000))
def test_the_next_change_is_one_and_nothing_comes_before_it(trace: Trace, at: float) -> None:
    change = trace.next_change(at)
    if change is None:
        assert {trace.available_at(at + s) for s in range(0, 5000, 50)} == {trace.available_at(at + 1e-6)}
    else:
        assert change > at
        assert trace.available_at(change) != trace.available_at(change - trace.gap_s / 2)


def test_the_real_traces_can_be_read() -> None:
    folder = Path(__file__).parents[4] / "shared" / "data" / "spot_availability"
    paths = sorted(folder.glob("*/*.json"))
    if not paths:
        pytest.skip("the data beside the project is not there")
    for path in paths:
        document = json.loads(path.read_text())
        if isinstance(document, dict) and "data" in document:
            assert len(read_trace(path).available) == len(document["data"])
