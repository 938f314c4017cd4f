"""Task files with their exact outcome: `valid.yaml` and `malformed.yaml` are the specification in examples."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from everstep.client.taskfile import load_task
from everstep.client.taskfile.fields import TABLE
from everstep.client.taskfile.schema import json_schema
from everstep.model.codec import to_dict
from everstep.model.errors import BadInput

HERE = Path(__file__).parent
MALFORMED = yaml.safe_load((HERE / "malformed.yaml").read_text(encoding="utf-8"))
VALID = yaml.safe_load((HERE / "valid.yaml").read_text(encoding="utf-8"))


def _named(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["case"]) for case in cases]


@pytest.mark.parametrize("case", _named(MALFORMED))
def test_malformed(case: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "present.txt").write_text("not a folder")
    with pytest.raises(BadInput) as caught:
        load_task("task.yaml", text=case["yaml"], cwd=tmp_path)
    said = [str(problem).replace(str(tmp_path), "CWD") for problem in caught.value.problems]
    assert said == case["problems"]
    assert "hunter2" not in str(caught.value)
    assert all("\n" not in line for line in said)


def _part(data: Any, path: str) -> Any:
    for step in path.split("."):
        data = data[int(step)] if step.isdecimal() else data[step]
    return data


@pytest.mark.parametrize("case", _named(VALID))
def test_valid(case: dict[str, Any], tmp_path: Path) -> None:
    envs, secrets = case.get("envs", {}), case.get("secrets", {})
    loaded = load_task("task.yaml", text=case["yaml"], envs=envs, secrets=secrets, cwd=tmp_path)
    task = to_dict(loaded.task)
    assert {path: _part(task, path) for path in case["task"]} == case["task"]
    assert list(loaded.warnings) == case.get("warnings", [])
    assert loaded.secrets == case.get("kept_secrets", {})
    assert "hunter2" not in repr(loaded)
    assert "hunter2" not in str(task)


@pytest.mark.parametrize("case", _named(VALID))
def test_the_editor_schema_accepts_what_is_valid(case: dict[str, Any]) -> None:
    document = list(yaml.load_all(case["yaml"], Loader=_AsWritten))[-1]
    jsonschema.Draft202012Validator(json_schema()).validate(document)


class _AsWritten(yaml.SafeLoader):
    """Editors read YAML 1.2: `on` and `yes` are text, a time is text."""


_AsWritten.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if not tag.endswith((":timestamp", ":bool"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_AsWritten.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("true|false"), list("tf"))


def test_there_are_enough_cases() -> None:
    assert len(MALFORMED) >= 60
    assert len(VALID) >= 20
    assert len({case["case"] for case in MALFORMED + VALID}) == len(MALFORMED + VALID)


def test_every_key_of_the_table_appears_in_a_case() -> None:
    seen = set()
    for case in VALID + MALFORMED:
        for document in _documents(case["yaml"]):
            _collect(document, "", seen)
    missing = {(place, name) for place, fields in TABLE.items() for name in fields if place != "alternative"} - seen
    assert not missing


def _documents(text: str) -> list[Any]:
    try:
        return list(yaml.load_all(text, Loader=_AsWritten))
    except yaml.YAMLError:
        return []


def _collect(value: Any, place: str, seen: set[tuple[str, str]]) -> None:
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        seen.add((place, str(name)))
        if place == "" and name in ("resources", "recovery", "checkpoint", "work", "objective"):
            _collect(inner, name, seen)
        elif place == "resources" and name in ("job_recovery", "spot_recovery"):
            _collect(inner, "job_recovery", seen)
        elif name == "file_mounts" and isinstance(inner, dict):
            for mount in inner.values():
                _collect(mount, "file_mount", seen)
