"""``everstep sim world``: the live decisions over traces made here; what is refused, and how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import execute


def run(command: str) -> int:
    return execute(command.split())


def trace(path: Path, data: list[int], **metadata: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "gap_seconds": 600,
        "zone": path.stem,
        "region": path.stem[:-1],
        "instance_type": "p3.2xlarge",
        "on_demand_usd_per_h": 3.0,
        "spot_usd_per_h": 1.0,
        "source": "made here",
    }
    path.write_text(json.dumps({"metadata": about | metadata, "data": data}), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    trace(tmp_path / "set" / "easta.json", ([1] * 20 + [0] * 10) * 4)
    trace(tmp_path / "set" / "westb.json", ([0] * 15 + [1] * 15) * 4, spot_usd_per_h=1.2)
    (tmp_path / "egress.csv").write_text("from_region,to_region,price_usd_per_gb\neast,west,0.1\nwest,east,0.1\n")
    return tmp_path


JOB = "sim world --trace set --task-h 6 --deadline-h 9 --egress egress.csv"


def test_policies_stand_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{JOB} --policy greedy --policy on_demand --starts 2 -o json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["mode"].startswith("realistic")
    assert told["sources"] == ["made here"]
    assert len(told["traces"]) == 2
    greedy, steady = told["figures"]
    assert (greedy["policy"], steady["policy"]) == ("greedy", "on_demand")
    assert 6.0 < greedy["cost_usd"] < steady["cost_usd"]
    assert 18.0 < steady["cost_usd"] < 18.5, "six hours at three dollars, and what boot and saves take"
    assert greedy["preemptions"] > 0
    for one in told["results"]:
        assert one["deadline_met"]
        assert one["meter_usd"] == pytest.approx(one["cost_usd"], abs=1e-9)
        leased_h = sum(spell["end_h"] - spell["start_h"] for spell in one["spells"])
        assert one["useful_h"] + sum(one["overhead_h"].values()) == pytest.approx(leased_h, abs=1e-6)
    assert sum(one["egress_usd"] for one in told["results"]) > 0


def test_the_same_seed_prints_the_same_and_the_journal_is_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rough = "--set launch_failure=0.3 --set loss_per_h=0.2 --set boot_failure=0.1"
    told = []
    for name in ("one", "two"):
        assert run(f"{JOB} {rough} --seed 5 --journal {name}.jsonl") == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    assert (folder / "one.jsonl").read_bytes() == (folder / "two.jsonl").read_bytes()
    first = json.loads((folder / "one.jsonl").read_text().splitlines()[0])
    assert first["kind"] == "JobSubmitted"
    assert run(f"{JOB} {rough} --seed 6 --journal two.jsonl") == 0
    assert (folder / "one.jsonl").read_bytes() != (folder / "two.jsonl").read_bytes()


def test_more_processes_print_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for workers in (1, 2):
        assert run(f"{JOB} --policy greedy --policy rotate --starts 2 --workers {workers} -o json") == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--policy gredy", "--policy: there is no policy 'gredy'; did you mean 'greedy'?"),
        ("--set boots_s=3", "--set: there is nothing called 'boots_s'; did you mean 'boot_s'?"),
        ("--set boot_s=soon", "--set: boot_s: expected a number, not below 0 and 1e+12 at most, found 'soon'"),
        ("--set boot_s=1e300", "--set: boot_s: expected a number, not below 0 and 1e+12 at most, found '1e300'"),
        ("--set quota=0", "--set: quota: expected a whole number, above 0 and 1e+12 at most, found '0'"),
        ("--set max_life_s=0", "--set: max_life_s: expected a number, above 0 and 1e+12 at most, found '0'"),
        ("--deadline-h inf", "--deadline-h: expected hours; leave it out for none"),
        ("--deadline-h nan", "--deadline-h: expected hours; leave it out for none"),
        ("--set notice_chance=2", "--set: notice_chance: expected a chance, 0 to 1, found '2'"),
        ("--set told=perhaps", "--set: told: expected true or false, found 'perhaps'"),
        ("--set boot_s", "--set: expected KEY=VALUE, found 'boot_s'"),
        ("--gang 9", "--gang: 9 machines at once, but the traces were asked for 1"),
        ("--start-tick 100", "--start-tick: the traces have 120 ticks, so the job may begin at tick 66 at the latest"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], more: str, said: str
) -> None:
    assert run(f"{JOB} {more}") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"everstep sim world: {said}\n"


def test_a_deadline_shorter_than_the_work_and_twins_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sim world --trace set --task-h 6 --deadline-h 5") == 2
    assert capsys.readouterr().err == "everstep sim world: --deadline-h: shorter than the work of 6 h\n"
    trace(folder / "set" / "twin.json", [1] * 120, zone="easta")
    assert run("sim world --trace set --task-h 6") == 2
    assert "set/twin.json: metadata.zone: the same zone and machine type as set/easta.json" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_before_anything_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{JOB} --journal nowhere/j.jsonl") == 2
    assert capsys.readouterr().err.startswith("nowhere/j.jsonl: cannot be written: nowhere is no folder")
