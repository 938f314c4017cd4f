"""What the box must remember when its daemon is killed: machines, disks, the clock of the market.

SQLite in WAL mode, one row per thing. Everything is in memory too; a change is written first and takes effect then.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.errors import BadInput, Problem, Unreachable


@dataclass(slots=True)
class InstanceRecord:
    """One machine, from launch for ever (an ended one stays for the meter and for its token).

    Attributes:
        params: digest of the launch's parameters: a token that comes again with other ones is refused.
        price_usd_per_h: fixed at launch for the whole life, as EC2 bills what it showed; market hours.
        granularity_s, minimum_s, free_if_reclaimed_within_s, time_scale: billing rule at launch, so that a changed
            configuration never changes an old bill.
        address: loopback address of its own. number: gives that address.
        pid, pid_start: its init; 0 until it runs.
        notice, noticed_at, deadline: the warning in force; at the deadline it is killed with ``end_at_deadline``.
        stop_by: the owner asked for its end; killed then at the latest.
        dead_at, reveal_at: its host was lost; the API says so from ``reveal_at`` on.
    """

    id: str
    token: str
    params: str
    deployment: str
    job: str
    launch_no: int
    zone: str
    machine_type: str
    market: str
    price_usd_per_h: float
    granularity_s: float
    minimum_s: float
    free_if_reclaimed_within_s: float
    time_scale: float
    number: int
    address: str
    started_at: float
    boot_s: float
    stop_grace_s: float
    max_life_at: float | None = None
    volume: str | None = None
    server: str = ""
    proxy_port: int = 0
    partition: str = ""
    pid: int = 0
    pid_start: int = 0
    notice: NoticeKind | None = None
    noticed_at: float | None = None
    deadline: float | None = None
    stop_by: float | None = None
    dead_at: float | None = None
    reveal_at: float | None = None
    ended_at: float | None = None
    end: InstanceEnd | None = None

    @property
    def alive(self) -> bool:
        """Not ended as far as the API tells."""
        return self.ended_at is None

    @property
    def doomed(self) -> bool:
        """On its way out: it no longer counts against what the market has."""
        leaving = self.notice in (NoticeKind.TERMINATE, NoticeKind.MAX_LIFE)
        return leaving or self.stop_by is not None or self.dead_at is not None


@dataclass(slots=True)
class VolumeRecord:
    """One disk; ``disk_usd_per_gib_h`` and ``time_scale`` as they were when it was made."""

    id: str
    deployment: str
    job: str
    name: str
    zone: str
    size_gib: float
    usd_per_gib_h: float
    time_scale: float
    created_at: float
    attached_to: str | None = None
    deleted_at: float | None = None


@dataclass(slots=True)
class BoxFacts:
    """What the box knows about itself.

    Attributes:
        config_digest, market_began_at: the clock of the traces of that configuration; None = not yet started.
        config_path, agent_argv: what the daemon was last started with, so that anybody may start it again.
        metadata_port: port of the metadata endpoint; agents hold it, so it must come back after a crash.
        faults_left: launches that still fail, per entry of the configuration.
    """

    config_digest: str = ""
    market_began_at: float | None = None
    config_path: str = ""
    agent_argv: list[str] = field(default_factory=list)
    metadata_port: int = 0
    faults_left: list[int] = field(default_factory=list)


R = TypeVar("R", InstanceRecord, VolumeRecord, BoxFacts)
_TABLES: dict[type[Any], str] = {InstanceRecord: "instance", VolumeRecord: "volume", BoxFacts: "facts"}
_SCHEMA = 1


def _row_key(record: InstanceRecord | VolumeRecord | BoxFacts) -> tuple[str, str]:
    return _TABLES[type(record)], getattr(record, "id", "")


class State:
    """The rows of one box."""

    def __init__(self, path: Path) -> None:
        """Opens or creates the file.

        Raises:
            BadInput: it is damaged, or of a newer everstep.
        """
        self.path = path
        self._unsaved: dict[tuple[str, str], InstanceRecord | VolumeRecord | BoxFacts] = {}
        try:
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.execute("CREATE TABLE IF NOT EXISTS thing (kind TEXT, id TEXT, body TEXT, PRIMARY KEY (kind, id))")
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > _SCHEMA:
                raise self._damaged(f"was written by a newer everstep (version {version}, this one knows {_SCHEMA})")
            self._db.execute(f"PRAGMA user_version={_SCHEMA}")
            self.instances = {r.id: r for r in self._read(InstanceRecord)}
            self.volumes = {r.id: r for r in self._read(VolumeRecord)}
            self.facts = next(iter(self._read(BoxFacts)), None) or BoxFacts()
        except (sqlite3.DatabaseError, ValueError, TypeError, KeyError) as error:
            raise self._damaged(f"is damaged ({error})") from error
        self.by_token = {r.token: r for r in self.instances.values()}
        #: Those that have not ended; what happens all the time looks only at these.
        self.living = {r.id: r for r in self.instances.values() if r.alive}

    def save(self, *records: InstanceRecord | VolumeRecord | BoxFacts) -> None:
        """Writes all of them or none, then they are part of the state.

        Raises:
            Unreachable: the disk refuses (full, broken); nothing was changed. The call may be repeated later.
        """
        waiting = {_row_key(r): r for r in (*self._unsaved.values(), *records)}
        rows = [(*key, json.dumps(asdict(r))) for key, r in waiting.items()]
        try:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO thing VALUES (?, ?, ?)", rows)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise Unreachable(
                f"the box cannot write its state to {self.path}: {error}; nothing was changed, make room on that disk",
                retry_after_s=5.0,
            ) from error
        self._unsaved.clear()
        self._keep(records)

    def save_soon(self, *records: InstanceRecord | VolumeRecord) -> None:
        """Takes over what has *happened*, even if the disk refuses now; then it is written with the next change."""
        try:
            self.save(*records)
        except Unreachable:
            self._unsaved.update((_row_key(r), r) for r in records)
            self._keep(records)

    def forget(self, record: InstanceRecord) -> None:
        """Removes a machine that never came to be."""
        self._db.execute("DELETE FROM thing WHERE kind = 'instance' AND id = ?", (record.id,))
        self.instances.pop(record.id, None)
        self.living.pop(record.id, None)
        self.by_token.pop(record.token, None)

    def close(self) -> None:
        """Closes the file; idempotent."""
        self._db.close()

    def _keep(self, records: Iterable[InstanceRecord | VolumeRecord | BoxFacts]) -> None:
        for record in records:
            if isinstance(record, InstanceRecord):
                self.instances[record.id] = self.by_token[record.token] = record
                if record.alive:
                    self.living[record.id] = record
                else:
                    self.living.pop(record.id, None)
            elif isinstance(record, VolumeRecord):
                self.volumes[record.id] = record
            else:
                self.facts = record

    def _read(self, cls: type[R]) -> list[R]:
        known = {f.name for f in fields(cls)}
        rows = self._db.execute("SELECT body FROM thing WHERE kind = ? ORDER BY rowid", (_TABLES[cls],))
        records = []
        for (body,) in rows:
            data = {name: value for name, value in json.loads(body).items() if name in known}
            if cls is InstanceRecord:
                data["notice"] = NoticeKind(data["notice"]) if data.get("notice") else None
                data["end"] = InstanceEnd(data["end"]) if data.get("end") else None
            records.append(cls(**data))
        return records

    def _damaged(self, what: str) -> BadInput:
        return BadInput(
            Problem(
                str(self.path),
                "",
                what,
                "move the file away to begin with an empty box, after ending what it ran: "
                "python -m everstep.providers.local sweep --home " + str(self.path.parent),
            )
        )
