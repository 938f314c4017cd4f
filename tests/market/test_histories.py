"""Price histories: each format, and what its malformed entries say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everstep.market.aws_history import read_aws_history
from everstep.market.freshness import date_of_file
from everstep.market.prices import Gathering, Place, PriceSeries
from everstep.market.reading import read_prices
from everstep.market.rows import instant
from everstep.market.source import Found
from everstep.model.errors import BadInput

DATA = Path(__file__).parents[3] / "shared" / "data"
DAY_S = 86_400.0
ENTRY = {
    "AvailabilityZone": "us-east-9a",
    "InstanceType": "p9.large",
    "ProductDescription": "Linux/UNIX",
    "SpotPrice": "0.750000",
    "Timestamp": "2030-01-31T00:00:00+00:00",
}


def read(path: Path, as_of: float = 0.0) -> list[PriceSeries]:
    return list(read_prices(Found(path, f"file://{path}", as_of)))


def written(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def refusal(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(str(path))


def history(folder: Path, *entries: dict[str, Any]) -> Path:
    path = folder / "history.json"
    path.write_text(json.dumps({"SpotPriceHistory": list(entries)}, indent=1))
    return path


def test_aws_history_is_put_in_order_and_split_by_zone_and_type(tmp_path: Path) -> None:
    path = history(
        tmp_path,
        {**ENTRY, "Timestamp": "2030-02-02T00:00:00.000Z", "SpotPrice": "0.9"},
        ENTRY,
        {**ENTRY, "AvailabilityZone": "us-east-9b", "ProductDescription": "Linux/UNIX (Amazon VPC)"},
        {**ENTRY, "ProductDescription": "Windows", "SpotPrice": "9"},
    )
    a, b = read(path)
    assert a.place == Place("aws", "us-east-9", "us-east-9a", "p9.large")
    assert (b.place.zone, b.source) == ("us-east-9b", f"file://{path}")
    assert a.at.tolist() == [1_896_048_000.0, 1_896_048_000.0 + 2 * DAY_S]
    assert a.spot_usd_per_h.tolist() == [0.75, 0.9]
    assert (a.spot(1_896_047_999.0), a.spot(1_896_048_000.0), a.spot(2e9)) == (None, 0.75, 0.9)
    assert a.on_demand(2e9) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"SpotPrice": "free"}, ':14: SpotPriceHistory[1].SpotPrice: expected USD per hour, 0 or more, found "free"'),
        ({"SpotPrice": -1}, ":14: SpotPriceHistory[1].SpotPrice: expected USD per hour, 0 or more, found -1"),
        ({"SpotPrice": None}, ":14: SpotPriceHistory[1].SpotPrice: expected USD per hour, 0 or more, found nothing"),
        ({"InstanceType": ""}, ':12: SpotPriceHistory[1].InstanceType: expected text, found ""'),
        (
            {"Timestamp": "noon"},
            ':15: SpotPriceHistory[1].Timestamp: expected a time such as 2030-01-31T18:00:00Z, found "noon"',
        ),
    ],
)
def test_a_bad_entry_names_its_line(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    assert refusal(history(tmp_path, ENTRY, {**ENTRY, **change})) == message


def test_a_history_without_linux_says_what_it_has(tmp_path: Path) -> None:
    path = history(tmp_path, {**ENTRY, "ProductDescription": "Windows"})
    assert refusal(path) == ": SpotPriceHistory: has no prices of Linux/UNIX, but of Windows"
    assert read_aws_history(path, product="Windows")[0].spot(2e9) == 0.75


def test_what_is_no_history_is_refused(tmp_path: Path) -> None:
    for text, message in (
        ('{"SpotPriceHistory": {}}', ": SpotPriceHistory: expected a list, found {}"),
        ('{"SpotPriceHistory": [7]}', ":1: SpotPriceHistory[0]: expected an object, found 7"),
        ('{"SpotPriceHistory": []}', ": SpotPriceHistory: has no prices of Linux/UNIX"),
        ("", ": is empty"),
        ("[]", ": expected an object, found []"),
        ('{"a":\n1,}', ":2: is not JSON: expecting property name enclosed in double quotes (column 3); write it again"),
    ):
        assert refusal(written(tmp_path / "h.json", text) if text else _empty(tmp_path)) == message


def _empty(folder: Path) -> Path:
    (folder / "h.json").write_text("")
    return folder / "h.json"


def test_a_change_log_tells_when_a_machine_left_the_market(tmp_path: Path) -> None:
    path = written(
        tmp_path / "log.csv",
        "date,instance_type,accelerator,accelerator_count,region,zone,on_demand_usd_per_h,spot_usd_per_h",
        "2030-01-31,p9.large,V900,2.0,us-east-9,use9-az1,4.5,1.5",
        "2030-02-02,p9.large,V900,2.0,us-east-9,use9-az1,,",
        "2030-02-01,,V900,1,us-central9,us-central9-a,2,0.5",
    )
    log, bare = read(path)
    assert log.place == Place("aws", "us-east-9", "use9-az1", "p9.large", "V900", 2)
    assert bare.place == Place("gcp", "us-central9", "us-central9-a", "", "V900", 1)
    start = instant("2030-01-31")
    assert [log.spot(start + day * DAY_S) for day in (0, 1, 2)] == [1.5, 1.5, None]
    assert [log.on_demand(start + day * DAY_S) for day in (0, 2)] == [4.5, None]


def test_gcp_monthly_prices_are_those_of_a_region(tmp_path: Path) -> None:
    path = written(
        tmp_path / "m.csv",
        "date,machine_type,region,on_demand_hour,spot_hour",
        "2030-02-01,a9,us-central9,4,1.5",
        "2030-01-01,a9,us-central9,4,1",
    )
    (series,) = read(path)
    assert series.place == Place("gcp", "us-central9", "", "a9")
    assert series.spot_usd_per_h.tolist() == [1.0, 1.5]


def test_prices_of_three_clouds(tmp_path: Path) -> None:
    path = written(
        tmp_path / "p.csv",
        "cloud,region,zone,instance_type,gpu,num_gpus,timestamp,price",
        "aws,us-east-9,us-east-9a,p9,v900,8,2030-01-31T00:00:00Z,4",
        "azure,mars,mars,NC9,v900,1,2030-01-31T00:00:00Z,0.4",
    )
    aws, azure = read(path)
    assert aws.place == Place("aws", "us-east-9", "us-east-9a", "p9", "V900", 8)
    assert azure.spot(2e9) == 0.4


def test_list_prices_have_the_time_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path / "azure.csv", "region,instance_type,on_demand_usd_per_h", "mars,NC9,3")
    (series,) = read(path, as_of=5.0)
    assert (series.place.cloud, series.as_of, series.on_demand(5.0), series.spot(5.0)) == ("azure", 5.0, 3.0, None)


def test_a_catalog_is_a_history_of_one_instant(tmp_path: Path) -> None:
    path = written(
        tmp_path / "aws.csv",
        "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone",
        "p9,V900,1,8,61,,4.5,,us-east-9,use9-az1",
    )
    (series,) = read(path, as_of=7.0)
    assert (series.on_demand(7.0), series.spot(7.0), series.as_of) == (4.5, None, 7.0)


def test_a_trace_with_prices_is_a_history_too(tmp_path: Path) -> None:
    document = {
        "metadata": {
            "gap_seconds": 60,
            "cloud": "aws",
            "zone": "z",
            "start_time": "2030-01-31",
            "on_demand_usd_per_h": 3,
        },
        "data": [0, 1, 1, 1],
        "prices": [1.0, 1.0, 2.0, 2.0],
    }
    path = tmp_path / "t.json"
    path.write_text(json.dumps(document))
    (series,) = read(path)
    start = instant("2030-01-31")
    assert series.at.tolist() == [start, start + 120, start + 180]
    assert series.spot_usd_per_h.tolist() == [1.0, 2.0, 2.0]
    assert series.on_demand(start) == 3.0
    del document["prices"]
    path.write_text(json.dumps(document))
    assert refusal(path) == ": prices: this trace has no prices, or no time at which it starts"


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (
            "unix_time,instance_type,accelerator,accelerator_count,region,zone,on_demand_usd_per_h,spot_usd_per_h",
            "now,p9,V9,1,us-east-9,a,1,1",
            ":2: unix_time: expected seconds since 1970, found 'now'",
        ),
        (
            "unix_time,instance_type,accelerator,accelerator_count,region,zone,on_demand_usd_per_h,spot_usd_per_h",
            "1670005166000,p9,V9,1,us-east-9,a,1,1",
            ":2: unix_time: expected seconds since 1970, found '1670005166000'",
        ),
        (
            "date,instance_type,accelerator,accelerator_count,region,zone,on_demand_usd_per_h,spot_usd_per_h",
            "2030-01-31,,,,us-east-9,a,1,1",
            ":2: instance_type: neither a machine type nor an accelerator",
        ),
        (
            "date,machine_type,region,on_demand_hour,spot_hour",
            "2030-13-31,a9,r,1,1",
            ":2: date: expected a time such as 2030-01-31T18:00:00Z, found '2030-13-31'",
        ),
        (
            "cloud,region,zone,instance_type,gpu,num_gpus,timestamp,price",
            "aws,r,z,p9,v9,1,2030-01-31,",
            ":2: price: expected USD per hour, 0 or more, found ''",
        ),
        (
            "region,instance_type,on_demand_usd_per_h",
            "r,t,?",
            ":2: on_demand_usd_per_h: expected USD per hour, 0 or more, found '?'",
        ),
    ],
)
def test_a_bad_row_is_refused_with_one_line(tmp_path: Path, header: str, row: str, message: str) -> None:
    assert refusal(written(tmp_path / "p.csv", header, row)) == message


def test_an_unknown_format_says_what_is_known(tmp_path: Path) -> None:
    line = refusal(written(tmp_path / "p.csv", "a,b", "1,2"))
    assert line.startswith(":1: is of no known format of prices; expected AWS spot price history (JSON), ")
    assert refusal(written(tmp_path / "p.json", "{}")).startswith(": is of no known format of prices; expected ")


def series(*points: tuple[float, float]) -> PriceSeries:
    found = Gathering("made here")
    for at, spot in points:
        found.add(Place("aws", "r", "z", "t"), at, spot)
    return found.series()[0]


def test_the_mean_weighs_prices_by_the_time_that_they_held() -> None:
    assert series((0, 1.0), (90, 11.0), (100, 3.0)).spread() == (1.0, pytest.approx((90 + 110) / 100), 11.0)
    assert series((0, 1.0), (10, math.nan), (90, 3.0), (100, 3.0)).spread() == (1.0, pytest.approx(2.0), 3.0)
    assert series((5, 2.0)).spread() == (2.0, 2.0, 2.0)
    assert series((5, math.nan)).spread() is None


def test_the_last_of_two_prices_of_one_instant_holds() -> None:
    assert series((0, 1.0), (0, 2.0)).spot(0) == 2.0


def test_a_window_begins_with_the_price_in_force() -> None:
    whole = series((0, 1.0), (10, 2.0), (20, 3.0))
    part = whole.between(15, 20)
    assert part is not None
    assert (part.at.tolist(), part.spot_usd_per_h.tolist()) == ([15, 20], [2.0, 3.0])
    assert whole.between(None, -1) is None
    assert (whole.changes(), series((0, 1.0), (1, 1.0), (2, math.nan)).changes()) == (2, 1)


@pytest.mark.slow
def test_the_real_histories_can_be_read() -> None:
    folders = ("catalog/price-history-2022-12_2024-06", "spot_prices", "dynamic_pricing", "catalog/karpenter-on-demand")
    paths = [path for folder in folders for path in sorted((DATA / folder).glob("*"))]
    tables = [path for path in paths if path.name.endswith("gz") or folders[3] in str(path)]
    if not tables:
        pytest.skip("the data beside the project is not there")
    for path in tables:
        found = read(path, date_of_file(path))
        assert found, path
        for one in found:
            assert one.place.cloud in ("aws", "gcp", "azure"), path
            assert (np.diff(one.at) >= 0).all()
