"""Shapes of scripts that once came back wrong, or were refused without need or without a place."""

from __future__ import annotations

from pathlib import Path

import pytest

from everstep.model import handshake
from tests.train.script import scripts_for_shapes as bodies
from tests.train.script.drill import Drill, survives
from tests.train.script.scripts_for_session import HEAD
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")


@pytest.fixture
def drill(scripts: Zygote, tmp_path: Path) -> Drill:
    return Drill(scripts, tmp_path)


def write(drill: Drill, body: str) -> None:
    (drill.place / "train.py").write_text(HEAD + body)


def line_of(drill: Drill, text: str) -> str:
    lines = (drill.place / "train.py").read_text().splitlines()
    return f"train.py:{lines.index(text) + 1}"


@pytest.mark.expensive(family="killed shapes")
@pytest.mark.parametrize(
    ("body", "stops"),
    [
        (bodies.COMPILED, (8, 5)),
        (bodies.STREAM, (6, 5)),
        (bodies.STREAM, (13,)),
    ],
)
def test_a_killed_script_ends_as_if_it_had_not_been(drill: Drill, body: str, stops: tuple[int, ...]) -> None:
    write(drill, body)
    survives(drill, *stops)


def test_a_stream_that_draws_in_turns_with_the_training_is_not_saved_any_more_once_that_is_seen(drill: Drill) -> None:
    """Also where it is a relaunch that saves next: the training had drawn before it."""
    write(drill, bodies.SHARED_DRAWS)
    drill.every_steps = 1
    survives(drill, 5, 4)


def test_a_package_that_is_found_elsewhere_is_user_code_when_it_is_run(
    drill: Drill, tmp_path_factory: pytest.TempPathFactory
) -> None:
    package = tmp_path_factory.mktemp("elsewhere") / "project"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text("from project.loop import fit\n\nfit()\n")
    (package / "loop.py").write_text(HEAD + bodies.FIT)
    write(drill, bodies.FIT + "\n\nfit()\n")
    rc, stdout = drill.plain()
    drill.env["MODULES_IN"] = str(package.parent)
    drill.target = ("-m", "project")
    assert drill.launch(8) == -9
    assert drill.launch() == rc, drill.said()
    assert drill.resumed()
    assert drill.log() == stdout


def test_training_in_a_list_comprehension_goes_on_in_it(drill: Drill) -> None:
    write(drill, bodies.LIST_COMPREHENSION)
    _, stdout = drill.plain()
    assert drill.launch(8) == -9
    assert drill.launch(13) == -9
    assert drill.resumed()
    assert drill.launch() == 0, drill.said()
    assert drill.resumed()
    assert drill.log() == stdout
    assert "comprehension" not in drill.said()


def test_a_save_where_the_first_pass_after_a_relaunch_ends(drill: Drill) -> None:
    # The save of step 4 is in the middle of a pass, the next one at its end: a `break` leads there from step 6.
    write(drill, bodies.LEFT_EARLY)
    drill.every_steps = 2
    survives(drill, 5, 3, 2)


def test_training_in_a_comprehension_is_told_at_once_and_saved_behind_it(drill: Drill) -> None:
    write(drill, bodies.COMPREHENSION)
    _, stdout = drill.plain()
    assert drill.launch(8) == -9
    place = line_of(drill, "print(list({scale: fit(scale) for scale in (1.0, 0.5)}.values()))")
    assert drill.said().count(f"{place} in a comprehension") == 1
    assert drill.launch(20) == -9
    assert not drill.resumed()
    assert drill.launch() == 0, drill.said()
    assert drill.resumed()
    assert drill.log() == stdout


def test_a_script_that_joins_ranks_of_which_its_launch_knows_nothing_is_not_saved(drill: Drill) -> None:
    write(drill, bodies.STRANGERS)
    assert drill.launch() == 0, drill.said()
    assert drill.said().count("torch.distributed has 2 ranks here, this launch knows of 1") == 1
    assert not list((drill.place / "saves").glob("*/*/manifest.json"))


def test_what_could_not_be_restored_refuses_with_the_line_that_uses_it(drill: Drill) -> None:
    write(drill, bodies.PIPE)
    assert drill.launch(8) == -9
    assert drill.launch() == handshake.EXIT_REFUSED
    refusal = next(line for line in drill.said().splitlines() if "could not be restored" in line)
    assert line_of(drill, "    pipe.write(f'{i}')") in refusal
    assert "pipe" in refusal
