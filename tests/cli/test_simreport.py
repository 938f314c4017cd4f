"""``everstep sim report``: one page that needs nothing else, from what simulations wrote."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import execute
from tests.cli.test_simworld import trace

CELLS = "policy,cost_usd,finish_h,deadline_met\n"
GRID = "file,gang,task_h,deadline_h,changeover_h,start_tick_in_file,policy"


def run(command: str) -> int:
    return execute(command.split())


class Reader(HTMLParser):
    """What a page is made of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    trace(tmp_path / "set" / "easta.json", ([1] * 20 + [0] * 10) * 4)
    trace(tmp_path / "set" / "westb.json", ([0] * 15 + [1] * 15) * 4, spot_usd_per_h=1.2)
    return tmp_path


def page(capsys: pytest.CaptureFixture[str], command: str) -> tuple[Reader, list[dict[str, Any]]]:
    capsys.readouterr()
    assert run(f"sim report {command} --out r.html -o json") == 0
    told: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    reader = Reader(Path("r.html").read_text(encoding="utf-8"))
    assert reader.open == []
    assert reader.links == [], "nothing is fetched"
    assert "script" not in reader.tags
    return reader, told


def test_a_grid_shows_each_policy_against_on_demand_and_the_optimum(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"easta.json,1,6,9,0.2,{start},{p}" for start in (0, 10, 20, 30) for p in ("greedy", "uniform_progress")]
    Path("rows.csv").write_text("\n".join([GRID, *rows, ""]))
    assert run("sim grid --rows rows.csv --traces set --out costs.csv --workers 1") == 0
    reader, (told,) = page(capsys, "costs.csv --traces set")
    assert told["traces"] == ["easta.json"]
    assert told["mode"].startswith("reference semantics")
    assert told["unit"] == "cost over the optimum"
    assert [bar["policy"] for bar in told["bars"]] == ["greedy", "uniform_progress"]
    assert told["optimal_usd"] <= min(bar["usd"] for bar in told["bars"]) <= told["on_demand_usd"]
    assert all(value >= 1.0 for values in told["values"].values() for value in values)
    text = " ".join(reader.words)
    assert f"optimum ${told['optimal_usd']:.2f}" in text
    assert "easta.json" in text
    assert reader.tags.count("svg") == 2


def test_a_grid_takes_marks_from_its_own_rows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = ("greedy", "on_demand", "optimal")
    rows = [f"easta.json,1,6,9,0.2,{start},{p}" for start in (0, 10) for p in policies]
    Path("rows.csv").write_text("\n".join([GRID, *rows, ""]))
    assert run("sim grid --rows rows.csv --traces set --out costs.csv --workers 1") == 0
    _, (own,) = page(capsys, "costs.csv")
    _, (computed,) = page(capsys, "costs.csv --traces set")
    assert own["on_demand_usd"] == pytest.approx(computed["on_demand_usd"], abs=1e-4)
    assert own["optimal_usd"] == pytest.approx(computed["optimal_usd"], abs=1e-4)


def test_a_job_shows_what_ran_when(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = "sim job --trace set --task-h 6 --deadline-h 9 --changeover-h 0.2 --policy utility -o json"
    assert run(job) == 0
    Path("job.json").write_text(capsys.readouterr().out)
    reader, (told,) = page(capsys, "job.json")
    assert told["traces"] == ["set"]
    (lane,) = told["lanes"]
    assert {spell["place"] for spell in lane["spells"]} <= {"easta", "westb"}
    assert max(spell["end_h"] for spell in lane["spells"]) == json.loads(Path("job.json").read_text())["finish_h"]
    ends = [(a["end_h"], b["start_h"]) for a, b in zip(lane["spells"], lane["spells"][1:], strict=False)]
    assert all(end <= start for end, start in ends)
    assert "hours" in reader.words


def test_the_realistic_world_and_a_replay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policies = "--policy greedy --policy rotate"
    assert run(f"sim world --trace set --task-h 6 --deadline-h 9 {policies} --starts 3 --journal j.jsonl -o json") == 0
    Path("world.json").write_text(capsys.readouterr().out)
    assert run("sim replay j.jsonl --policy on_demand -o json") == 0
    Path("replay.json").write_text(capsys.readouterr().out)
    reader, (world, replay) = page(capsys, "world.json replay.json")
    assert world["mode"].startswith("realistic")
    assert len(world["traces"]) == 2
    assert world["sources"] == ["made here"]
    assert 6.0 < world["optimal_usd"] < world["on_demand_usd"]
    assert [len(values) for values in world["values"].values()] == [3, 3]
    assert [lane["label"] for lane in world["lanes"]] == ["greedy", "rotate"]
    assert [bar["policy"] for bar in replay["bars"]] == ["(recorded)", "(each its own)", "on_demand"]
    assert "observed by nobody" in " ".join(reader.words)


def test_names_from_a_file_are_text_and_not_tags(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = GRID + ",cost_usd,finish_h,spot_exits,deadline_met"
    row = "<script>alert(1)</script>.json,1,6,9,0.2,0,<b>mine</b>,10.0,7.0,0,true"
    Path("costs.csv").write_text("\n".join([header, row, ""]))
    reader, _ = page(capsys, "costs.csv")
    assert "b" not in reader.tags
    assert re.search(r"&lt;script&gt;", Path("r.html").read_text())


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "no", "a.json:1: is not JSON"),
        ("a.json", "[]", "a.json: expected an object, found []"),
        ("a.json", "[" * 100_000, "a.json: is not usable JSON"),
        ("a.json", "{}", "a.json: is no output of a simulation"),
        ("a.json", '{"report": "sim world"}', "a.json: is not whole: KeyError('results')"),
        ("a.csv", "x\n1\n", "a.csv:1: policy: the column is missing; the file has x"),
        ("a.csv", f"{CELLS}p,much,1,true\n", "a.csv:2: cost_usd: expected USD, 0 or more, found 'much'"),
        ("a.csv", f"{CELLS}p,nan,1,true\n", "a.csv:2: cost_usd: expected USD, 0 or more, found 'nan'"),
        ("a.csv", f"{CELLS}p,1,inf,true\n", "a.csv:2: finish_h: expected hours, 0 or more, found 'inf'"),
        ("a.csv", f"{CELLS}p,1,1,maybe\n", "a.csv:2: deadline_met: expected 1 or 0, found 'maybe'"),
        ("a.csv", f'{CELLS}"{"p" * 200_000}\n', "a.csv: is not CSV: field larger than field limit"),
    ],
)
def test_what_no_simulation_wrote_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, said: str
) -> None:
    Path(name).write_text(text)
    assert run(f"sim report {name} --out r.html") == 2
    assert capsys.readouterr().err.startswith(said)
    assert not Path("r.html").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("cost_usd", math.nan, "expected a number, found nan"),
        ("cost_usd", "x", "could not convert"),
        ("cost_usd", 1e300, "expected a number, found 1e+300"),
        ("finish_h", math.inf, "expected a number, found inf"),
        ("policy", 7, "expected text, found 7"),
        ("spells", None, "not iterable"),
        (
            "spells",
            [{"slot": "0", "start_h": 0, "end_h": None, "market": "spot", "zone": "z", "end": ""}],
            "found None",
        ),
    ],
)
def test_a_figure_that_cannot_be_drawn_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], key: str, value: object, said: str
) -> None:
    result = {
        **{"policy": "p", "start_tick": 0, "cost_usd": 1.0, "finish_h": 2.0, "deadline_met": True},
        **{"overhead_h": {}, "spells": [], key: value},
    }
    world = {
        **{"report": "sim world", "mode": "m", "traces": [], "sources": [], "task_h": 1, "deadline_h": 2, "gang": 1},
        **{"conditions": {}, "results": [result]},
    }
    Path("w.json").write_text(json.dumps(world))
    assert run("sim report w.json --out r.html") == 2
    err = capsys.readouterr().err
    assert err.startswith("w.json: is not whole: ")
    assert said in err
    assert not Path("r.html").exists()


def test_a_mark_that_some_runs_lack_is_not_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = GRID + ",cost_usd,finish_h,spot_exits,deadline_met"
    rows = [f"a.json,1,6,9,0.2,{start},{policy},{usd},7.0,0,true" for start, policy, usd in (
        *((0, "greedy", 10.0), (10, "greedy", 30.0), (0, "optimal", 8.0)),
        *((0, "on_demand", 12.0), (10, "on_demand", 40.0)),
    )]  # fmt: skip
    Path("costs.csv").write_text("\n".join([header, *rows, ""]))
    _, (told,) = page(capsys, "costs.csv")
    assert (told["on_demand_usd"], told["optimal_usd"], told["unit"]) == (26.0, None, "USD")


def test_a_file_that_is_not_there_and_a_place_that_cannot_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sim report gone.json") == 2
    assert capsys.readouterr().err == "gone.json: cannot be read: no such file or directory; check the path\n"
    assert run("sim report gone.json --out nowhere/r.html") == 2
    assert capsys.readouterr().err.startswith("nowhere/r.html: cannot be written: nowhere is no folder")
