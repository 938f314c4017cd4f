from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from everstep.cli.demo import evidence, figures
from everstep.cli.demo.verify import compare
from everstep.model.errors import BadInput
from tests.cli.conftest import Cli
from tests.cli.demo import recorded


def summary(**changes: Any) -> dict[str, Any]:
    given = {"weights_sha256": "a", "reference_sha256": "a"} | changes
    return figures.summary(recorded.journal(), recorded.meter(), **given)


def test_figures_are_those_worked_out_by_hand() -> None:
    found = summary()
    assert (found["phase"], found["preemptions"], found["recoveries"], found["attempts"]) == ("succeeded", 1, 1, 2)
    assert (found["steps"], found["lost_steps"], found["wall_s"]) == (400, 10, 75.0)
    # 7.5 h and 3.8 h at $1, 4.4 h at $3
    assert found["cost_usd"] == pytest.approx(7.5 + 3.8 + 13.2)
    assert found["billed_instance_s"] == found["metered_instance_s"] == 75 + 38 + 44
    # 28 s of 210 steps, 10 of them lost; then 29.5 s; on two machines
    assert found["useful_instance_s"] == pytest.approx(2 * (28 * 200 / 210 + 29.5))
    assert found["on_demand_cost_usd"] == pytest.approx(found["useful_instance_s"] / 10 * 3)
    assert sum(found["overhead_instance_s"].values()) + found["useful_instance_s"] == pytest.approx(157)
    assert figures.failures(found) == []


def test_different_weights_fail() -> None:
    assert figures.failures(summary(weights_sha256="b")) == ["the weights differ from those of the undisturbed run"]


def test_a_meter_that_differs_fails_and_names_the_line() -> None:
    meter = recorded.meter()
    meter[1]["cost_usd"] += 0.01
    meter.append({"kind": "disk", "resource": "v-9", "start": 0.0, "end": None, "cost_usd": 0.5})
    found = figures.summary(recorded.journal(), meter, weights_sha256="a", reference_sha256="a")
    assert figures.failures(found) == [
        "ledger and meter differ: compute i-2: ledger $3.800000, meter $3.810000",
        "ledger and meter differ: disk v-9: ledger $0.000000, meter $0.500000",
    ]


def test_a_charge_that_the_meter_does_not_know_fails() -> None:
    found = figures.summary(recorded.journal(), recorded.meter()[:2], weights_sha256="a", reference_sha256="a")
    assert found["ledger_differs"] == ["compute i-3: ledger $13.200000, meter $0.000000"]


def test_a_job_that_did_not_succeed_fails() -> None:
    found = figures.summary(recorded.journal()[:-6], recorded.meter(), weights_sha256="a", reference_sha256="a")
    assert found["phase"] != "succeeded"
    assert "not succeeded" in figures.failures(found)[0]


@pytest.mark.parametrize("lines", [[], recorded.journal()[1:]], ids=["nothing", "no beginning"])
def test_a_journal_without_its_beginning_is_refused(lines: list[dict[str, Any]]) -> None:
    with pytest.raises(BadInput, match=r"journal\.jsonl"):
        figures.fold(lines)


def test_weights_are_compared_by_every_bit(tmp_path: Path) -> None:
    (tmp_path / "same").mkdir()
    (tmp_path / "other").mkdir()
    recorded.write(tmp_path / "same")
    recorded.write(tmp_path / "other", same=False)
    reference = figures.weights_sha256(tmp_path / "same" / evidence.REFERENCE)
    assert figures.weights_sha256(tmp_path / "same" / evidence.WEIGHTS) == reference, "order of names is no difference"
    assert figures.weights_sha256(tmp_path / "other" / evidence.WEIGHTS) != reference


# --- everstep demo --verify ------------------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path: Path) -> Path:
    folder = tmp_path / "report"
    folder.mkdir()
    recorded.write(folder)
    sha = figures.weights_sha256(folder / evidence.WEIGHTS)
    evidence.write_summary(folder, summary(weights_sha256=sha, reference_sha256=sha))
    return folder


def test_a_true_report_is_confirmed(cli: Cli, report: Path) -> None:
    done = cli("demo", "--verify", str(report))
    assert (done.code, done.out.splitlines()[-1]) == (0, "OK: all figures follow from the files")


LIES: list[tuple[str, Any]] = [
    ("cost_usd", 1.0),
    ("lost_steps", 0),
    ("overhead_instance_s", {**summary()["overhead_instance_s"], "boot": 1.0}),
    ("invented", 7),
]


@pytest.mark.parametrize(("figure", "lie"), LIES)
def test_a_lie_in_the_summary_is_found(cli: Cli, report: Path, figure: str, lie: Any) -> None:
    evidence.write_summary(report, evidence.read_summary(report) | {figure: lie})
    done = cli("demo", "--verify", str(report))
    assert (done.code, done.out.splitlines()[-1]) == (1, f"differs: {figure}{'.boot' if isinstance(lie, dict) else ''}")


def test_swapped_weights_are_found(cli: Cli, report: Path) -> None:
    recorded.write(report, same=False)
    done = cli("demo", "--verify", str(report))
    assert done.code == 1
    assert "FAILED: the weights differ" in done.out
    assert "differs: weights_identical, weights_sha256" in done.out


def test_a_doctored_journal_is_found(cli: Cli, report: Path) -> None:
    lines = [line for line in recorded.journal() if line["body"].get("instance") != "i-2"]
    evidence.write_lines(report / evidence.JOURNAL, lines)
    assert cli("demo", "--verify", str(report)).code == 1


def test_every_missing_file_is_named(cli: Cli, tmp_path: Path) -> None:
    done = cli("demo", "--verify", str(tmp_path))
    assert (done.code, len(done.err.splitlines())) == (2, 5)
    assert done.err.splitlines()[0] == f"{tmp_path / 'journal.jsonl'}: there is no such file"


def test_a_broken_line_is_named(cli: Cli, report: Path) -> None:
    with (report / evidence.METER).open("a") as file:
        file.write("{half\n")
    done = cli("demo", "--verify", str(report))
    assert (done.code, done.err) == (2, f"{report / 'meter.jsonl'}:4: is not JSON\n")


def test_a_figure_that_is_missing_differs() -> None:
    rows = compare({"a": 1.0}, {"a": 1.0 + 1e-12, "b": 2})
    assert [row["verdict"] for row in rows] == ["OK", "DIFFERS"]


def test_the_report_replaces_no_folder_of_something_else(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = cli("demo", "--report", str(tmp_path))
    assert (done.code, done.err) == (
        2,
        f"everstep demo: --report: {tmp_path} holds something else; name a new folder\n",
    )
    assert (tmp_path / "thesis.tex").read_text() == "years of work"
