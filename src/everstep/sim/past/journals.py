"""Reading journals: the SQLite file of a server, or JSON lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep.control.kernel import Kernel, Line
from everstep.model.errors import BadInput, EverstepError, Problem, UnlistedTransition
from everstep.model.events import KINDS, decode
from everstep.model.ids import DEPLOYMENT_STREAM, DeploymentId, JobId
from everstep.model.job import JobState
from everstep.store.registry import open_store

_MAGIC = b"SQLite format 3\x00"
_PAGE = 10_000


def read_journal(path: Path) -> list[Line]:
    """Every line about a job, in order.

    Args:
        path: the SQLite file of a server, or JSON lines with ``at, job, kind, body`` (``sim world --journal``).

    Raises:
        BadInput: it cannot be read, or is no journal; one line that names the file and the line in it.
    """
    try:
        with path.open("rb") as file:
            database = file.read(len(_MAGIC)) == _MAGIC
        lines = asyncio.run(_from_store(path)) if database else list(_from_text(path))
    except OSError as error:
        reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise BadInput(Problem(str(path), "", reason, "check the path")) from None
    if not lines:
        raise BadInput(Problem(str(path), "", "the journal holds no job"))
    return lines


async def _from_store(path: Path) -> list[Line]:
    store = open_store(f"sqlite:///{path.resolve()}")
    try:
        lines, after = [], 0
        while True:
            records = await store.read(after=after, limit=_PAGE)
            for r in records:
                if r.stream != DEPLOYMENT_STREAM and r.stream.startswith("job/"):
                    row = {"at": r.at, "job": r.stream.removeprefix("job/"), "kind": r.kind, "body": r.body}
                    lines.append(_line(row, f"{path}: line {r.seq}"))
            if len(records) < _PAGE:
                return lines
            after = records[-1].seq
    finally:
        await store.close()


def _from_text(path: Path) -> Iterator[Line]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(text)
            except ValueError as error:
                raise BadInput(Problem(where, "", f"is not JSON: {error}", "give a journal")) from None
            if isinstance(row, dict):
                row = row.get("line", row)  # recordings hold other rows, too
            if isinstance(row, dict) and "kind" in row:
                yield _line(row, where)
            elif not isinstance(row, dict) or not {"format", "op", "end"} & row.keys():
                raise BadInput(Problem(where, "", "is no line of a journal: expected at, job, kind, body"))


def _line(row: dict[str, Any], where: str) -> Line:
    kind = row["kind"]
    if kind not in KINDS:
        raise BadInput(Problem(where, "kind", f"this version knows no event {kind!r}"))
    try:
        return Line(JobId(str(row["job"])), decode(kind, row["body"]), float(row["at"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(Problem(where, "", f"is no {kind}: {error!r}")) from None


def fold(lines: list[Line], where: str) -> dict[JobId, JobState]:
    """The last state of every job. Raises BadInput for lines that do not fit each other."""
    kernel = Kernel(DeploymentId("past"), strict=True)
    for line in lines:
        try:
            kernel.replay(line.job, line.event, line.at)
        except (UnlistedTransition, KeyError, EverstepError) as error:
            text = f"{type(line.event).__name__} of {line.job} does not fit what was before it: {error}"
            raise BadInput(Problem(where, "", text, "give the whole journal")) from None
    return kernel.states
