"""Catalogs: what is sold, in every schema, and what a malformed row says."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from everstep.market.catalog import read_catalog
from everstep.market.freshness import date_of_file
from everstep.market.gcp_monthly import read_gcp_monthly
from everstep.market.rows import instant
from everstep.model.errors import BadInput
from everstep.model.offers import Market, Offer

DATA = Path(__file__).parents[3] / "shared" / "data"
AS_OF = 1_900_000_000.0

V5 = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone"
V8 = (
    "Region,AvailabilityZone,Arch,InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Price,SpotPrice"
)
GCP = "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice"
ZONELESS = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice"


def catalog(folder: Path, header: str, *rows: str, name: str = "aws.csv") -> Path:
    path = folder / name
    path.write_text("\n".join((header, *rows)) + "\n")
    return path


def sold(path: Path, cloud: str = "") -> dict[tuple[str, str, Market], float]:
    offers = read_catalog(path, as_of=AS_OF, cloud=cloud)
    found = {(one.machine.name, one.zone, one.market): round(one.price_usd_per_h, 9) for one in offers}
    assert len(found) == len(offers), "a machine was offered twice"
    return found


def test_a_row_is_an_offer_per_market_with_source_and_time(tmp_path: Path) -> None:
    path = catalog(tmp_path, V5, 'p9.large,V900,2.0,8.0,61.0,"{""gpu_mib"": 1, ""n"": 2}",4.5,1.25,us-east-9,use9-az1')
    on_demand, spot = read_catalog(path, as_of=AS_OF, source="https://example.com/aws/vms.csv")
    assert (spot.provider, spot.region, spot.zone, spot.market) == ("aws", "us-east-9", "use9-az1", Market.SPOT)
    assert (spot.machine.name, spot.machine.accelerator, spot.machine.accelerator_count) == ("p9.large", "V900", 2)
    assert (spot.machine.cpus, spot.machine.memory_gib) == (8.0, 61.0)
    assert (spot.price_usd_per_h, spot.on_demand_usd_per_h) == (1.25, 4.5)
    assert (spot.price_as_of, spot.price_source) == (AS_OF, "https://example.com/aws/vms.csv")
    assert (on_demand.market, on_demand.price_usd_per_h) == (Market.ON_DEMAND, 4.5)


def test_the_order_of_columns_is_free_and_newer_schemas_have_more(tmp_path: Path) -> None:
    old = catalog(tmp_path, V5, "p9.large,V900,2.0,8.0,61.0,,4.5,1.25,us-east-9,use9-az1")
    new = catalog(tmp_path, V8, "us-east-9,use9-az1,arm64,p9.large,8.0,61.0,V900,2.0,,4.5,1.25", name="aws-v8.csv")
    assert sold(old) == sold(new)


def test_an_empty_spot_price_is_no_spot_offer_and_nought_is_no_price(tmp_path: Path) -> None:
    path = catalog(
        tmp_path,
        V5,
        "a,V1,1,8,61,,4.5,,r,z",
        "b,V1,1,8,61,,0.0,0.0,r,z",
        "c,V1,1,8,61,,,1.5,r,z",
        "d,V1,1,8,61,,2,0.00,r,z",
    )
    assert sold(path) == {
        ("a", "z", Market.ON_DEMAND): 4.5,
        ("c", "z", Market.SPOT): 1.5,
        ("d", "z", Market.ON_DEMAND): 2,
    }
    assert next(one for one in read_catalog(path, as_of=AS_OF) if one.machine.name == "c").on_demand_usd_per_h == 1.5


def test_a_cloud_without_zones_sells_by_region(tmp_path: Path) -> None:
    path = catalog(tmp_path, ZONELESS, "gpu_8x,V900,8.0,88.0,448.0,6.32,mars-north-1,,", name="lambda.csv")
    assert sold(path) == {("gpu_8x", "mars-north-1", Market.ON_DEMAND): 6.32}


def test_a_last_column_with_a_comma_in_it_does_no_harm(tmp_path: Path) -> None:
    header = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,Generation"
    path = catalog(tmp_path, header, "NC9,V900,1,6,112,,3.0,0.5,mars,V1,V2", name="azure.csv")
    assert sold(path)["NC9", "mars", Market.SPOT] == 0.5


def test_gcp_hosts_and_accelerators_are_added_up(tmp_path: Path) -> None:
    path = catalog(
        tmp_path,
        GCP,
        "a2-highgpu-1g,12,85,,,,r,r-a,0.7,0.3",
        "a2-highgpu-2g,24,170,,,,r,r-a,1.4,",
        "a4-highgpu-8g,224,3968,,,,r,r-a,0.0,0.0",
        "n1-highmem-8,8,52,,,,r,r-a,0.5,0.2",
        "n1-highmem-16,16,104,,,,r,r-a,1.0,0.4",
        "g2-standard-4,4,16,,,,r,r-a,0.15,0.06",
        "g2-standard-8,8,32,,,,r,r-a,0.3,0.12",
        ",,,A100,1.0,,r,r-a,2.9,1.4",
        ",,,A100,2.0,,r,r-a,5.8,2.8",
        ",,,A100,1.0,,r,r-b,2.9,1.4",
        ",,,B200,8,,r,r-a,90,30",
        ",,,V100,2,,r,r-a,5,2",
        ",,,L4,1,,r,r-a,0.5,0.25",
        ",,,tpu-v4-8,1,,r,r-a,12.88,3.68",
        ",,,tpu-v4-8,1,,r,r-a,12.88,3.68",
        name="gcp.csv",
    )
    on_demand, spot = Market.ON_DEMAND, Market.SPOT
    assert sold(path) == {
        # Without a host in its zone an accelerator is not sold, nor is such a host without its accelerators.
        ("a2-highgpu-1g", "r-a", on_demand): 3.6,
        ("a2-highgpu-1g", "r-a", spot): 1.7,
        ("a2-highgpu-2g", "r-a", on_demand): 7.2,
        # The host's price may be in that of its accelerators.
        ("a4-highgpu-8g", "r-a", on_demand): 90,
        ("a4-highgpu-8g", "r-a", spot): 30,
        ("n1-highmem-8", "r-a", on_demand): 0.5,
        ("n1-highmem-8", "r-a", spot): 0.2,
        ("n1-highmem-16", "r-a", on_demand): 1.0,
        ("n1-highmem-16", "r-a", spot): 0.4,
        ("n1-highmem-16+V100:2", "r-a", on_demand): 6.0,
        ("n1-highmem-16+V100:2", "r-a", spot): 2.4,
        ("g2-standard-4", "r-a", on_demand): 0.65,
        ("g2-standard-4", "r-a", spot): 0.31,
        ("g2-standard-8", "r-a", on_demand): 0.8,
        ("g2-standard-8", "r-a", spot): 0.37,
        ("tpu-v4-8", "r-a", on_demand): 12.88,
        ("tpu-v4-8", "r-a", spot): 3.68,
    }
    carries = next(one.machine for one in read_catalog(path, as_of=AS_OF) if one.machine.name == "a2-highgpu-2g")
    assert (carries.accelerator, carries.accelerator_count, carries.cpus, carries.memory_gib) == ("A100", 2, 24, 170)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,V1,1,8,61,,x,1,r,z", "Price: expected USD per hour, 0 or more, found 'x'"),
        ("a,V1,1,8,61,,1,-1,r,z", "SpotPrice: expected USD per hour, 0 or more, found '-1'"),
        ("a,V1,one,8,61,,1,1,r,z", "AcceleratorCount: expected a number, 0 or more, found 'one'"),
        ("a,V1,1,many,61,,1,1,r,z", "vCPUs: expected a number, 0 or more, found 'many'"),
        ("a,V1,1,8,61,,1,1,,z", "Region: the cell is empty"),
        (",,,8,61,,1,1,r,z", "InstanceType: neither a machine type nor an accelerator"),
        ("a,V1,1,8,61,,1,1,r", "expected 10 cells, found 9; quote cells that hold a comma"),
    ],
)
def test_a_bad_row_is_refused_with_one_line(tmp_path: Path, row: str, message: str) -> None:
    path = catalog(tmp_path, V5, "b,V1,1,8,61,,1,1,r,z", row)
    with pytest.raises(BadInput) as caught:
        read_catalog(path, as_of=AS_OF)
    assert str(caught.value) == f"{path}:3: {message}"


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = catalog(tmp_path, V5.replace("SpotPrice", "Spot"), "a,V1,1,8,61,,1,1,r,z")
    with pytest.raises(BadInput, match=r"aws\.csv:1: SpotPrice: the column is missing; the file has InstanceType, "):
        read_catalog(path, as_of=AS_OF)


def test_whose_catalog_it_is_must_be_known(tmp_path: Path) -> None:
    path = catalog(tmp_path, V5, "a,V1,1,8,61,,1,1,r,z", name="vms.csv")
    with pytest.raises(BadInput, match="nothing tells whose catalog this is; name the cloud"):
        read_catalog(path, as_of=AS_OF)
    assert {key[0] for key in sold(path, cloud="aws")} == {"a"}
    (tmp_path / "oci").mkdir()
    inside = catalog(tmp_path / "oci", V5, "a,V1,1,8,61,,1,1,r,z", name="vms.csv")
    assert {one.provider for one in read_catalog(inside, as_of=AS_OF)} == {"oci"}


def _real(folder: str) -> list[Path]:
    paths = sorted((DATA / "catalog" / folder).glob("*_vms.csv"))
    if not paths:
        pytest.skip("the data beside the project is not there")
    return paths


@pytest.mark.parametrize("folder", ["skypilot-v5-2024-06-13", "anycloud-2026-05-20"])
def test_the_real_catalogs_can_be_read(folder: str) -> None:
    for path in _real(folder):
        offers = read_catalog(path, as_of=date_of_file(path))
        assert {one.price_as_of for one in offers} == {instant(folder[-10:])}
        assert all(one.price_usd_per_h > 0 for one in offers)
        if path.name.startswith("aws"):
            with path.open() as file:
                priced = sum(bool(row["Price"]) + bool(row["SpotPrice"]) for row in csv.DictReader(file))
            assert len(offers) == priced


def test_gcp_sums_equal_the_published_price_of_the_whole_machine() -> None:
    path = _real("anycloud-2026-05-20")[1]
    assert path.name == "gcp_gpu_vms.csv"
    machines = ("a2-highgpu-1g", "a2-highgpu-8g", "g2-standard-4")
    found: dict[str, Offer] = {}
    for one in read_catalog(path, as_of=AS_OF):
        if one.region == "us-central1" and one.market is Market.SPOT:
            found[one.machine.name] = one
    monthly = read_gcp_monthly(DATA / "spot_prices" / "gcp_spot_ondemand_monthly_2023_2026.csv.gz")
    whole = {one.place.machine_type: one for one in monthly if one.place.region == "us-central1"}
    for name in machines:
        # The month before the catalog's: list prices had not moved, A100 spot prices had not either.
        assert found[name].on_demand_usd_per_h == pytest.approx(whole[name].on_demand(instant("2026-05-20")), rel=1e-4)
    assert found["a2-highgpu-1g"].price_usd_per_h == pytest.approx(whole["a2-highgpu-1g"].spot(instant("2026-05-20")))
