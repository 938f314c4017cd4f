"""Messages to the server, kept in order on disk until they are acknowledged.

An append-only file of JSON lines. Nothing is lost by an outage, by ``kill -9`` of the agent, or by a server that was
put back to an older state: the last acknowledged messages are remembered too and sent again when the server asks for
them by a lower ``ack``. A disk that is full degrades it to memory, with a warning, until writing works again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from pathlib import Path
from typing import Any, Callable

from everstep.agent.clock import Clock
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

Message = dict[str, Any]

UNACKED_LIMIT = 5000
REMEMBERED = 1000
_COMPACT_BYTES = 4 << 20
_ALWAYS = frozenset(
    (
        hs.MSG_ENDED,
        hs.MSG_SETUP_FAILED,
        hs.MSG_SHUTDOWN,
        hs.MSG_LEASE_EXPIRED,
        hs.MSG_OUTPUTS_STORED,
        hs.MSG_NOTICE,
        hs.MSG_STARTED,
        hs.MSG_READY,
        hs.MSG_CHECKED,
    )
)
_TELEMETRY = frozenset((hs.MSG_HEARTBEAT, hs.MSG_PROGRESS))


class Outbox:
    """Ordered, durable, bounded.

    Thread-safe. ``on_put`` is called (by the putting thread) when there is something to send.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._messages: list[Message] = []  # remembered (acknowledged) ones, then those not acknowledged
        self._acked = 0
        self._last_seq = 0
        self._file: int | None = None
        self._degraded = False
        self.dropped = 0
        self.on_put: Callable[[], None] = lambda: None
        self._load()
        self._rewrite()

    def put(self, kind: str, **fields: Any) -> bool:
        """Queue a message. False if the bound was reached and this kind can be spared (counted in ``dropped``)."""
        with self._lock:
            unacked = self._last_seq - self._acked
            if unacked >= UNACKED_LIMIT and kind not in _ALWAYS:
                self.dropped += 1
                return False
            self._last_seq += 1
            message = {"seq": self._last_seq, "t": self._clock.utc(), "kind": kind, **fields}
            self._messages.append(message)
            self._append(message, sync=kind not in _TELEMETRY)
        self.on_put()
        return True

    def batch(self, limit: int = 200) -> list[Message]:
        """The oldest messages not acknowledged, at most ``limit``."""
        with self._lock:
            start = self._index_after(self._acked)
            return self._messages[start : start + limit]

    def unacked(self) -> int:
        """How many messages wait for an acknowledgement."""
        with self._lock:
            return self._last_seq - self._acked

    def has_unacked(self, kind: str) -> bool:
        """Whether a message of this kind still waits (telemetry is not queued twice)."""
        with self._lock:
            return any(message["kind"] == kind for message in self._messages[self._index_after(self._acked) :])

    def acknowledge(self, seq: int) -> None:
        """Everything up to ``seq`` is durable at the server.

        A lower value than before rewinds, as far as we remember.
        """
        with self._lock:
            if seq > self._last_seq:
                log.warning("the server acknowledged message %d of %d; ignored", seq, self._last_seq)
                return
            if seq == self._acked:
                return
            if seq < self._acked:
                oldest = self._messages[0]["seq"] if self._messages else self._last_seq + 1
                rewound = max(seq, oldest - 1)
                log.warning("the server went back to message %d; sending again from %d", seq, rewound + 1)
                self._acked = rewound
            else:
                self._acked = seq
            forget = self._index_after(self._acked) - REMEMBERED
            if forget > 0:
                del self._messages[:forget]
            self._append({"ack": self._acked}, sync=False)
            self._compact_if_large()

    def close(self) -> None:
        """Let go of the file; what is in it stays."""
        with self._lock:
            self._close()

    def _index_after(self, seq: int) -> int:
        first = self._messages[0]["seq"] if self._messages else seq + 1
        return max(0, min(len(self._messages), seq - first + 1))

    def _append(self, entry: dict[str, Any], *, sync: bool) -> None:
        if self._degraded:
            self._rewrite()  # everything, this entry included, if the disk has room again
            return
        try:
            if self._file is None:
                raise OSError("not open")
            data = json.dumps(entry).encode() + b"\n"
            if os.write(self._file, data) != len(data):
                raise OSError("short write")
            if sync:
                os.fdatasync(self._file)
        except OSError as error:
            self._degrade(error)

    def _compact_if_large(self) -> None:
        try:
            if self._file is not None and os.fstat(self._file).st_size > _COMPACT_BYTES:
                self._rewrite()
        except OSError as error:
            self._degrade(error)

    def _rewrite(self) -> None:
        """Write the whole state to a new file and put it in place of the old one."""
        temporary = self._path.with_suffix(".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb", opener=lambda path, flags: os.open(path, flags | os.O_CLOEXEC, 0o600)) as file:
                file.write(json.dumps({"ack": self._acked, "last": self._last_seq}).encode() + b"\n")
                for message in self._messages:
                    file.write(json.dumps(message).encode() + b"\n")
                file.flush()
                os.fdatasync(file.fileno())
            os.replace(temporary, self._path)
            self._close()
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            self._degrade(error)
            return
        if self._degraded:
            log.warning("the outbox is on disk again")
            self._degraded = False

    def _degrade(self, error: OSError) -> None:
        if not self._degraded:
            log.warning(
                "cannot write the outbox (%s): reports are kept in memory and would not survive the agent", error
            )
        self._degraded = True
        self._close()

    def _close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _load(self) -> None:
        try:
            lines = self._path.read_bytes().split(b"\n")
        except OSError:
            return
        for line in lines:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the torn last line of an agent that was killed: never sent
            if "ack" in entry:
                self._acked = int(entry["ack"])
                self._last_seq = max(self._last_seq, int(entry.get("last", 0)))
            elif not self._messages or entry.get("seq") == self._messages[-1]["seq"] + 1:
                self._messages.append(entry)
                self._last_seq = max(self._last_seq, int(entry["seq"]))
