"""Availability traces: what is read, and every way in which a file is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everstep.market.availability import read_folder, read_series, shared_clock
from everstep.model.errors import BadInput

DATA = Path(__file__).parents[3] / "shared" / "data" / "spot_availability"

METADATA: dict[str, Any] = {
    "gap_seconds": 300,
    "cloud": "aws",
    "region": "us-east-9",
    "zone": "us-east-9a",
    "instance_type": "p3.2xlarge",
    "accelerator": "V100",
    "capacity": 4,
    "on_demand_usd_per_h": 3.06,
    "start_time": "2030-01-31T18:00:00+01:00",
    "kind": "availability probe",
}


def written(folder: Path, name: str = "a.json", /, *, drop: str = "", **changes: Any) -> Path:
    """A good trace with some keys of metadata or of the document changed; ``drop`` takes one away."""
    document: dict[str, Any] = {"metadata": dict(METADATA), "data": [0, 4, 2, 4], "prices": [1.0, 1.5, 1.25, 1.0]}
    for key, value in changes.items():
        (document if key in document else document["metadata"])[key] = value
    document.pop(drop, None)
    document.get("metadata", {}).pop(drop, None)
    path = folder / name
    path.write_text(json.dumps(document))
    return path


def refused(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        read_series(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_trace_is_read_whole(tmp_path: Path) -> None:
    path = written(tmp_path)
    series = read_series(path)
    assert (series.file, series.zone, series.region, series.cloud) == (str(path), "us-east-9a", "us-east-9", "aws")
    assert (series.machine_type, series.accelerator, series.kind) == ("p3.2xlarge", "V100", "availability probe")
    assert (series.gap_s, series.capacity, series.ticks, series.hours) == (300.0, 4, 4, 1200 / 3600)
    assert series.start == 1_896_109_200.0
    assert series.counts.dtype == np.int64
    assert series.counts.tolist() == [0, 4, 2, 4]
    assert series.prices is not None
    assert series.prices.tolist() == [1.0, 1.5, 1.25, 1.0]
    assert (series.on_demand_usd_per_h, series.spot_usd_per_h) == (3.06, None)


def test_positive_is_available_and_a_gang_needs_all_its_machines(tmp_path: Path) -> None:
    series = read_series(written(tmp_path))
    assert series.up().tolist() == [False, True, True, True]
    assert series.up(4).tolist() == [False, True, False, True]


def test_nobody_can_change_what_was_read(tmp_path: Path) -> None:
    series = read_series(written(tmp_path))
    with pytest.raises(ValueError, match="read-only"):
        series.counts[0] = 1


def test_only_the_gap_and_the_data_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "zone-b.json"
    path.write_text('{"metadata": {"gap_seconds": 60}, "data": [0, 3]}')
    series = read_series(path)
    assert (series.zone, series.region, series.machine_type, series.capacity) == ("zone-b", "", "", 3)
    assert (series.start, series.prices, series.on_demand_usd_per_h) == (None, None, None)


def test_a_time_without_zone_is_utc(tmp_path: Path) -> None:
    assert read_series(written(tmp_path, start_time="2030-01-31 17:00:00")).start == 1_896_109_200.0
    path = written(tmp_path, drop="start_time", start_date="2030-01-31")
    assert read_series(path).start == 1_896_048_000.0


def test_the_price_of_a_larger_machine_is_shared_out(tmp_path: Path) -> None:
    prices = {"on_demand_usd_per_h_a3_highgpu_8g": 80.0, "spot_usd_per_h_a3_highgpu_8g": 16.0}
    path = written(tmp_path, drop="on_demand_usd_per_h", instance_type="a3-highgpu-2g", **prices)
    series = read_series(path)
    assert (series.on_demand_usd_per_h, series.spot_usd_per_h) == (20.0, 4.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": []}, ": data: has no ticks; give one number per tick"),
        ({"data": None}, ": data: expected a list, found nothing; give one number per tick"),
        ({"data": "1011"}, ': data: expected a list, found "1011"; give one number per tick'),
        ({"data": [1, None, 1, 1]}, ":1: data[1]: a gap: this tick has no value; fill it or cut the trace there"),
        ({"data": [1, 1, -1, 1]}, ":1: data[2]: expected a whole number of machines, 0 or more, found -1"),
        ({"data": [1, 1, 1.5, 1]}, ":1: data[2]: expected a whole number of machines, 0 or more, found 1.5"),
        ({"data": [1, True, 1, 1]}, ":1: data[1]: expected a whole number of machines, 0 or more, found true"),
        ({"data": [1, 1, 1, float("nan")]}, ":1: data[3]: expected a whole number of machines, 0 or more, found NaN"),
        ({"data": [1, "up", 1, 1]}, ':1: data[1]: expected a whole number of machines, 0 or more, found "up"'),
        (
            {"data": [1, 10**400, 1, 1]},
            f":1: data[1]: expected a whole number of machines, 0 or more, found 1{'0' * 36}...",
        ),
        ({"data": [1, 1e300, 1, 1]}, ":1: data[1]: expected a whole number of machines, 0 or more, found 1e+300"),
        ({"data": [1, 5, 1, 1]}, ":1: data[1]: has more machines than the capacity of 4 that was asked for"),
        ({"prices": [1.0]}, ": prices: has 1 values, but data has 4; give one price per tick, or none at all"),
        ({"prices": [1, 1, -0.5, 1]}, ":1: prices[2]: expected a price in USD per hour, 0 or more, found -0.5"),
        ({"prices": [1, 1, 1, None]}, ":1: prices[3]: a gap: this tick has no value; fill it or cut the trace there"),
        ({"gap_seconds": 0}, ": metadata.gap_seconds: expected seconds per tick, 0.001 or more, found 0"),
        ({"gap_seconds": 1e-9}, ": metadata.gap_seconds: expected seconds per tick, 0.001 or more, found 1e-09"),
        ({"gap_seconds": "5m"}, ': metadata.gap_seconds: expected seconds per tick, 0.001 or more, found "5m"'),
        ({"drop": "gap_seconds"}, ": metadata.gap_seconds: expected seconds per tick, 0.001 or more, found nothing"),
        ({"drop": "metadata"}, ": metadata: expected an object, found nothing; give gap_seconds in it"),
        ({"capacity": 0}, ": metadata.capacity: expected a whole number, 1 or more, found 0"),
        ({"on_demand_usd_per_h": -1}, ": metadata.on_demand_usd_per_h: expected USD per hour, 0 or more, found -1"),
        (
            {"start_time": "noon"},
            ': metadata.start_time: expected a time such as 2030-01-31T18:00:00+00:00, found "noon"',
        ),
        ({"zone": 7}, ": metadata.zone: expected text, found 7"),
    ],
)
def test_a_bad_trace_is_refused_with_one_line(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = written(tmp_path, **changes)
    assert refused(path) == f"{path}{message}"


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    absent, broken, other, binary = (tmp_path / name for name in ("absent", "broken", "other", "binary"))
    broken.write_text('{"metadata": {},\n "data": [1, 2,,]}')
    other.write_text("[1, 2]")
    binary.write_bytes(b"\xff\xfe\x00")
    for text in ("1" * 5000, "[" * 100_000):
        deep = tmp_path / "deep"
        deep.write_text(text)
        assert refused(deep) == f"{deep}: is not usable JSON: a number or a nesting is too long"
    assert refused(absent) == f"{absent}: cannot be read: no such file or directory; check the path"
    assert refused(broken) == f"{broken}:2: is not JSON: expecting value (column 16); write it again"
    assert refused(other) == f"{other}: expected an object, found [1, 2]"
    assert refused(binary) == f"{binary}: is not UTF-8 text; write it again"


def test_a_folder_is_read_by_name(tmp_path: Path) -> None:
    written(tmp_path, "b.json", zone="b")
    written(tmp_path, "a.json", zone="a", data=[1, 1], prices=None)
    both = read_folder(tmp_path)
    assert [series.zone for series in both] == ["a", "b"]
    assert shared_clock(both) == 2


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"has no traces \(\*\.json\)"):
        read_folder(tmp_path)
    with pytest.raises(BadInput, match="is no folder"):
        read_folder(tmp_path / "absent")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gap_seconds": 60}, "metadata.gap_seconds: ticks of 60 s, but {a} has ticks of 300 s"),
        (
            {"start_time": "2030-01-31T18:05:00+01:00"},
            "metadata.start_time: starts at 2030-01-31T17:05:00+00:00, but {a} starts at 2030-01-31T17:00:00+00:00",
        ),
        (
            {"start_time": None},
            "metadata.start_time: starts at an unknown time, but {a} starts at 2030-01-31T17:00:00+00:00",
        ),
    ],
)
def test_unequal_clocks_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    a, b = written(tmp_path, "a.json"), written(tmp_path, "b.json", **changes)
    with pytest.raises(BadInput) as caught:
        shared_clock(read_folder(tmp_path))
    assert str(caught.value) == f"{b}: {message.format(a=a)}; zones of one job must share the clock"


def test_the_real_traces_can_be_read() -> None:
    folders = sorted({path.parent for path in DATA.glob("*/*.json")})
    if not folders:
        pytest.skip("the data beside the project is not there")
    for folder in folders:
        for series in read_folder(folder):
            document = json.loads(Path(series.file).read_text())
            assert series.counts.tolist() == document["data"]
            assert series.prices is None or series.prices.tolist() == document["prices"]
            assert series.on_demand_usd_per_h is not None
            assert series.start is not None
    hopper = read_series(DATA / "gcp-h100x1-2025-10" / "us-central1-a.json")
    assert hopper.on_demand_usd_per_h == pytest.approx(11.06, abs=2.0)
