"""The recovery benchmark judges by the right marks, and measures a real recovery."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import recovery
from benchmarks.recover.host import number_of
from benchmarks.recover.marks import Trail
from benchmarks.recover.net import Net


def _trail(folder: Path, *marks: tuple[float, str, int, int, int]) -> Trail:
    path = folder / "marks.jsonl"
    keys = ("t", "what", "rank", "pid", "step")
    lines = [json.dumps({"host": "h", **dict(zip(keys, mark, strict=True))}) for mark in marks]
    path.write_text("".join(f"{line}\n" for line in lines) + '{"torn')
    trail = Trail(path)
    trail.look()
    return trail


def _life(t: float, rank: int, pid: int, *steps: int) -> list[tuple[float, str, int, int, int]]:
    stages = [(t + n / 10, what, rank, pid, 0) for n, what in enumerate(("imported", "rendezvous", "restored"))]
    return stages + [(t + 1 + n / 10, "step", rank, pid, step) for n, step in enumerate(steps)]


def test_work_goes_on_with_the_first_new_step_of_the_last_rank(tmp_path: Path) -> None:
    before = _life(0.0, 0, 1, 1, 2, 3) + _life(0.0, 1, 2, 1, 2, 3)
    trail = _trail(tmp_path, *before, *_life(10.0, 0, 3, 2, 3, 4), *_life(10.5, 1, 4, 2, 3, 4))
    assert trail.last_step(5.0) == 3
    found = trail.recovery(5.0, 3)
    assert found is not None
    assert found.at == pytest.approx(11.7)
    assert found.stage("rendezvous") == pytest.approx(10.6)


def test_one_rank_or_the_processes_of_before_are_no_recovery(tmp_path: Path) -> None:
    before = _life(0.0, 0, 1, 1, 2, 3) + _life(0.0, 1, 2, 1, 2, 3, 4, 5)
    assert _trail(tmp_path, *before, *_life(10.0, 0, 3, 4)).recovery(1.2, 3) is None


def test_steps_that_were_done_before_are_no_recovery(tmp_path: Path) -> None:
    trail = _trail(tmp_path, *_life(10.0, 0, 3, 1, 2, 3), *_life(10.0, 1, 4, 1, 2, 3, 4))
    assert trail.recovery(5.0, 3) is None


def test_hosts_of_a_net_have_addresses_of_their_own() -> None:
    net = Net("t")
    assert len({net.address(number) for number in range(1, 2000)}) == 1999
    numbers = [number_of(f"127.9.{high}.{low}") for high in range(8) for low in range(1, 255)]
    assert len(set(numbers)) == len(numbers)


def test_spread_of_few_values() -> None:
    assert recovery.spread([]) == dict.fromkeys(("median", "p25", "p75", "min", "max"))
    assert set(recovery.spread([2.0]).values()) == {2.0}
    assert recovery.spread([1.0, 2.0, 3.0]) == {"median": 2.0, "p25": 1.5, "p75": 2.5, "min": 1.0, "max": 3.0}


@pytest.mark.expensive(family="benchmarks")
def test_a_killed_worker_is_recovered_from(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    arguments = "--rounds 1 --faults worker --systems everstep --stops 0 --pause-s 0.5 --boot-s 1 --loopback"
    recovery.main(arguments.split())
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (result["case"], result["system"]) == ("worker killed", "everstep")
    assert (result["n"], result["recovered"], result["failures"]) == (1, 1, [])
    assert result["median"] == pytest.approx(sum(result["parts_median"].values()), abs=0.05)
    assert set(result["parts_median"]) == {"detect", "restart", "import", "rendezvous", "restore", "first new step"}
