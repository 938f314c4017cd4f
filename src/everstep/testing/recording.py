"""Recordings: everything that went into the kernel and every line that came out, to be decided again by today's code.

A journal alone says what was decided, not what was looked at: offers and telemetry are no events. A recording holds
both. It is a file of JSON lines: a header, then for each call of the kernel one row with what went in (``op``),
followed by the lines that came out of it (``line``), and at the end what became of each job (``end``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everstep.brain.plan import Heard, Settings
from everstep.control.kernel import Kernel, Line
from everstep.model.codec import from_dict, to_dict
from everstep.model.errors import EverstepError
from everstep.model.events import Event, JobSubmitted, decode, encode
from everstep.model.ids import DeploymentId, InstanceId, JobId
from everstep.model.job import JobState
from everstep.model.offers import Offer

FORMAT = 1
Row = dict[str, Any]


class RecordingKernel(Kernel):
    """A ``Kernel`` that writes down what goes in and what comes out.

    Attributes:
        rows: the recording so far, without the end.
    """

    def __init__(self, deployment: DeploymentId, *, settings: Settings | None = None, strict: bool = False) -> None:
        """See ``Kernel``."""
        super().__init__(deployment, settings=settings, strict=strict)
        self.rows: list[Row] = [{"format": FORMAT, "deployment": deployment, "settings": to_dict(self.settings)}]
        self._offers: tuple[Offer, ...] = ()
        self._shared: dict[str, str] = {}
        self._told: dict[InstanceId, Heard] = {}

    def submit(self, event: JobSubmitted, now: float) -> None:
        """See ``Kernel``."""
        self._write("submit", now, lambda: super(RecordingKernel, self).submit(event, now), event.job, event)

    def handle(self, job: JobId, event: Event, now: float) -> None:
        """See ``Kernel``. A user's request that is granted passes here, too."""
        self._write("handle", now, lambda: super(RecordingKernel, self).handle(job, event, now), job, event)

    def wake(self, now: float) -> None:
        """See ``Kernel``."""
        if any(at <= now for at in self.wakes.values()):
            self._write("wake", now, lambda: super(RecordingKernel, self).wake(now))

    def market_moved(self, now: float) -> None:
        """See ``Kernel``."""
        self._write("market", now, lambda: super(RecordingKernel, self).market_moved(now))

    def drop(self, job: JobId) -> JobState:
        """See ``Kernel``."""
        self.rows.append({"op": "drop", "job": job})
        return super().drop(job)

    def adopt(self, state: JobState) -> None:
        """See ``Kernel``."""
        self.rows.append({"op": "adopt", "job": state.id})
        super().adopt(state)

    def _write(
        self, op: str, now: float, act: Callable[[], None], job: JobId | None = None, event: Event | None = None
    ) -> None:
        row: Row = {"op": op, "at": now}
        if job is not None and event is not None:
            kind, _, body = encode(event)
            row |= {"job": job, "kind": kind, "body": body}
        self.rows.append(row | self._news())
        before = len(self._outcome.lines)
        act()
        self.rows.extend({"line": _line(line)} for line in self._outcome.lines[before:])

    def _news(self) -> Row:
        """What changed outside since the last row."""
        news: Row = {}
        if self.market.offers != self._offers:
            self._offers = self.market.offers
            news["offers"] = [to_dict(o) for o in self._offers]
        if self.market.shared_folders != self._shared:
            self._shared = dict(self.market.shared_folders)
            news["shared"] = self._shared
        heard = {i: x for i, x in self.market.heard.items() if self._told.get(i) != x}
        gone = [i for i in self._told if i not in self.market.heard]
        if heard:
            news["heard"] = {i: to_dict(x) for i, x in heard.items()}
        if gone:
            news["gone"] = gone
        self._told = dict(self.market.heard)
        return news

    def recording(self, states: Mapping[JobId, JobState]) -> list[Row]:
        """The whole recording. Args: states: what became of the jobs, those that the driver keeps included."""
        return [*self.rows, *({"end": summary(states[job])} for job in sorted(states))]


def summary(state: JobState) -> Row:
    """What became of a job, in words that outlive the shape of ``JobState``."""
    return {
        "job": state.id,
        "phase": state.phase.value,
        "exit_code": state.exit_code,
        "attempts": [[a.no, a.cause.value, a.step, a.base] for a in state.attempts],
        "machines": [[m.instance, m.phase.value, None if m.end is None else m.end.value] for m in _machines(state)],
        "user_failures": state.user_failures,
    }


def _machines(state: JobState) -> list[Any]:
    return sorted(state.instances.values(), key=lambda m: m.launch_no)


def _line(line: Line) -> Row:
    kind, schema, body = encode(line.event)
    return {"job": line.job, "at": line.at, "kind": kind, "schema": schema, "body": body}


def to_text(rows: Iterable[Row]) -> str:
    """The file."""
    return "".join(json.dumps(row, separators=(",", ":"), sort_keys=True, allow_nan=False) + "\n" for row in rows)


def from_text(text: str) -> list[Row]:
    """The rows of a file; raises ValueError for one of another format."""
    rows: list[Row] = [json.loads(line) for line in text.splitlines()]
    if not rows or rows[0].get("format") != FORMAT:
        raise ValueError(f"not a recording of format {FORMAT}")
    return rows


@dataclass(frozen=True, slots=True)
class Difference:
    """Where today's code decides otherwise.

    Attributes:
        row: line of the file, from 1. recorded, now: what it says and what came out now; None = nothing.
    """

    row: int
    recorded: Row | None
    now: Row | None

    def __str__(self) -> str:
        """One line per side."""
        return f"line {self.row} of the recording:\n  recorded {self.recorded}\n  now      {self.now}"


class Replayer:
    """Lets today's brain decide again on what was looked at then."""

    def __init__(self, rows: Sequence[Row]) -> None:
        """Args: rows: of a recording."""
        self._rows = rows
        header = rows[0]
        self.kernel = Kernel(
            DeploymentId(header["deployment"]), settings=from_dict(Settings, header["settings"]), strict=True
        )
        self._dropped: dict[JobId, JobState] = {}

    def first_difference(self) -> Difference | None:
        """The first line that differs, None if all are the same."""
        pending: list[Row] = []
        for number, row in enumerate(self._rows[1:], 2):
            if "line" in row:
                now = pending.pop(0) if pending else None
                if now is None or not _same(row["line"], now):
                    return Difference(number, row["line"], now)
            elif pending:
                return Difference(number, None, pending[0])
            if "op" in row:
                try:
                    self._do(row)
                except (EverstepError, KeyError) as error:
                    return Difference(number, row, {"raised": repr(error)})
                pending = [_plain(_line(line)) for line in self.kernel.take().lines]
            elif "end" in row and summary(self._state(JobId(row["end"]["job"]))) != row["end"]:
                return Difference(number, row["end"], summary(self._state(JobId(row["end"]["job"]))))
        return Difference(len(self._rows), None, pending[0]) if pending else None

    def _state(self, job: JobId) -> JobState:
        return self.kernel.states[job] if job in self.kernel.states else self._dropped[job]

    def _do(self, row: Row) -> None:
        kernel, market = self.kernel, self.kernel.market
        if "offers" in row:
            market.set_offers([from_dict(Offer, o) for o in row["offers"]])
        market.shared_folders.update(row.get("shared", {}))
        market.heard.update({InstanceId(i): from_dict(Heard, x) for i, x in row.get("heard", {}).items()})
        for instance in row.get("gone", ()):
            market.heard.pop(InstanceId(instance), None)
        op, job = row["op"], JobId(row.get("job", ""))
        if op == "submit":
            event = decode(row["kind"], row["body"])
            assert isinstance(event, JobSubmitted)
            kernel.submit(event, row["at"])
        elif op == "handle":
            kernel.handle(job, decode(row["kind"], row["body"]), row["at"])
        elif op == "wake":
            kernel.wake(row["at"])
        elif op == "market":
            kernel.market_moved(row["at"])
        elif op == "drop":
            self._dropped[job] = kernel.drop(job)
        elif op == "adopt":
            kernel.adopt(self._dropped.pop(job))
        else:
            raise ValueError(f"unknown row {op!r}")


def _same(recorded: Row, now: Row) -> bool:
    """Whether a line of today is what was recorded; fields that are new since then must have their default."""
    kind, schema, body = encode(decode(recorded["kind"], recorded["body"]))
    again = _plain({**recorded, "kind": kind, "schema": schema, "body": body})
    return now == again and _within(recorded["body"], now["body"])


def _within(old: Any, new: Any) -> bool:
    """Whether everything of ``old`` is in ``new``: nothing that was recorded may be dropped."""
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and _within(value, new[key]) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_within, old, new))
    return bool(old == new)


def fold(rows: Iterable[Row]) -> dict[JobId, JobState]:
    """The states that the lines of a recording add up to, without deciding anything."""
    kernel = Kernel(DeploymentId("fold"), strict=True)
    for row in rows:
        if "line" in row:
            line = row["line"]
            kernel.replay(JobId(line["job"]), decode(line["kind"], line["body"]), line["at"])
    return kernel.states


def _plain(value: Row) -> Row:
    """As it looks after the file."""
    plain: Row = json.loads(json.dumps(value))
    return plain
