"""Unmodified scripts under ``everstep.train.run``: killed, started again, and compared with an undisturbed run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from everstep.model import handshake
from tests.train.script import scripts_for_session as bodies
from tests.train.script.drill import DRIVER, Drill, survives
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")


@pytest.fixture
def drill(scripts: Zygote, tmp_path: Path) -> Drill:
    return Drill(scripts, tmp_path)


def write(drill: Drill, body: str) -> None:
    (drill.place / "train.py").write_text(bodies.HEAD + body)


@pytest.mark.parametrize(
    ("body", "stops"),
    [
        (bodies.NESTED, (11, 6)),
        (bodies.NESTED, (6,)),
        (bodies.WHILE, (9, 5)),
        (bodies.WHILE, (20,)),
        (bodies.CLOSURES, (7, 6)),
        (bodies.FORKS, (8,)),
        (bodies.EXITS, (5, 4)),
        (bodies.RAISES, (8,)),
    ],
)
def test_a_killed_script_ends_as_if_it_had_not_been(drill: Drill, body: str, stops: tuple[int, ...]) -> None:
    write(drill, body)
    survives(drill, *stops)


@pytest.mark.parametrize("body", [bodies.EXITS, bodies.RAISES])
def test_the_last_step_is_told_however_soon_after_a_look_the_script_ends(drill: Drill, body: str) -> None:
    write(drill, body)
    drill.every_steps = 5
    drill.env[handshake.ENV_REPORT_DIR] = str(drill.place)
    drill.launch(7)
    drill.launch()
    assert drill.resumed(), drill.said()
    told = json.loads((drill.place / f"{handshake.REPORT_PROGRESS_PREFIX}0.json").read_text())
    assert (told["step"], told["total"]) == (12, 12)


def test_a_script_behind_a_command_line_library(drill: Drill) -> None:
    pytest.importorskip("click")
    write(drill, bodies.CLICK)
    drill.target = ("train.py", "--steps", "11")
    survives(drill, 7)


def test_a_package_of_several_modules_run_by_name(drill: Drill) -> None:
    for name, text in bodies.PARTS.items():
        path = drill.place / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (drill.place / "plain.py").write_text("import sys\nsys.path.insert(0, '.')\nfrom pkg.loop import fit\nfit(3)\n")
    drill.target = ("plain.py",)
    rc, stdout = drill.plain()
    drill.target = ("-m", "pkg")
    assert drill.launch(7) == -9
    assert drill.launch() == rc, drill.said()
    assert drill.resumed()
    assert drill.log() == stdout


@pytest.mark.parametrize("change", [False, True])
def test_large_data_of_the_setup_is_saved_only_if_it_was_changed(drill: Drill, change: bool) -> None:
    write(drill, bodies.LARGE.replace("CHANGE = False", f"CHANGE = {change}"))
    # The second launch saves, too: what it knows of the setup it has from the save that it continued.
    survives(drill, 5, 5)
    shards = [path.stat().st_size for path in (drill.place / "saves").glob("*/*/*") if path.is_file()]
    if change:
        assert max(shards) > 68 << 20
    else:
        assert 0 < max(shards) < 1 << 20


@pytest.mark.parametrize("body", [bodies.LARGE_SWAPPED, bodies.LARGE_HANDED_DOWN, bodies.LARGE_IN_LOADER])
def test_large_data_of_the_setup_wherever_it_goes(drill: Drill, body: str) -> None:
    write(drill, body)
    drill.every_steps = 2
    survives(drill, 7, 3)


def test_large_data_that_was_as_the_setup_had_made_it_by_chance_is_refused(drill: Drill) -> None:
    write(drill, bodies.LARGE_TURNED)
    drill.every_steps = 4
    # Saved where it was turned twice; the relaunch turns it on its way, once.
    assert drill.launch(6) == -9
    refused(drill, "module __main__: data", "came out different this time")


def test_sigterm_saves_at_the_next_safe_point_and_exits_75(drill: Drill) -> None:
    write(drill, bodies.NESTED)
    drill.every_steps = 1000
    survives(drill, 9, 4, signal="SIGTERM")


def test_the_head_where_a_save_ends_begins_no_other(drill: Drill) -> None:
    write(drill, bodies.UNHURRIED)
    saves = drill.place / "saves"
    assert drill.scripts.run([DRIVER, "--dir", saves, *drill.target], cwd=drill.place, log=drill.place / "log") == 0
    # The first one comes at once, the second one a long time later: by the local rule, of what the first one cost.
    assert len(list(saves.glob("0*/0*/manifest.json"))) == 1


def test_killed_before_the_first_save_it_starts_from_the_beginning(drill: Drill) -> None:
    write(drill, bodies.NESTED)
    _, stdout = drill.plain()
    assert drill.launch(2) == -9
    assert drill.launch() == 0
    assert not drill.resumed()
    assert drill.log() == stdout


def refused(drill: Drill, *texts: str) -> None:
    assert drill.launch() == handshake.EXIT_REFUSED, drill.said()
    lines = [line for line in drill.said().splitlines() if line.startswith("everstep: ")]
    assert len(lines) == 1, drill.said()
    for text in texts:
        assert text in lines[0]


def test_a_changed_source_is_refused_by_name(drill: Drill) -> None:
    write(drill, bodies.EXITS)
    assert drill.launch(8) == -9
    write(drill, bodies.EXITS.replace("sys.exit(3)", "sys.exit(4)"))
    refused(drill, str(drill.place / "train.py"), "has changed since the save", "--dir")


def test_other_arguments_are_refused(drill: Drill) -> None:
    write(drill, bodies.EXITS)
    assert drill.launch(8) == -9
    drill.target = ("train.py", "--more")
    refused(drill, "arguments", "--more")


def test_a_loop_that_is_not_reached_again_is_refused_with_the_reason(drill: Drill, tmp_path: Path) -> None:
    write(drill, bodies.OUTSIDE)
    drill.env["SWITCH"] = str(tmp_path / "switch")
    assert drill.launch(8) == -9
    (tmp_path / "switch").touch()
    refused(drill, "train.py:26", "was not reached again", "FileExistsError: somebody was here")


def test_the_checkpoints_of_the_library_are_refused(drill: Drill) -> None:
    write(
        drill, "from everstep import train\nwith train.attach(dir='saves', model=model) as run:\n    run.step_done()\n"
    )
    assert drill.plain()[0] == 0
    refused(drill, "was not written by this way of running a script")


def test_a_living_thread_means_no_saves_and_one_warning(drill: Drill) -> None:
    write(drill, bodies.THREAD)
    _, stdout = drill.plain()
    assert drill.launch() == 0
    assert drill.log() == stdout
    assert drill.said().count("a thread of the script is alive: heart") == 1
    assert not list((drill.place / "saves").glob("*/*/manifest.json"))
