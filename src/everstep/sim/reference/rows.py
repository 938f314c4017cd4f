"""Rows of a grid: what to simulate, read from CSV and checked before anything runs; written back with the results."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from everstep.market.rows import Row, header, rows
from everstep.model.errors import BadInput, Problem
from everstep.sim.reference import entrants
from everstep.sim.reference.drive import Outcome
from everstep.sim.reference.market import Job

_JOB_COLUMNS = ("task_h", "deadline_h", "changeover_h", "start_tick_in_file", "policy")
GRID_COLUMNS = ("file", "gang", *_JOB_COLUMNS)
GRID_RESULTS = ("cost_usd", "finish_h", "spot_exits", "deadline_met")
ZONES_COLUMNS = ("set", "checkpoint_gb", *_JOB_COLUMNS)
ZONES_RESULTS = (*GRID_RESULTS, "moves", "egress_usd")


@dataclass(frozen=True, slots=True)
class Task:
    """One row.

    Attributes:
        number: its place among the rows, from 0.
        where: file and line, for messages.
        traces: file of one zone, or folder of many, below the folder of traces.
        policy: name, aliases resolved.
        checkpoint_gb: size of what is moved between zones.
    """

    number: int
    where: str
    traces: str
    gang: int
    job: Job
    policy: str
    checkpoint_gb: float = 0.0


def read_grid(path: Path) -> list[Task]:
    """Rows with a trace file each. Raises Malformed (one line) for the first that is wrong."""
    return [_task(number, row, "file", row.count("gang")) for number, row in enumerate(rows(path, GRID_COLUMNS))]


def read_zones(path: Path) -> list[Task]:
    """Rows with a folder of zones each; ``gang`` may be given. Raises Malformed for the first that is wrong."""
    return [_task(number, row, "set", row.count("gang") or 1) for number, row in enumerate(rows(path, ZONES_COLUMNS))]


def _task(number: int, row: Row, traces: str, gang: int) -> Task:
    task_h = row.number("task_h", "hours of work, above 0")
    deadline_h = row.number("deadline_h", "hours, above 0")
    changeover_h = row.number("changeover_h", "hours, 0 or more")
    if not row.text("start_tick_in_file"):
        raise row.fault("start_tick_in_file", "the cell is empty")
    if task_h <= 0:
        raise row.fault("task_h", f"expected hours of work, above 0, found {task_h:g}")
    if deadline_h < task_h:
        raise row.fault("deadline_h", f"the deadline of {deadline_h:g} h is shorter than the work of {task_h:g} h")
    if changeover_h > deadline_h:
        text = f"the changeover of {changeover_h:g} h is longer than the deadline of {deadline_h:g} h"
        raise row.fault("changeover_h", text)
    if gang < 1:
        raise row.fault("gang", f"expected a number of machines, 1 or more, found {row.text('gang')!r}")
    try:
        policy = entrants.named(row.word("policy"))
    except KeyError as error:
        raise row.fault(
            "policy", f"there is no policy {error.args[0]!r}; known: {', '.join(entrants.names())}"
        ) from None
    start = row.count("start_tick_in_file")
    job = Job(task_h * 3600.0, deadline_h * 3600.0, changeover_h * 3600.0, start_tick=start, seed=start)
    size = row.number("checkpoint_gb", "GB, 0 or more") if traces == "set" else 0.0
    return Task(number, f"{row.file}:{row.line}", row.word(traces), gang, job, policy, size)


def window(task: Task, ticks: int, tick_s: float, shown: str) -> None:
    """Refuses a row whose deadline lies beyond the end of its traces. Raises BadInput."""
    end = task.job.last_tick(tick_s)
    if task.job.start_tick >= ticks or end > ticks:
        text = f"the job's time needs ticks {task.job.start_tick} to {end}, but {shown} has {ticks}"
        raise BadInput(Problem(task.where, "start_tick_in_file", text, "start earlier or take a longer trace"))


def cells(outcome: Outcome, columns: Sequence[str]) -> dict[str, str]:
    """An outcome as the cells of its columns; ``finish_h`` is empty where the traces ended first."""
    finish_s = outcome.finish_s
    found = {
        "cost_usd": f"{outcome.cost_usd:.4f}",
        "finish_h": "" if finish_s is None else f"{finish_s / 3600.0:.4f}",
        "spot_exits": str(outcome.spot_exits),
        "deadline_met": "true" if outcome.deadline_met else "false",
        "moves": str(outcome.moves),
        "egress_usd": f"{outcome.egress_usd:.4f}",
    }
    return {column: found[column] for column in columns}


def check_target(path: Path) -> None:
    """Refuses a place where results cannot be written, before hours are spent on them. Raises BadInput."""
    folder = path.parent
    if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        what = "is a folder" if path.is_dir() else f"cannot be written: {folder} is no folder that may be written to"
        raise BadInput(Problem(str(path), "", what, "name a file in a folder that exists"))


def write(source: Path, target: Path, results: Sequence[Mapping[str, str]]) -> None:
    """Writes the rows of ``source`` with the results beside them, whole or not at all.

    Columns of ``source`` that are called like a result are replaced.
    """
    names = list(header(source))
    added = list(results[0]) if results else []
    columns = [*(name for name in names if name not in added), *added]
    with tempfile.NamedTemporaryFile(
        "w", newline="", encoding="utf-8", dir=target.parent, prefix=f".{target.name}.", delete=False
    ) as file:
        try:
            writer = csv.DictWriter(file, columns, lineterminator="\n")
            writer.writeheader()
            for row, result in zip(rows(source, names), results, strict=True):
                writer.writerow({name: row.text(name) for name in names if name not in added} | dict(result))
            file.flush()
            os.chmod(file.name, 0o644)
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
