"""Whatever stands in a file, a reader gives rows or one line: never another error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everstep.market.advisor import read_advisor
from everstep.market.availability import read_series
from everstep.market.catalog import read_catalog
from everstep.market.lifetimes import read_lifetimes
from everstep.market.reading import read_prices
from everstep.market.source import Found
from everstep.market.throughputs import read_throughputs
from everstep.model.errors import BadInput

START = "2030-01-31T00:00:00Z"


def prices(path: Path) -> object:
    return read_prices(Found(path, path.name, 0.0))


def catalog(path: Path) -> object:
    return read_catalog(path, as_of=0.0, cloud="gcp")


TABLES: dict[str, tuple[Callable[[Path], object], list[str]]] = {
    "catalog": (
        catalog,
        [
            "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone",
            "n1-highmem-8,,,8,52,0.5,0.2,r,r-a",
            ",V100,1,,,2.5,1.0,r,r-a",
        ],
    ),
    "change log": (
        prices,
        [
            "unix_time,instance_type,accelerator,accelerator_count,region,zone,on_demand_usd_per_h,spot_usd_per_h",
            "1670005166,p9,V9,1,us-east-9,a,4,1",
        ],
    ),
    "three clouds": (
        prices,
        [
            "cloud,region,zone,instance_type,gpu,num_gpus,timestamp,price",
            f"aws,us-east-9,a,p9,v9,8,{START},4",
        ],
    ),
    "lifetimes": (read_lifetimes, ["duration_h,observed,start", f"1.5,1,{START}"]),
    "probed": (
        read_lifetimes,
        [
            "cloud,zone,gpu,num_gpus,start,preempted,lo_h,hi_h",
            f"aws,us-east-9a,v9,1,{START},1,1,2",
        ],
    ),
    "events": (read_lifetimes, ["0,add,a", "5,remove,a"]),
    "counts": (read_lifetimes, ["2030-01-31, 00:00:00, 3", "2030-01-31, 01:00:00, 2"]),
    "throughputs": (read_throughputs, ["model,gpu,steps_per_s", "a,v100,2"]),
}
DOCUMENTS: dict[str, tuple[Callable[[Path], object], Any]] = {
    "trace": (
        read_series,
        {"metadata": {"gap_seconds": 60, "capacity": 2, "start_date": "2030-01-31"}, "data": [0, 1], "prices": [1, 2]},
    ),
    "history": (
        prices,
        {"SpotPriceHistory": [{"AvailabilityZone": "a", "InstanceType": "p", "SpotPrice": "1", "Timestamp": START}]},
    ),
    "advisor": (
        read_advisor,
        {"ranges": [{"index": 0, "label": "<5%"}], "spot_advisor": {"r": {"Linux": {"p": {"s": 1, "r": 0}}}}},
    ),
}
cells = st.one_of(
    st.sampled_from(
        ["", "nan", "inf", "-1", "1e400", "1" * 400, "0x1", "1,5", '"', "\n", "\x00", "9999-12-31", "٣", "true"]
    ),
    st.text(max_size=8),
)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=3,
)
quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def tell(read: Callable[[Path], object], path: Path) -> None:
    try:
        read(path)
    except BadInput as refused:
        lines = str(refused).splitlines()
        assert len(lines) == 1, lines
        assert lines[0].startswith(str(path))


@pytest.mark.parametrize("kind", TABLES)
@quick
@given(data=st.data())
def test_a_table_with_one_strange_cell(kind: str, tmp_path: Path, data: st.DataObject) -> None:
    read, table = TABLES[kind]
    rows = [line.split(",") for line in table]
    row = data.draw(st.integers(0, len(rows) - 1))
    rows[row][data.draw(st.integers(0, len(rows[row]) - 1))] = data.draw(cells)
    path = tmp_path / "t.csv"
    path.write_text("\n".join(",".join(row) for row in rows) + "\n", encoding="utf-8", errors="replace")
    tell(read, path)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Paths to every part of a document."""
    found = [path] if path else []
    if isinstance(value, dict):
        return found + [place for key, inner in value.items() for place in places(inner, (*path, key))]
    if isinstance(value, list):
        return found + [place for index, inner in enumerate(value) for place in places(inner, (*path, index))]
    return found


@pytest.mark.parametrize("kind", DOCUMENTS)
@quick
@given(data=st.data())
def test_a_document_with_one_strange_value(kind: str, tmp_path: Path, data: st.DataObject) -> None:
    read, good = DOCUMENTS[kind]
    document = json.loads(json.dumps(good))
    where = data.draw(st.sampled_from(places(document)))
    inner = document
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = data.draw(values)
    path = tmp_path / "d.json"
    path.write_text(json.dumps(document))
    tell(read, path)
