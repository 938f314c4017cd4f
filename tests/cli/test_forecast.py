"""``everstep forecast``: tables, JSON, pictures, and what it says of a file that it cannot use."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from everstep.cli.main import execute
from everstep.cli.survival import Curve, page


@pytest.fixture
def lifetimes(tmp_path: Path) -> Path:
    """200 machines in two pools, one of them three times as dangerous; the hazard falls with age."""
    rng = random.Random(1)
    lines = ["duration_h,observed,pool,start"]
    for i in range(200):
        pool, scale_h = rng.choice([("calm", 9.0), ("wild", 1.5)])
        hours = rng.weibullvariate(scale_h, 0.6)
        lines.append(f"{min(hours, 24.0):.4f},{int(hours < 24.0)},{pool},2030-01-{1 + i // 10:02d}T00:00:00Z")
    file = tmp_path / "lifetimes.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert execute(["forecast", *words]) == code
    told = capsys.readouterr()
    return told.out if code == 0 else told.err


def test_fit_shows_every_pool(lifetimes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys, "fit", str(lifetimes)).splitlines()
    assert lines[0].split("  ")[0] == "POOL"
    assert {line.split()[0] for line in lines[1:]} == {"all", "calm", "wild"}
    pools = {pool["pool"]: pool for pool in json.loads(said(capsys, "fit", str(lifetimes), "-o", "json"))}
    assert pools["wild"]["factor"] > 1.0 > pools["calm"]["factor"]
    assert pools["wild"]["survival_6h"] < pools[""]["survival_6h"] < pools["calm"]["survival_6h"]
    assert pools[""]["machines"] == 200 == pools["calm"]["machines"] + pools["wild"]["machines"]
    weibull = json.loads(said(capsys, "fit", str(lifetimes), "--model", "weibull", "-o", "json"))
    assert weibull[0]["factor"] is None
    assert weibull[1]["survival_1h"] == weibull[2]["survival_1h"]


def test_a_pool_of_a_published_set_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gpus.csv"
    lives = ("2019-02-18 23:40:00,24.1,1", "2019-02-19 23:40:00,3.5,0")
    file.write_text(
        "gpu,zone,start,lifetime_h,reached_max_life\n"
        + "".join(f"K80,europe-west1-b,{life}\n" for life in lives)
        + f"K80,us-east1-c,{lives[1]}\n"
    )
    lines = said(capsys, "fit", str(file)).splitlines()
    names = [line.split()[0] for line in lines[1:]]
    assert names == ["all", "gcp/europe-west1-b/K80/spot", "gcp/us-east1-c/K80/spot"]


def test_score_ranks_models_on_the_later_part(lifetimes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(said(capsys, "score", str(lifetimes), "--split", "0.6", "-o", "json"))
    assert (told["earlier"], told["later"], told["cut"]) == (120, 80, "2030-01-13T00:00:00Z")
    scores = {score["model"]: score["mean_log_likelihood"] for score in told["scores"]}
    assert scores["frailty"] > scores["exponential"]
    assert scores["kaplan-meier"] is None
    ranked = [value for value in scores.values() if value is not None]
    assert ranked == sorted(ranked, reverse=True)
    assert len(ranked) == 5
    one = said(capsys, "score", str(lifetimes), "--split", "0.6", "--model", "exponential")
    assert "120 records that began before 2030-01-13" in one
    assert f"{scores['exponential']:.4f}" in one
    assert "weibull" not in one
    faded = said(capsys, "score", str(lifetimes), "--half-life", "2d", "--model", "frailty", "-o", "json")
    assert json.loads(faded)["scores"][0]["mean_log_likelihood"] != scores["frailty"]


def test_plot_is_one_page_that_needs_nothing_else(
    lifetimes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "picture.html"
    said(capsys, "plot", str(lifetimes), "--out", str(out), "--model", "weibull", "--until", "12h")
    text = out.read_text()
    drawing = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert drawing is not None
    shapes = ET.fromstring(drawing[0])
    curves = [line for line in shapes.iter("{http://www.w3.org/2000/svg}polyline") if line.get("stroke") != "#dddddd"]
    assert len(curves) == 2
    assert "weibull" in text
    assert "200 machines" in text
    assert not re.search(r"(src|href)=", text)


def test_a_name_that_looks_like_markup_stays_text() -> None:
    assert "<b>" not in page([Curve("<b>", ((0.0, 1.0), (1.0, 0.5)))], "<b>")


@pytest.mark.parametrize("end", [0.05, 0.5, 0.65, 0.95])
def test_the_names_of_the_curves_stand_clear_of_them(end: float) -> None:
    falling = tuple((float(age), 1.0 - (1.0 - end) * age / 24) for age in range(25))
    text = page([Curve("one", falling), Curve("two", falling)], "x")
    drawing = re.search(r"<svg.*</svg>", text, re.DOTALL)
    assert drawing is not None
    shapes = list(ET.fromstring(drawing[0]).iter())
    names = [float(s.get("y", "")) for s in shapes if s.text in ("one", "two")]
    assert len(names) == 2
    curves = [s for s in shapes if s.tag.endswith("polyline") and s.get("stroke") != "#dddddd"]
    # Of the last sixth, where the names stand.
    points = [tuple(map(float, point.split(","))) for s in curves for point in s.get("points", "").split()]
    beside = [y for x, y in points if x >= 60 + 780 * 5 / 6]
    assert beside
    assert all(abs(y - name) > 15 for y in beside for name in names)


def test_plot_writes_png_too(lifetimes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    out = tmp_path / "picture.png"
    said(capsys, "plot", str(lifetimes), "--out", str(out))
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("text", "words", "complaint"),
    [
        ("duration_h,observed\nx,1\n", ["score"], ":2: duration_h: expected"),
        ("duration_h,observed\n1,1\n2,1\n", ["score"], "start: a record without a start"),
        ("duration_h,observed,start\n1,1,2030-01-01\n", ["score"], "cannot be cut"),
        ("hours,gone\n1,1\n", ["fit"], "duration_h"),
        ("duration_h,observed\n1,1\n", ["fit", "--half-life", "soon"], "expected a duration"),
        ("duration_h,observed\n1,1\n", ["fit", "--half-life", "0h"], "more than 0"),
        ("duration_h,observed\n1,1\n", ["plot", "--out", "picture.gif"], ".html or .png"),
        ("duration_h,observed\n1,1\n", ["plot", "--out", "no/such/folder/p.html"], "cannot be written"),
        ("duration_h,observed\n1,1\n", ["fit", "--model", "guess"], "guess"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    text: str, words: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(text)
    told = said(capsys, words[0], str(file), *words[1:], code=2)
    assert complaint in told
    assert len(told.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["fit", "score", "plot"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"everstep forecast {command}" in said(capsys, command, "--help")


def test_counts_without_names_are_read_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "alive.csv"
    file.write_text("0,1\n1000,2\n3600000,1\n7200000,2\n")
    assert execute(["forecast", "fit", str(file)]) == 0
    assert "not to be believed" in capsys.readouterr().err
