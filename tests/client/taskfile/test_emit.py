"""A task written as a task file is the same task when it is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml
from hypothesis import given
from hypothesis import strategies as st

from everstep.client.taskfile import load_task, task_from_dict, task_to_dict, task_to_yaml
from everstep.model.gang import Gang, SlotGroup
from everstep.model.offers import AcceleratorWish, MachineRequirement
from everstep.model.task import (
    CheckpointMode,
    CheckpointSpec,
    Mount,
    Objective,
    OnNoCapacity,
    Recovery,
    SpotMode,
    Task,
    Work,
)

VALID = yaml.safe_load((Path(__file__).parent / "valid.yaml").read_text(encoding="utf-8"))

_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
_plain = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=20)
_shell = st.lists(_plain, min_size=1, max_size=3).map("\n".join)
_seconds = st.integers(1, 10**6).map(float) | st.floats(0.001, 10**6)
_gib = st.integers(1, 4096).map(float) | st.sampled_from([0.5, 1.25])
_places = st.tuples(st.sampled_from(["aws", "gcp", "local"]), st.sampled_from(["", "r1"]), st.sampled_from(["", "z1"]))


@st.composite
def _machines(draw: st.DrawFn) -> MachineRequirement:
    wishes = draw(
        st.lists(
            st.builds(AcceleratorWish, st.sampled_from(["A100", "V100"]), st.integers(1, 16)), max_size=3, unique=True
        )
    )
    cpus, memory = draw(st.sampled_from(["min", "exact", None])), draw(st.sampled_from(["min", "exact", "per", None]))
    return MachineRequirement(
        accelerators=tuple(wishes),
        ordered=len(wishes) > 1 and draw(st.booleans()),
        cpus_min=draw(_gib) if cpus == "min" else None,
        cpus_exact=draw(_gib) if cpus == "exact" else None,
        memory_gib_min=draw(_gib) if memory == "min" else None,
        memory_gib_exact=draw(_gib) if memory == "exact" else None,
        memory_per_cpu_min=draw(_gib) if memory == "per" else None,
        places=tuple(draw(st.lists(_places, max_size=3, unique=True))),
        machine_types=tuple(draw(st.lists(_names, max_size=2, unique=True))),
        disk_gib=draw(st.none() | _gib),
    )


_recoveries = st.builds(
    Recovery,
    max_restarts=st.integers(0, 9),
    no_progress_limit=st.integers(1, 9),
    on_no_capacity=st.none() | st.sampled_from(OnNoCapacity),
    max_wait_s=st.none() | _seconds,
    boot_timeout_s=_seconds,
    cooldown_s=st.just(0.0) | _seconds,
    keep_on_failure_s=st.just(0.0) | _seconds,
)
_works = st.builds(Work, steps=st.none() | st.integers(1, 10**9)) | st.builds(
    Work, hours=st.floats(0.01, 1000), on=st.just("p3.2xlarge")
)
_objectives = st.builds(
    Objective,
    minimize=st.sampled_from(["cost", "time"]),
    deadline_s=_seconds,
    budget_usd=st.none() | st.integers(1, 10**6).map(lambda cents: cents / 100),
) | st.builds(Objective, deadline_at=st.integers(10**9, 4 * 10**9).map(float))


@st.composite
def _tasks(draw: st.DrawFn) -> Task:
    by_rank = draw(st.booleans())
    variables = draw(st.sets(st.sampled_from(["A", "B_1", "on", "C"])))
    secret = draw(st.sets(st.sampled_from(["TOKEN", "KEY"])))
    group = SlotGroup("worker", draw(_machines()), draw(st.integers(1, 99)), draw(st.none() | st.integers(1, 16)))
    return Task(
        name=draw(_names),
        run="" if by_rank else draw(_shell),
        argv=tuple(draw(st.lists(_plain, min_size=1, max_size=3))) if by_rank else (),
        setup=draw(st.just("") | _shell),
        envs={name: draw(st.just("") | _plain | _shell) for name in sorted(variables)},
        secret_names=tuple(sorted(secret)),
        gang=Gang((group,)),
        spot=draw(st.sampled_from(SpotMode)),
        max_price_usd_per_h=draw(st.none() | st.integers(1, 10**6).map(lambda cents: cents / 100)),
        policy=draw(st.just("") | _names),
        recovery=draw(_recoveries),
        checkpoint=draw(
            st.builds(
                CheckpointSpec,
                dir=st.just("") | st.just("/ckpt dir"),
                every_s=st.none() | _seconds,
                on_notice=st.sampled_from(["", "SIGUSR1", "touch /tmp/x; sync"]),
                keep=st.integers(1, 9),
                mode=st.sampled_from(CheckpointMode),
            )
        ),
        outputs=tuple(draw(st.lists(st.sampled_from(["out", "/logs/*", "~/x"]), unique=True))),
        work=draw(_works),
        objective=draw(_objectives),
        labels=draw(st.dictionaries(_names, _plain, max_size=2)),
        stop_grace_s=draw(_seconds),
    )


@given(_tasks())
def test_a_task_comes_back_from_yaml(task: Task) -> None:
    secrets = dict.fromkeys(task.secret_names, "x")
    assert load_task("t", text=task_to_yaml(task), secrets=secrets).task == task


@given(_tasks())
def test_a_task_comes_back_from_plain_data(task: Task) -> None:
    secrets = dict.fromkeys(task.secret_names, "x")
    assert task_from_dict(task_to_dict(task), secrets=secrets).task == task


def test_every_valid_file_comes_back(tmp_path: Path) -> None:
    for case in VALID:
        given_values = {"envs": case.get("envs", {}), "secrets": case.get("secrets", {})}
        first = load_task("t", text=case["yaml"], cwd=tmp_path, **given_values)
        text = task_to_yaml(first.task)
        assert "hunter2" not in text
        assert load_task("t", text=text, secrets=first.secrets).task == replace(first.task, mounts=()), case["case"]


def test_uploads_stand_in_comments() -> None:
    task = Task(run="a\nb\n", workdir_digest="abc", mounts=(Mount("/d", "./data", digest="def"),))
    assert task_to_yaml(task) == (
        "# workdir: uploaded, sha256 abc\n# /d: uploaded from ./data\nname: task\nrun: |\n  a\n  b\n"
    )
