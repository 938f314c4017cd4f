"""The examples that we ship are valid, and say what their comments say."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from everstep.client.taskfile import LoadedTask, load_task
from everstep.client.taskfile.schema import json_schema

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


def _load(name: str) -> LoadedTask:
    return load_task(ROOT / "examples" / name, secrets={"HF_TOKEN": "x"} if "skypilot" in name else {}, cwd=ROOT)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_it_is_valid(path: Path) -> None:
    loaded = _load(path.name)
    if path.name != "from-skypilot.yaml":
        assert loaded.warnings == ()
    jsonschema.Draft202012Validator(json_schema()).validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_its_commands_are_shell(path: Path) -> None:
    task = _load(path.name).task
    checked = subprocess.run(["sh", "-n"], input=task.setup + task.run, text=True, capture_output=True, check=False)
    assert checked.stderr == ""


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4


def test_two_keys_of_the_skypilot_example_mean_something_else() -> None:
    keys = [line.split(": ")[1] for line in _load("from-skypilot.yaml").warnings]
    assert keys == ["resources.image_id", "resources.job_recovery.strategy"]


def test_hello_goes_on_where_it_was(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("58\n")
    environment = {
        "EVERSTEP_CHECKPOINT_DIR": str(tmp_path),
        "EVERSTEP_ATTEMPT": "2",
        "PATH": f"{tmp_path}:/usr/bin:/bin",
    }
    (tmp_path / "sleep").write_text("#!/bin/sh\n")  # the example waits a second for each count; the test does not
    (tmp_path / "sleep").chmod(0o755)
    script = _load("hello.yaml").task.run
    done = subprocess.run(["sh", "-c", script], env=environment, text=True, capture_output=True, check=True)
    assert done.stdout.splitlines() == ["attempt 2 starts at 58", "counted to 59", "counted to 60"]
    assert (tmp_path / "count").read_text() == "60\n"
