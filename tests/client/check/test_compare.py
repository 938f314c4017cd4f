from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from everstep.client.check.causes import why_not_deterministic, why_not_exact
from everstep.client.check.compare import Difference, Part, differences, set_aside, weights_sha256
from everstep.client.check.evidence import Ending, Trail


def entry(value: float) -> dict[str, Any]:
    return {"sha256": f"sha of {value}", "kind": "float32 [1]", "sample": [value]}


def optimizer(weight: float, *, step: float = 1.0, lr: str = "0.1", kind: str = "SGD") -> dict[str, Any]:
    return {
        "kind": kind,
        "shapes": ["float32 [1]"],
        "parameters": {"w": entry(weight)},
        "state": {"w.step": entry(step)},
        "groups": {"group 0.lr": {"value": lr}},
        "buffers": {},
    }


def ending(*optimizers: dict[str, Any], code: int = 0, **more: Any) -> Ending:
    final = {"optimizers": list(optimizers), "globals": {}, "random": {"torch": "r"}, "attached": False, "cuda": False}
    return Ending(code, ({**final, "stopped": False},), more.pop("stdout", ()), more.pop("files", {}), (), 10)


def named(found: list[Difference]) -> list[str]:
    return [difference.name for difference in found]


def test_equal_runs_have_no_difference() -> None:
    assert differences(ending(optimizer(1.0)), ending(optimizer(1.0))) == []


def test_what_differs_is_named_and_the_weights_come_first() -> None:
    found = differences(ending(optimizer(1.0)), ending(optimizer(1.5, step=2.0, lr="0.2")))
    assert named(found) == ["parameter 'w' of SGD", "state 'w.step' of SGD", "setting 'group 0.lr' of SGD"]
    assert found[0].size == 0.5
    assert "0.2 instead of 0.1" in found[2].what


def test_optimizers_of_an_earlier_process_are_not_missed() -> None:
    fold = [optimizer(float(at)) for at in range(3)]
    assert differences(ending(*fold), ending(fold[2])) == []
    assert named(differences(ending(*fold), ending(fold[0]))) == ["parameter 'w' of SGD"]


def test_optimizers_are_told_apart_by_their_kind() -> None:
    both = [optimizer(1.0, kind="Adam"), optimizer(2.0)]
    assert differences(ending(*both), ending(both[0])) == []


def test_the_digest_of_the_weights_is_over_what_both_trained() -> None:
    same = weights_sha256(ending(optimizer(1.0), optimizer(2.0)), ending(optimizer(2.0)))
    assert same[0] == same[1] is not None
    other = weights_sha256(ending(optimizer(2.0)), ending(optimizer(3.0)))
    assert other[0] == same[0] != other[1]
    assert weights_sha256(ending(), ending()) == (None, None)


def test_exit_codes_and_silent_ends() -> None:
    plain = ending(optimizer(1.0))
    assert named(differences(plain, dataclasses.replace(plain, exit_code=3))) == ["exit code"]
    assert named(differences(plain, dataclasses.replace(plain, finals=(None,)))) == ["end of rank 0"]
    assert named(differences(plain, dataclasses.replace(plain, steps=11))) == ["number of steps"]


def drawn(end: str, at_first_step: str | None = None) -> Ending:
    found = ending(optimizer(1.0))
    final = found.finals[0]
    assert final is not None
    more = {} if at_first_step is None else {"random_at_first_step": {"torch": at_first_step}}
    return dataclasses.replace(found, finals=({**final, "random": {"torch": end}, **more},))


def test_a_generator_that_nobody_drew_from_need_not_come_back() -> None:
    other = drawn("elsewhere")
    assert named(differences(drawn("r"), other)) == ["random state of torch"]
    assert named(differences(drawn("r", "begun"), other)) == ["random state of torch"]
    assert differences(drawn("r", "r"), other) == []


def test_a_process_that_found_all_steps_done_is_not_compared_by_its_globals() -> None:
    plain, done = ending(optimizer(1.0)), ending()
    final = done.finals[0]
    assert final is not None
    final["globals"] = {"model.w": entry(1.0)}
    assert differences(plain, done) == []
    assert named(differences(ending(), done)) == ["global 'model.w'"]


def logged(folder: Path, name: str, text: str) -> Ending:
    path = folder / name
    path.write_text(text)
    return ending(optimizer(1.0), stdout=(path,))


def test_only_what_plain_runs_agree_on_counts(tmp_path: Path) -> None:
    plain = logged(tmp_path, "1", "loss 0.5\ntook 1.25 s\n")
    again = logged(tmp_path, "2", "loss 0.5\ntook 1.5 s\n")
    found = differences(plain, again)
    assert named(found) == ["stdout"]
    aside = set_aside(plain, again, found)
    assert differences(plain, logged(tmp_path, "3", "loss 0.5\ntook 99 s\n"), aside) == []
    # The numbers may be others, the lines may not.
    (repeated,) = differences(plain, logged(tmp_path, "4", "loss 0.5\nloss 0.5\ntook 1 s\n"), aside)
    assert repeated.what == "3 lines instead of 2, line 2 is 'loss 0.5' instead of 'took 1.25 s'"


def test_files_by_bytes_or_by_content(tmp_path: Path) -> None:
    for name, text in (("a", "x"), ("b", "y")):
        (tmp_path / name).write_text(text)
    plain = ending(optimizer(1.0), files={"out.pt": tmp_path / "a"})
    other = ending(optimizer(1.0), files={"out.pt": tmp_path / "b"})
    assert named(differences(plain, other)) == ["file out.pt"]
    for end in (plain, other):
        final = end.finals[0]
        assert final is not None
        final["torch_files"] = {"out.pt": "equal content"}
    assert differences(plain, other) == []
    assert named(differences(plain, ending(optimizer(1.0)))) == ["file out.pt"]


CAUSES = [
    (
        [Difference(Part.PARAMETERS, "p", "x"), Difference(Part.RANDOM, "random state of torch", "differs")],
        "random state",
    ),
    ([Difference(Part.PARAMETERS, "p", "x"), Difference(Part.GROUPS, "g", "x")], "scheduler"),
    ([Difference(Part.PARAMETERS, "p", "x"), Difference(Part.OPTIMIZER, "state 'w.step' of Adam", "x")], "optimizer"),
    ([Difference(Part.STEPS, "number of steps", "x"), Difference(Part.PARAMETERS, "p", "x")], "position in the data"),
    ([Difference(Part.FILE, "file log", "9 lines instead of 5, line 3 is")], "appended"),
    (
        [
            Difference(Part.OPTIMIZER, "state 'w.momentum_buffer' of SGD", "is missing"),
            Difference(Part.RANDOM, "random state of torch", "differs"),
        ],
        "optimizer's state: it began anew",
    ),
    ([Difference(Part.OPTIMIZER, "state 'w.momentum_buffer' of SGD", "differs")], "as momentum"),
    ([Difference(Part.PARAMETERS, "p", "x")], "order of the data"),
]


@pytest.mark.parametrize(("found", "word"), CAUSES, ids=[word for _, word in CAUSES])
def test_the_likely_cause(found: list[Difference], word: str) -> None:
    assert word in why_not_exact(found, False)


def test_rounding_errors_are_told_from_other_results() -> None:
    small = [Difference(Part.PARAMETERS, "p", "x", 1e-7)]
    assert "rounding" in why_not_deterministic(small, None, cuda=False)
    assert "GPU" in why_not_deterministic(small, None, cuda=True)


def test_the_call_that_is_new_each_time_is_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import numpy as np\nfirst = np.random.default_rng(1)\nsecond = np.random.default_rng()\n")
    cause = why_not_deterministic([Difference(Part.PARAMETERS, "p", "x", 0.5)], script, cuda=False)
    assert "train.py:3 calls np.random.default_rng() without a seed" in cause


def test_a_trail_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "trail"
    trail = Trail(path)
    assert not trail.follow().steps
    path.write_text("1.0 started\n2.0 ready\n3.0 backward\n3.5 st")
    assert len(trail.follow().steps) == 1
    with path.open("a") as file:
        file.write("ep 0 77\n4.5 step 1 78\n")
    assert [step.mark for step in trail.follow().steps] == [77, 78]
    assert trail.moments == {"started": 1.0, "ready": 2.0}
