"""``everstep estimate`` from a catalog: figures, what it assumed, the picture, and what is refused."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from everstep.cli.main import execute

CATALOG = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,AvailabilityZone
p9,V900,8,8,61,3.0,1.0,east,east-a
p9,V900,8,8,61,3.0,1.2,east,east-b
k9,K90,1,8,61,1.5,,east,east-a
"""
TASK = "name: t\nrun: 'true'\nnum_nodes: 2\nresources: {accelerators: V900:8}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prices.csv").write_text(CATALOG)
    write(TASK + "work: {hours: 24, on: p9}\nobjective: {deadline: 30h}\n")
    return tmp_path


def write(text: str) -> None:
    Path("task.yaml").write_text(text)


def run(words: str) -> int:
    return execute(f"estimate task.yaml --catalog prices.csv --cloud aws --futures 40 {words}".split())


def test_every_policy_has_its_row_and_the_world_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--zones 2") == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[1:5]] == ["on_demand", "greedy", "uniform_progress", "auto"]
    assert "world: our own forecast" in out
    assert "aws/east-b/p9/spot: $2.40/h for 2 machines, on-demand $6.00/h" in out


def test_json_has_the_quantiles_of_each_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--deadline 26h --deadline 48h --policy uniform_progress -o json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["world"] == "our own forecast"
    tight, loose = told["estimates"]
    assert (tight["deadline_s"], loose["deadline_s"]) == (26 * 3600.0, 48 * 3600.0)
    assert tight["futures"] == 40
    assert tight["cost_p10_usd"] <= tight["cost_p50_usd"] <= tight["cost_p90_usd"]
    assert loose["cost_p50_usd"] <= tight["cost_p50_usd"]
    assert tight["chance"] == loose["chance"] == 1.0


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_stands_alone(folder: Path) -> None:
    assert run("--policy greedy --policy uniform_progress --html page.html") == 0
    text = (folder / "page.html").read_text()
    seen = _Tags()
    seen.feed(text)
    assert seen.tags.count("svg") == 2
    assert seen.links == []
    assert "uniform_progress within 1 d 6 h" in text
    assert "world: our own forecast" in text


def test_without_a_deadline_what_needs_one_is_left_out_with_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    write(TASK + "work: {hours: 24, on: p9}\n")
    assert run("") == 0
    told = capsys.readouterr()
    assert "left out: uniform_progress needs a deadline" in told.err
    assert [line.split()[0] for line in told.out.splitlines()[1:3]] == ["on_demand", "greedy"]


def test_a_history_is_learnt_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "seen").mkdir()
    document = {"metadata": {"gap_seconds": 600, "zone": "east-a"}, "data": [2] * 3000}
    (folder / "seen" / "a.json").write_text(json.dumps(document))
    assert run("--policy greedy -o json") == 0
    guessed = json.loads(capsys.readouterr().out)
    assert run("--policy greedy -o json --history seen") == 0
    learnt = json.loads(capsys.readouterr().out)
    assert "hazards: seen in east-a" in learnt["assumed"]
    unknown = {"metadata": {"gap_seconds": 600, "zone": "elsewhere"}, "data": [2] * 30}
    (folder / "seen" / "a.json").write_text(json.dumps(unknown))
    assert run("--policy greedy -o json --history seen") == 0
    told = json.loads(capsys.readouterr().out)["assumed"]
    assert "hazards: the built-in prior (seen tells nothing of east-a)" in told
    # It has never been down in 500 h: the job hardly ever is on-demand.
    assert learnt["estimates"][0]["cost_p90_usd"] < guessed["estimates"][0]["cost_p90_usd"]


def test_steps_take_the_time_that_is_given_for_one(capsys: pytest.CaptureFixture[str]) -> None:
    write(TASK + "work: {steps: 86400}\n")
    assert run("--policy on_demand --step 1s --changeover 0s -o json") == 0
    assert json.loads(capsys.readouterr().out)["estimates"][0]["cost_p50_usd"] == pytest.approx(24 * 6.0)


def test_hours_on_another_machine_are_said_to_be_taken_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--policy on_demand") == 0
    assert "as fast as" not in capsys.readouterr().out
    write(TASK + "work: {hours: 24, on: k9}\n")
    assert run("--policy on_demand") == 0
    assert "p9: taken to be as fast as k9, which the hours of work are for" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("work", "words", "says"),
    [
        ("", "", "add work: {hours: H, on: TYPE}"),
        ("work: {hours: 24, on: p9}\n", "--html nowhere/p.html", "nowhere/p.html: cannot be written"),
        ("work: {steps: 10}\n", "", "give --step"),
        ("work: {hours: 24, on: p9}\n", "--policy nonsense", "there is no policy 'nonsense'"),
        ("work: {hours: 24, on: p9}\n", "--policy uniform_progress", "needs a deadline"),
        ("work: {hours: 24, on: p9}\n", "--deadline soon", "--deadline"),
        ("work: {hours: 24, on: p9}\n", "--history nowhere", "is no folder"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    capsys: pytest.CaptureFixture[str], work: str, words: str, says: str
) -> None:
    write(TASK + work)
    assert run(f"--html page.html {words}") == 2
    err = capsys.readouterr().err.strip()
    assert says in err
    assert len([line for line in err.splitlines() if not line.startswith("left out")]) == 1
    assert not Path("page.html").exists()
