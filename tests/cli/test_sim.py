"""``everstep sim``: grids over traces made here, one job told decision by decision, and what is refused."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import execute

GRID = "file,gang,task_h,deadline_h,changeover_h,start_tick_in_file,policy"
ZONES = "set,task_h,deadline_h,changeover_h,start_tick_in_file,checkpoint_gb,policy"
UP = [1, 1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1]


def run(command: str) -> int:
    return execute(command.split())


def trace(path: Path, data: list[Any], *, prices: list[Any] | None = None, **metadata: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {"gap_seconds": 1800, "zone": path.stem, "region": path.stem[:-1], "on_demand_usd_per_h": 3.0} | metadata
    document = {"metadata": about, "data": data} | ({} if prices is None else {"prices": prices})
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    trace(tmp_path / "one.json", UP)
    trace(tmp_path / "set" / "easta.json", [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0], prices=[1.0] * 12)
    trace(tmp_path / "set" / "westb.json", [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1], prices=[0.5] * 12)
    (tmp_path / "egress.csv").write_text("from_region,to_region,price_usd_per_gb\neast,west,0.1\nwest,east,0.1\n")
    return tmp_path


def table(path: Path, header: str, *rows: str) -> None:
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")


def results(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_grid_has_each_row_with_its_results(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        f"one.json,1,4,5,0.5,0,{policy}"
        for policy in ("on_demand", "greedy_spot_safety_net", "greedy", "optimal_dp", "spot_only")
    ]
    table(folder / "rows.csv", GRID + ",note", *(f"{row},n{n}" for n, row in enumerate(rows)))
    assert run("sim grid --rows rows.csv --traces . --out out.csv --workers 1") == 0
    found = results(folder / "out.csv")
    assert [row["note"] for row in found] == ["n0", "n1", "n2", "n3", "n4"]
    steady, alias, greedy, best, waiting = found
    # Nine half hours of on-demand, the first of them a changeover.
    assert (steady["cost_usd"], steady["finish_h"], steady["spot_exits"]) == ("13.7700", "4.5000", "0")
    assert {k: v for k, v in alias.items() if k not in ("policy", "note")} == {
        k: v for k, v in greedy.items() if k not in ("policy", "note")
    }
    assert float(best["cost_usd"]) <= float(greedy["cost_usd"]) < float(steady["cost_usd"])
    assert best["deadline_met"] == "true"
    assert (waiting["finish_h"], waiting["deadline_met"]) == ("", "false")
    printed = capsys.readouterr().out
    assert "reference semantics" in printed
    assert "spot_only" in printed


def test_results_do_not_depend_on_the_number_of_processes(folder: Path) -> None:
    trace(folder / "two.json", UP[::-1])
    names = ("one.json", "two.json")
    table(folder / "rows.csv", GRID, *(f"{name},1,3,5,0.2,{n},greedy" for n in (0, 1, 2) for name in names))
    for workers in (1, 2):
        out = f"out{workers}.csv"
        assert run(f"sim grid --rows rows.csv --traces . --out {out} --workers {workers}") == 0
    assert (folder / "out1.csv").read_bytes() == (folder / "out2.csv").read_bytes()


def test_one_job_over_zones_moves_and_pays_for_it(folder: Path) -> None:
    table(folder / "rows.csv", ZONES, "set,3,6,0.5,0,20,greedy", "set,3,6,0.5,0,20,optimal")
    command = "sim zones --rows rows.csv --traces . --egress egress.csv --out out.csv --workers 1"
    assert run(command) == 0
    greedy, best = results(folder / "out.csv")
    # 1.5 h in the east (1 h of work), then 2 h of work and a changeover in the west, and 20 GB on the way.
    assert (greedy["cost_usd"], greedy["moves"], greedy["egress_usd"]) == (
        f"{1.5 * 1.0 + 2.5 * 0.5 + 2:.4f}",
        "1",
        "2.0000",
    )
    # Waiting for the west costs 3.5 h there and nothing else.
    assert (best["cost_usd"], best["moves"], best["egress_usd"]) == ("1.7500", "0", "0.0000")


def test_pairs_without_a_price_of_transfer_are_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(folder / "rows.csv", ZONES, "set,3,6,0.5,0,20,greedy")
    assert run("sim zones --rows rows.csv --traces . --out out.csv --workers 1") == 0
    assert results(folder / "out.csv")[0]["egress_usd"] == "0.4000"
    text = "everstep sim zones: no price of transfer from east to west and 1 more: 0.02 USD/GB is taken\n"
    assert capsys.readouterr().err == text


def test_one_job_is_told_decision_by_decision(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "sim job --trace one.json --task-h 3 --deadline-h 5 --changeover-h 0.5 --policy greedy"
    assert run(command) == 0
    printed = capsys.readouterr().out
    assert "no spot is up: wait for it" in printed
    assert run(f"{command} -o json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["deadline_met"] is True
    assert told["optimal_usd"] <= told["cost_usd"] <= told["on_demand_usd"]
    first = told["decisions"][0]
    weighed = {(a["mode"], a["place"]): a["expected_usd"] for a in first["alternatives"]}
    assert weighed["spot", "one"] == pytest.approx(0.9731 * 3.5)
    assert weighed["on_demand", "one"] == pytest.approx(3.06 * 3.5)


def test_decisions_that_change_nothing_are_shown_on_demand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = "sim job --trace one.json --task-h 3 --deadline-h 5 --policy on_demand"
    assert run(command) == 0
    short = capsys.readouterr().out
    assert run(f"{command} --all") == 0
    whole = capsys.readouterr().out
    # Spot goes down and comes up while on-demand runs: asked twice more, to no effect.
    assert (short.count("on-demand from start to end"), whole.count("on-demand from start to end")) == (1, 3)


ROWS = [
    ("one.json,1,4,3,0.5,0,greedy", "deadline_h: the deadline of 3 h is shorter than the work of 4 h"),
    ("one.json,1,4,5,6,0,greedy", "changeover_h: the changeover of 6 h is longer than the deadline of 5 h"),
    ("one.json,1,0,5,0.5,0,greedy", "task_h: expected hours of work, above 0, found 0"),
    ("one.json,1,four,5,0.5,0,greedy", "task_h: expected hours of work, above 0, found 'four'"),
    ("one.json,1,4,inf,0.5,0,greedy", "deadline_h: expected hours, above 0, found 'inf'"),
    ("one.json,1,4,5,-1,0,greedy", "changeover_h: expected hours, 0 or more, found '-1'"),
    ("one.json,0,4,5,0.5,0,greedy", "gang: expected a number of machines, 1 or more, found '0'"),
    ("one.json,2,4,5,0.5,0,greedy", "gang: 2 machines at once, but one.json was asked for 1 at most"),
    ("one.json,1,4,5,0.5,,greedy", "start_tick_in_file: the cell is empty"),
    ("one.json,1,4,5,0.5,0.5,greedy", "start_tick_in_file: expected a whole number, 0 or more, found '0.5'"),
    ("one.json,1,4,5,0.5,0,", "policy: the cell is empty"),
    ("one.json,1,4,5,0.5,0", "expected 7 cells, found 6; quote cells that hold a comma"),
    (
        "one.json,1,4,5,0.5,4,greedy",
        "start_tick_in_file: the job's time needs ticks 4 to 14, but one.json has 12; "
        "start earlier or take a longer trace",
    ),
]


@pytest.mark.parametrize(("row", "text"), ROWS)
def test_a_bad_row_is_named_by_its_line(folder: Path, capsys: pytest.CaptureFixture[str], row: str, text: str) -> None:
    table(folder / "rows.csv", GRID, "one.json,1,4,5,0.5,0,greedy", row)
    assert run("sim grid --rows rows.csv --traces . --out out.csv --workers 1") == 2
    assert capsys.readouterr().err == f"rows.csv:3: {text}\n"
    assert not (folder / "out.csv").exists()


def test_the_help_goes_from_one_job_to_many_and_the_page_comes_last(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sim --help") == 0
    commands = re.findall(r"^│ ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)
    assert commands == ["job", "grid", "zones", "world", "replay", "cheapest", "report"]


def test_an_unknown_policy_is_refused_with_the_known_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(folder / "rows.csv", GRID, "one.json,1,4,5,0.5,0,greedyy")
    assert run("sim grid --rows rows.csv --traces . --out out.csv") == 2
    error = capsys.readouterr().err
    assert error.startswith("rows.csv:2: policy: there is no policy 'greedyy'; known: on_demand, spot_only, ")
    assert error.count("\n") == 1


TRACES = [
    ({"data": [1, None, 1]}, "data[1]: a gap"),
    ({"data": []}, "data: has no ticks"),
    ({"data": [1, 1], "prices": [1.0, -1.0]}, "prices[1]: expected a price in USD per hour, 0 or more, found -1.0"),
    ({"data": [1, 1], "prices": [1.0, None]}, "prices[1]: a gap"),
    ({"data": [1, 1], "prices": [1.0]}, "prices: has 1 values, but data has 2"),
]


@pytest.mark.parametrize(("about", "text"), TRACES)
def test_a_bad_trace_is_refused_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str], about: dict[str, Any], text: str
) -> None:
    trace(folder / "bad.json", about["data"], prices=about.get("prices"))
    table(folder / "rows.csv", GRID, "one.json,1,4,5,0.5,0,greedy", "bad.json,1,4,5,0.5,0,greedy")
    assert run("sim grid --rows rows.csv --traces . --out out.csv") == 2
    error = capsys.readouterr().err
    assert error.startswith("bad.json:")
    assert text in error
    assert error.count("\n") == 1
    assert not (folder / "out.csv").exists()


def test_a_trace_that_is_not_there_is_named_with_its_row(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table(folder / "rows.csv", GRID, "tow.json,1,4,5,0.5,0,greedy")
    assert run("sim grid --rows rows.csv --traces . --out out.csv") == 2
    assert capsys.readouterr().err.startswith("rows.csv:2: file: tow.json: cannot be read: ")


def test_zones_with_unequal_clocks_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace(folder / "set" / "westc.json", [1] * 12, gap_seconds=600)
    table(folder / "rows.csv", ZONES, "set,3,6,0.5,0,20,greedy")
    assert run("sim zones --rows rows.csv --traces . --out out.csv") == 2
    error = capsys.readouterr().err
    assert error.startswith("set/westc.json")
    assert "ticks of 600 s, but set/easta.json has ticks of 1800 s" in error
    assert error.count("\n") == 1


OPTIONS = [
    (
        "sim grid --rows rows.csv --traces nowhere --out out.csv",
        "nowhere: is no folder; name the folder that holds the traces",
    ),
    (
        "sim grid --rows rows.csv --traces . --out no/out.csv",
        "no/out.csv: cannot be written: no is no folder that may be written to; name a file in a folder that exists",
    ),
    (
        "sim grid --rows none.csv --traces . --out out.csv",
        "none.csv: cannot be read: no such file or directory; check the path",
    ),
    ("sim grid --rows rows.csv --traces .", "everstep sim grid: --out is missing; see everstep sim grid --help"),
    (
        "sim job --trace one.json --task-h 3 --deadline-h 2",
        "everstep sim job: --deadline-h: shorter than the work of 3 h",
    ),
    (
        "sim job --trace one.json --task-h 3 --deadline-h 4 --changeover-h 5",
        "everstep sim job: --changeover-h: longer than the deadline of 4 h",
    ),
    ("sim job --trace one.json --task-h nan --deadline-h 4", "everstep sim job: --task-h: expected hours, above 0"),
]


@pytest.mark.parametrize(("command", "text"), OPTIONS)
def test_bad_options_get_one_line(folder: Path, capsys: pytest.CaptureFixture[str], command: str, text: str) -> None:
    table(folder / "rows.csv", GRID, "one.json,1,4,5,0.5,0,greedy")
    assert run(command) == 2
    assert capsys.readouterr().err == text + "\n"
