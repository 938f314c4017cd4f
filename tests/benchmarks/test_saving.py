"""The saving benchmark measures real saves, and judges them by the right figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import saving
from benchmarks.save import one
from benchmarks.save.training import EXPERT_BYTES, Training


@pytest.mark.expensive(family="benchmarks")
@pytest.mark.parametrize("way", [*saving.WAYS])
def test_each_way_saves_what_it_says(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERSTEP_REPORT_DIR", "")
    order = {"state_bytes": 2 * EXPERT_BYTES, "passes": 1, "device": "cpu", "every_s": 0.1, "steps": 30}
    try:
        found = one.throughput({**order, "way": way, "folder": str(tmp_path)})
    finally:
        if one.dist.is_initialized():
            one.dist.destroy_process_group()
    assert len(found["steps_s"]) == 30
    assert found["state_bytes"] == pytest.approx(2 * EXPERT_BYTES, rel=0.01)
    assert bool(found["stalls_s"]) == (way != "no saves")
    assert not any(tmp_path.iterdir())


def test_a_step_leaves_most_experts_alone() -> None:
    training = Training.of(8 * EXPERT_BYTES, 1, "cpu")
    before = [expert.weight.detach().clone() for expert in training.model]
    training.step()
    changed = [not expert.weight.equal(old) for expert, old in zip(training.model, before, strict=True)]
    assert changed == [True] * 2 + [False] * 6


@pytest.mark.parametrize(
    ("step_ms", "ours", "reached"),
    [(500, (0.99, 0.01), True), (500, (0.99, 0.03), False), (50, (0.99, 0.03), True), (50, (0.90, 0.01), False)],
)
def test_the_verdict(step_ms: int, ours: tuple[float, float], reached: bool, capsys: Any) -> None:
    case = saving.Case("1 GB", step_ms)
    figures = {"everstep": saving.Figures(*ours), "dcp.async_save": saving.Figures(0.95, 0.1)}
    assert saving._compare(case, figures, "x") is reached
    assert json.loads(capsys.readouterr().out)["reached"] is reached


def test_without_a_gpu_it_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_has_gpu", lambda: False)
    assert saving.main(["--device", "cuda"]) == 0


def test_restores_are_timed_against_reading(tmp_path: Path) -> None:
    try:
        found = one.restore({"state_bytes": 2 * EXPERT_BYTES, "device": "cpu", "turns": 1, "folder": str(tmp_path)})
    finally:
        if one.dist.is_initialized():
            one.dist.destroy_process_group()
    assert {what: len(taken) for what, taken in found["taken_s"].items()} == dict.fromkeys(
        ["read", "everstep", "torch.load", "dcp.load"], 1
    )
