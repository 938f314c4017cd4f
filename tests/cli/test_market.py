"""``everstep prices``, ``everstep offers --catalog`` and ``everstep sim cheapest``."""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from everstep.cli import prices as prices_command
from everstep.cli.pricepicture import stretches, ticks
from everstep.market.prices import Gathering, Place
from everstep.market.rows import instant
from tests.cli.conftest import Cli, FakeClient

NOW = instant("2030-03-03")
HISTORY = "cloud,region,zone,instance_type,gpu,num_gpus,timestamp,price"
CATALOG = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone"


@pytest.fixture(autouse=True)
def today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: NOW)


@pytest.fixture
def history(tmp_path: Path) -> Path:
    path = tmp_path / "history.csv"
    rows = (
        "aws,us-east-9,us-east-9a,p9,v900,8,2030-01-31,4",
        "aws,us-east-9,us-east-9a,p9,v900,8,2030-02-01,2",
        "aws,us-east-9,us-east-9b,p9,v900,8,2030-01-31,3",
        "azure,mars,mars,NC9,k90,1,2030-01-31,1",
    )
    path.write_text("\n".join((HISTORY, *rows)) + "\n")
    return path


@pytest.fixture
def catalog(tmp_path: Path) -> Path:
    path = tmp_path / "aws.csv"
    rows = ("p9,V900,8,96,768,9.5,2.5,us-east-9,use9-az1", "k9,K90,1,8,61,1.5,,us-east-9,use9-az2")
    path.write_text("\n".join((CATALOG, *rows)) + "\n")
    os.utime(path, (NOW - 31 * 86_400,) * 2)
    return path


def test_a_catalog_is_listed_cheapest_first_with_its_age(cli: Cli, catalog: Path) -> None:
    done = cli("offers", "--catalog", str(catalog))
    assert done.code == 0
    title, *lines = done.out.splitlines()
    assert title.split()[-2:] == ["AS", "OF"]
    assert [line.split()[:4] for line in lines] == [
        ["aws", "use9-az2", "k9", "K90:1"],
        ["aws", "use9-az1", "p9", "V900:8"],
        ["aws", "use9-az1", "p9", "V900:8"],
    ]
    assert all(line.endswith("31 d old") for line in lines)
    assert done.err == f"prices: {catalog}, 31 d old\n"


def test_a_catalog_has_the_filters_and_forms_of_the_other_offers(cli: Cli, catalog: Path, client: FakeClient) -> None:
    found = json.loads(cli("offers", "--catalog", catalog.as_uri(), "--gpu", "v900", "-o", "json").out)
    assert [(one["market"], one["price_usd_per_h"]) for one in found] == [("spot", 2.5), ("on_demand", 9.5)]
    assert {(one["source"], one["as_of"], one["available"]) for one in found} == {
        (catalog.as_uri(), NOW - 31 * 86_400, None)
    }
    assert yaml.safe_load(cli("offers", "--catalog", catalog.as_uri(), "--gpu", "V900", "-o", "yaml").out) == found
    assert cli("offers", "--catalog", str(catalog), "--gpu", "X").out == "nobody sells a machine with X\n"
    other = json.loads(cli("offers", "--catalog", str(catalog), "--cloud", "oci", "-o", "json").out)
    assert {one["provider"] for one in other} == {"oci"}
    assert client.called("offers") == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--catalog", "absent.csv"), "absent.csv: cannot be read: no such file or directory; check the path"),
        (
            ("--catalog", "aws.csv", "--free"),
            "everstep offers: --free: a catalog does not say what has capacity; leave one of the two out",
        ),
        (("--cloud", "aws"), "everstep offers: --cloud: goes with --catalog; leave it out"),
    ],
)
def test_bad_words_of_offers_are_one_line(cli: Cli, words: tuple[str, ...], line: str) -> None:
    done = cli("offers", *words)
    assert (done.code, done.out, done.err) == (2, "", f"{line}\n")


def test_prices_are_shown_by_zone_cheapest_first(cli: Cli, history: Path) -> None:
    done = cli("prices", "show", str(history), "--type", "P9")
    assert (done.code, done.err) == (0, "")
    _, first, second = (line.split() for line in done.out.splitlines())
    assert first[:7] == ["us-east-9a", "p9", "V900:8", "$2.00/h", "$2.00/h", "$4.00/h", "$4.00/h"]
    assert second[:4] == ["us-east-9b", "p9", "V900:8", "$3.00/h"]
    assert (first[-3:], second[-3:]) == (["30", "d", "old"], ["31", "d", "old"])
    assert "history.csv" in first


def test_prices_as_json_have_every_point_on_demand(cli: Cli, history: Path) -> None:
    words = ("prices", "show", str(history), "--zone", "us-east-9a", "-o", "json")
    (row,) = json.loads(cli(*words).out)
    assert (row["source"], row["changes"], row["points"]) == (str(history), 1, [])
    (row,) = json.loads(cli(*words, "--points").out)
    assert row["points"] == [[instant("2030-01-31"), 4.0, None], [instant("2030-02-01"), 2.0, None]]
    (row,) = json.loads(cli(*words, "--since", "2030-02-01").out)
    assert (row["since"], row["highest_usd_per_h"]) == (instant("2030-02-01"), 2.0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--gpu", "x9"), "everstep prices: none of 3 places has prices of x9; leave a filter out"),
        (("--until", "2029-01-01"), "everstep prices: none of 3 places has prices of this time; leave a filter out"),
        (
            ("--since", "2030-02-02", "--until", "2030-02-01"),
            "everstep prices: --until: 2030-02-01 lies before --since 2030-02-02",
        ),
        (("--since", "noon"), "everstep prices: --since: expected a time such as 2030-01-31T18:00Z, found 'noon'"),
    ],
)
def test_what_is_not_there_is_one_line(cli: Cli, history: Path, words: tuple[str, ...], line: str) -> None:
    done = cli("prices", "show", str(history), *words)
    assert (done.code, done.out, done.err) == (2, "", f"{line}\n")


def test_the_picture_is_one_page_that_needs_nothing_else(cli: Cli, history: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "p.html"
    done = cli("prices", "plot", str(history), "--out", str(out))
    assert (done.code, done.out) == (0, f"{out}\n{tmp_path / 'p.png'}\n")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    page = out.read_text()
    assert "<script" not in page
    assert "<link" not in page
    assert "30 d old" in page
    assert str(history) in page
    drawn = ElementTree.fromstring(page[page.index("<svg") : page.index("</svg>") + 6])
    lines = [one for one in drawn.iter("{http://www.w3.org/2000/svg}polyline") if one.get("stroke") != "#e5e7eb"]
    # One per place; the first falls from 4 to 2 and is lower at its end.
    assert len(lines) == 3
    heights = [float(point.split(",")[1]) for point in str(lines[0].get("points")).split()]
    assert heights[0] < heights[-1]


def test_places_without_any_spot_price_make_an_empty_picture(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    listed = tmp_path / "list.csv"
    listed.write_text("region,instance_type,on_demand_usd_per_h\nus-east-9,p9,9.5\n")
    done = cli("prices", "plot", str(listed), "--out", str(tmp_path / "p.html"))
    assert (done.code, done.err) == (0, "")


def test_without_matplotlib_there_is_no_png_and_that_is_said(
    cli: Cli, history: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    out = tmp_path / "p.html"
    done = cli("prices", "plot", str(history), "--out", str(out))
    assert done.out == f"{out}\nno PNG: matplotlib is missing; pip install 'everstep[plot]'\n"
    assert out.exists()


def test_too_many_lines_are_refused(cli: Cli, history: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(prices_command, "MOST_LINES", 2)
    done = cli("prices", "plot", str(history), "--out", str(tmp_path / "p.html"))
    assert done.err == (
        "everstep prices plot: 3 places are too many for one picture (2 at most); "
        "narrow them with --type, --gpu, --region or --zone\n"
    )
    assert cli("prices", "plot", str(history), "--out", "p.pdf").err.startswith("everstep prices plot: --out: expected")
    assert not (tmp_path / "p.html").exists()


def test_a_line_breaks_where_nothing_was_sold() -> None:
    found = Gathering("")
    for at, price in ((0, 1.0), (1, 2.0), (2, float("nan")), (5, 3.0)):
        found.add(Place("aws", "r", "z", "t"), at, price)
    (series,) = found.series()
    assert list(stretches(series, 9)) == [[(0, 1), (1, 1), (1, 2), (2, 2)], [(5, 3), (9, 3)]]


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (98.0, [0, 20, 40, 60, 80]),
        (0.011, [0, 0.0025, 0.005, 0.0075, 0.01]),
    ],
)
def test_ticks_are_round(top: float, expected: list[float]) -> None:
    assert ticks(top) == expected


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., tuple[str, ...]]:
    """Words of ``everstep sim cheapest`` over a small world."""
    prices, rates = tmp_path / "prices.csv", tmp_path / "rates.csv"
    rows = (
        "aws,us-east-9,us-east-9a,p3.2xlarge,v100,1,2030-01-01,1",
        "aws,us-east-9,us-east-9a,p2.xlarge,k80,1,2030-01-01,0.9",
        "azure,mars,mars,NC9,v100,1,2030-02-01,0.5",
    )
    prices.write_text("\n".join((HISTORY, *rows)) + "\n")
    rates.write_text("model,gpu,steps_per_s\nnet,v100,2\nnet,k80,1\nodd,k80,1\n")

    def words(*more: str) -> tuple[str, ...]:
        return ("sim", "cheapest", "--prices", str(prices), "--throughputs", str(rates), "--region", "us-east-9", *more)

    return words


def test_fixed_choices_stand_beside_choosing_again(
    cli: Cli, study: Callable[..., tuple[str, ...]], tmp_path: Path
) -> None:
    out = tmp_path / "out.csv"
    words = study("--start", "2030-01-31T12:00", "--starts", "1", "--days", "1", "--model", "net", "-o", "json")
    done = cli(*words, "--out", str(out))
    assert (done.code, done.err) == (0, "")
    rows = {row["strategy"]: row for row in json.loads(done.out)}
    assert rows["baseline"]["mean_cost_usd"] == pytest.approx(24.0)
    assert rows["multi_cloud"]["mean_cost_usd"] == pytest.approx(24.0)
    # From noon to midnight at 1, then twelve hours at 0.5, with ten minutes more where a move costs them.
    assert (rows["dyn_6h"]["mean_cost_usd"], rows["dyn_6h"]["switches"]) == (pytest.approx(18.0), 1.0)
    assert rows["dyn_1h_10min_h5"]["mean_cost_usd"] == pytest.approx(18.0 + 0.5 / 6)
    assert rows["dyn_1d"]["switches"] == 0
    with out.open() as file:
        written = list(csv.DictReader(file))
    assert [row["strategy"] for row in written] == list(rows)
    assert float(written[0]["mean_cost"]) == pytest.approx(24.0)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (("--start", "noon"), "--start: expected a time such as 2030-01-31T18:00Z, found 'noon'"),
        (("--start", "1971-01-01"), "--start: {prices} has no spot prices at 1971-01-01"),
        (("--start", "2030-02-01", "--region", "mars"), "--region: {prices} has no p3.2xlarge in mars"),
        (("--start", "2030-02-01", "--days", "0"), "--days: must be above 0, found 0"),
        (("--start", "2030-02-01", "--model", "nets"), "--model: {rates} has no 'nets'; did you mean 'net'?"),
        (
            ("--start", "2030-02-01", "--model", "odd"),
            "--throughputs: {rates} has no v100 for 'odd': the work is measured on one",
        ),
    ],
)
def test_bad_words_of_the_study_are_one_line(
    cli: Cli, study: Callable[..., tuple[str, ...]], tmp_path: Path, more: tuple[str, ...], line: str
) -> None:
    done = cli(*study(*(() if "--model" in more else ("--model", "net")), *more))
    told = line.format(prices=tmp_path / "prices.csv", rates=tmp_path / "rates.csv")
    assert (done.code, done.out, done.err) == (2, "", f"everstep sim cheapest: {told}\n")
