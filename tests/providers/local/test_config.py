from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from everstep.model.errors import BadInput
from everstep.model.offers import Market
from everstep.providers.local.config import _TOP, EXAMPLE_CONFIG, BoxConfig, parse_config, read_config

GOOD = """
trace_hour_s: 10
billing: {granularity_s: 1, minimum_s: 60, free_if_reclaimed_within_s: 3600}
machines:
  gpu: {cpus: 8, memory_gib: 61, accelerator: V100, prices: {on_demand: 3.06}}
zones:
  a: {region: r, spot: {trace: t.json, offset_h: 2, after_trace: loop}, on_demand: {capacity: 2}}
  here: {static: {capacity: 1}}
fail: [{zone: a, error: no_capacity, times: 2}]
"""


def parse(text: str, folder: Path = Path()) -> BoxConfig:
    return parse_config(text, where="box.yaml", folder=folder)


def test_a_good_one(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1], "prices": [1.0]}))
    config = parse(GOOD, tmp_path)
    assert config.billing.time_scale == 360
    assert config.machines["gpu"].machine.accelerator_count == 1
    spot = config.zones["a"].supply[Market.SPOT]
    assert spot.trace is not None
    assert spot.trace.offset_s == 7200
    assert config.zones["a"].supply[Market.ON_DEMAND].capacity == 2
    # A workstation sells only itself; a cloud zone that says nothing of it sells on demand without limit.
    assert set(config.zones["here"].supply) == {Market.STATIC}
    assert (
        parse(GOOD.replace(", on_demand: {capacity: 2}", ""), tmp_path).zones["a"].supply[Market.ON_DEMAND].capacity
        is None
    )
    assert config.faults[0].times == 2


def test_the_example_is_valid_and_shows_every_key(tmp_path: Path) -> None:
    trace = {"metadata": {"gap_seconds": 600}, "data": [1], "prices": [1.0]}
    (tmp_path / "us-east-1b.json").write_text(json.dumps(trace))
    config = parse(EXAMPLE_CONFIG, tmp_path)
    assert sorted(config.zones) == ["here", "us-east-1a", "us-east-1b"]
    shown = yaml.safe_load(EXAMPLE_CONFIG)
    assert set(_TOP) - set(shown) == {"agent_argv"}


def test_the_digest_covers_the_traces(tmp_path: Path) -> None:
    digests = set()
    for data in ([1], [2], [1]):
        (tmp_path / "t.json").write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": data, "prices": [1.0]}))
        digests.add(parse(GOOD, tmp_path).digest)
    assert len(digests) == 2


def test_the_default_is_this_computer() -> None:
    config = read_config(None)
    assert [list(z.supply) for z in config.zones.values()] == [[Market.STATIC]]


MACHINES = "machines: {m: {prices: {on_demand: 1}}}\n"
ZONES = "zones: {a: {spot: {capacity: 1}}}\n"
BOX = MACHINES + ZONES


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "box.yaml: expected a mapping, found nothing"),
        ("- a", "box.yaml: expected a mapping, found ['a']"),
        (MACHINES, "box.yaml: zones: is missing; give at least one zone"),
        (MACHINES + "zones: {}", "box.yaml: zones: there are no zones; give at least one zone"),
        (BOX + "boot: 3", "box.yaml: boot: unknown key; did you mean 'boot_s'?"),
        (BOX + "xyz: 3", "box.yaml: xyz: unknown key; known keys: zones, machines"),
        (BOX + "boot_s: -1", "box.yaml: boot_s: expected a number, 0 or more, found -1"),
        (BOX + "boot_s: soon", "box.yaml: boot_s: expected a number, 0 or more, found 'soon'"),
        (BOX + "notice_s: true", "box.yaml: notice_s: expected a number, 0 or more, found True"),
        (BOX + "notice_s: .nan", "box.yaml: notice_s: expected a number, 0 or more, found nan"),
        (BOX + "trace_hour_s: 0", "box.yaml: trace_hour_s: expected a number above 0, found 0"),
        (BOX + "quota: 1.5", "box.yaml: quota: expected a whole number, 0 or more, found 1.5"),
        (BOX + "trace_start: lunch", "box.yaml: trace_start: 'lunch' is not known; one of: daemon_start, first_launch"),
        (BOX + "preempt_order: newst", "box.yaml: preempt_order: 'newst' is not known; did you mean 'newest'?"),
        (BOX + "billing: {granularity: 1}", "billing.granularity: unknown key; did you mean 'granularity_s'?"),
        (BOX + "agent_argv: python", "box.yaml: agent_argv: expected a list of texts, found 'python'"),
        (
            BOX + "fail: [{error: no_capasity}]",
            "fail[0].error: 'no_capasity' is not known; did you mean 'no_capacity'?",
        ),
        (BOX + "fail: [{error: throttled, zone: b}]", "box.yaml: fail[0].zone: 'b' is not known"),
        (BOX + "fail: {error: throttled}", "box.yaml: fail: expected a list, found {'error': 'throttled'}"),
        (
            "machines: {m: {cpus: 0, prices: {on_demand: 1}}}\n" + ZONES,
            "machines.m.cpus: expected a number above 0, found 0",
        ),
        ("machines: {m: {}}\n" + ZONES, "machines.m.prices.on_demand: is missing; give the list price in USD per hour"),
        (
            "machines: {m: {prices: {on_demand: 1, spt: 1}}}\n" + ZONES,
            "machines.m.prices.spt: unknown key; did you mean 'spot'?",
        ),
        (
            MACHINES + "zones: {a: {spot: {}}}",
            "zones.a.spot: expected either 'trace' or 'capacity'; give one of the two",
        ),
        (
            MACHINES + "zones: {a: {spot: {capacity: -1}}}",
            "zones.a.spot.capacity: expected a whole number, 0 or more, found -1",
        ),
        (MACHINES + "zones: {a: {spot: {trace: 3}}}", "zones.a.spot.trace: expected a path, found 3"),
        (MACHINES + "zones: {a: {machines: [n]}}", "zones.a.machines: 'n' is not in machines; known: m"),
        (ZONES, "zones.a: has no machine types; name them under 'machines' at the top of the file"),
        (MACHINES + "zones: {a: {spot: {trace: none.json}}}", "none.json: cannot be read: No such file or directory"),
        ("zones: [\n", "box.yaml:2: is not YAML"),
    ],
)
def test_bad_input_is_one_clear_line(text: str, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(text)
    assert any(message in line for line in str(caught.value).splitlines()), str(caught.value)


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        parse(BOX + "boot_s: -1\nnotice_s: -2\nquota: x\n")
    assert [p.key for p in caught.value.problems] == ["boot_s", "notice_s", "quota"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"box\.yaml: cannot be read: No such file"):
        read_config(tmp_path / "box.yaml")
    (tmp_path / "box.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="is not a text file in UTF-8"):
        read_config(tmp_path / "box.yaml")
