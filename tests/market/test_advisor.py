"""The Spot Advisor: the document, its extract, and what malformed entries say."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from everstep.market.advisor import Advice, read_advisor
from everstep.model.errors import BadInput

DATA = Path(__file__).parents[3] / "shared" / "data" / "catalog" / "aws-spot-advisor-2025-07" / "gpu_interruption.csv"
GOOD: dict[str, Any] = {
    "ranges": [
        {"index": 0, "label": "<5%", "dots": 0, "max": 5},
        {"index": 1, "label": "5-10%", "dots": 1, "max": 11},
        {"index": 4, "label": ">20%", "dots": 4, "max": 100},
    ],
    "instance_types": {"p9": {"emr": True, "cores": 8, "ram_gb": 61.0}},
    "spot_advisor": {"us-east-9": {"Linux": {"p9": {"s": 70, "r": 1}, "q9": {"s": -5, "r": 4}}, "Windows": {}}},
}


def written(folder: Path, document: object) -> Path:
    path = folder / "advisor.json"
    path.write_text(json.dumps(document))
    return path


def test_the_document(tmp_path: Path) -> None:
    assert read_advisor(written(tmp_path, GOOD)) == (
        Advice("us-east-9", "p9", "Linux", 0.05, 0.10, 0.70),
        Advice("us-east-9", "q9", "Linux", 0.20, 1.0, -0.05),
    )


def test_the_extract(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    header = "region,os,instance_type,interruption_range_index,interruption_range,savings_pct_over_on_demand"
    path.write_text(f"{header}\nus-east-9,Linux,p9,0,<5%,70\n")
    assert read_advisor(path) == (Advice("us-east-9", "p9", "Linux", 0.0, 0.05, 0.70),)
    path.write_text(f"{header}\nus-east-9,Linux,p9,0,often,70\n")
    with pytest.raises(BadInput) as caught:
        read_advisor(path)
    text = "interruption_range: expected a range such as '<5%' or '5-10%', found 'often'"
    assert str(caught.value) == f"{path}:2: {text}"


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("ranges",), [], "ranges: expected a list, found []"),
        (("ranges", 1), 7, "ranges[1]: expected an object, found 7"),
        (("ranges", 1, "label"), "rare", "ranges[1].label: expected a range such as '<5%' or '5-10%', found \"rare\""),
        (("spot_advisor",), None, "spot_advisor: expected an object, found nothing"),
        (("spot_advisor",), {}, "spot_advisor: has no machine types"),
        (("spot_advisor", "us-east-9"), [1], "spot_advisor.us-east-9: expected an object, found [1]"),
        (
            ("spot_advisor", "us-east-9", "Linux", "p9", "r"),
            3,
            "spot_advisor.us-east-9.Linux.p9.r: expected the index of a range, found 3",
        ),
        (
            ("spot_advisor", "us-east-9", "Linux", "p9", "r"),
            [1],
            "spot_advisor.us-east-9.Linux.p9.r: expected the index of a range, found [1]",
        ),
        (
            ("spot_advisor", "us-east-9", "Linux", "p9", "s"),
            "much",
            'spot_advisor.us-east-9.Linux.p9.s: expected percent, found "much"',
        ),
    ],
)
def test_a_bad_entry_is_refused_with_one_line(
    tmp_path: Path, keys: tuple[str | int, ...], value: object, message: str
) -> None:
    document = copy.deepcopy(GOOD)
    inner: Any = document
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    path = written(tmp_path, document)
    with pytest.raises(BadInput) as caught:
        read_advisor(path)
    assert str(caught.value) == f"{path}: {message}"


def test_the_real_extract_can_be_read() -> None:
    if not DATA.exists():
        pytest.skip("the data beside the project is not there")
    found = read_advisor(DATA)
    assert len(found) == 1428
    assert {one.interrupted_from for one in found} == {0.0, 0.05, 0.10, 0.15, 0.20}
