"""Reading journals: the SQLite file of a server, or JSON lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from everstep.control.kernel import Kernel, Line
from everstep.control.sights import Sight
from everstep.market.rows import LATEST_S
from everstep.model.errors import BadInput, EverstepError, Problem, UnlistedTransition
from everstep.model.events import KINDS, decode
from everstep.model.ids import JOB_STREAMS, MARKET_STREAM, DeploymentId, JobId
from everstep.model.job import JobState
from everstep.store.registry import open_store

_MAGIC = b"SQLite format 3\x00"
_PAGE = 10_000


class Recorded(NamedTuple):
    """What a journal holds, each in order.

    Attributes:
        lines: about jobs. sights: what was seen of the market.
    """

    lines: list[Line]
    sights: list[Sight]


def read_journal(path: Path) -> Recorded:
    """Every line about a job, and the market stream.

    Args:
        path: the SQLite file of a server, or JSON lines with ``at, job, kind, body`` (``sim world --journal``) or, for
            the market stream, ``at, stream, kind, body``.

    Raises:
        BadInput: it cannot be read, or is no journal; one line that names the file and the line in it.
    """
    try:
        with path.open("rb") as file:
            database = file.read(len(_MAGIC)) == _MAGIC
        found = asyncio.run(_from_store(path)) if database else list(_from_text(path))
    except OSError as error:
        reason = f"cannot be read: {(error.strerror or str(error)).lower()}"
        raise BadInput(Problem(str(path), "", reason, "check the path")) from None
    except BadInput:
        raise
    except EverstepError as error:
        raise BadInput(Problem(str(path), "", str(error).removeprefix(f"{path}: "))) from None
    recorded = Recorded([one for one in found if isinstance(one, Line)], [s for s in found if isinstance(s, Sight)])
    if not recorded.lines:
        raise BadInput(Problem(str(path), "", "the journal holds no job"))
    return recorded


async def _from_store(path: Path) -> list[Line | Sight]:
    store = open_store(f"sqlite:///{path.resolve()}")
    try:
        lines: list[Line | Sight] = []
        after = 0
        while True:
            records = await store.read(after=after, limit=_PAGE)
            for r in records:
                if r.stream == MARKET_STREAM:
                    lines.append(Sight(r.kind, r.body, r.at))
                elif r.stream.startswith(JOB_STREAMS):
                    row = {"at": r.at, "job": r.stream.removeprefix(JOB_STREAMS), "kind": r.kind, "body": r.body}
                    lines.append(_line(row, f"{path}: line {r.seq}"))
            if len(records) < _PAGE:
                return lines
            after = records[-1].seq
    finally:
        await store.close()


def _from_text(path: Path) -> Iterator[Line | Sight]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(text)
            except json.JSONDecodeError as error:
                raise BadInput(Problem(where, "", f"is not JSON: {error}", "give a journal")) from None
            except (ValueError, RecursionError):
                text = "is not usable JSON: a number or a nesting is too long"
                raise BadInput(Problem(where, "", text, "give a journal")) from None
            if isinstance(row, dict):
                row = row.get("line", row)  # recordings hold other rows, too
            if isinstance(row, dict) and row.get("stream") == MARKET_STREAM:
                yield _sight(row, where)
            elif isinstance(row, dict) and "kind" in row:
                yield _line(row, where)
            elif not isinstance(row, dict) or not {"format", "op", "end"} & row.keys():
                raise BadInput(Problem(where, "", "is no line of a journal: expected at, job, kind, body"))


def _line(row: dict[str, Any], where: str) -> Line:
    kind = row["kind"]
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadInput(Problem(where, "kind", f"this version knows no event {kind!r}"))
    try:
        return Line(JobId(str(row["job"])), decode(kind, row["body"]), _instant(row["at"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(Problem(where, "", f"is no {kind}: {error!r}")) from None


def _instant(at: Any) -> float:
    if not 0.0 <= float(at) <= LATEST_S:
        raise ValueError(f"{at!r} is no time in UTC seconds")
    return float(at)


def _sight(row: dict[str, Any], where: str) -> Sight:
    try:
        return Sight(str(row["kind"]), dict(row["body"]), _instant(row["at"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(Problem(where, "", f"is no line of the market stream: {error!r}")) from None


def fold(lines: list[Line], where: str) -> dict[JobId, JobState]:
    """The last state of every job. Raises BadInput for lines that do not fit each other."""
    kernel = Kernel(DeploymentId("past"), strict=True)
    for line in lines:
        try:
            kernel.replay(line.job, line.event, line.at)
        except (UnlistedTransition, AttributeError, KeyError, TypeError, ValueError, EverstepError) as error:
            text = f"{type(line.event).__name__} of {line.job} does not fit what was before it: {error}"
            raise BadInput(Problem(where, "", text, "give the whole journal")) from None
    return kernel.states
