"""Agents' messages to events: the edge where shapes are checked, so that everything behind it can trust them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from everstep.model import handshake as h
from everstep.model.causes import NoticeKind
from everstep.model.errors import BadInput, Problem
from everstep.model.events import (
    CheckpointAudited,
    CheckpointSaved,
    Event,
    FolderGrew,
    InstanceReady,
    LeaseExpired,
    NoticeReceived,
    OutputsStored,
    PeersChecked,
    RanksEnded,
    RanksStarted,
    Restored,
    SetupFailed,
    ShutdownReported,
)
from everstep.model.ids import InstanceId

Message = Mapping[str, Any]
_TAIL = 4000


def _int(m: Message, key: str) -> int:
    return int(m[key])


def _maybe_int(m: Message, key: str) -> int | None:
    value = m.get(key)
    return None if value is None else int(value)


def finite(value: Any) -> float:
    """A number that a journal can hold. Raises ValueError or TypeError, for NaN and infinity too."""
    number = float(value)
    if not math.isfinite(number):
        raise ValueError(f"{number} is no number to reckon with")
    return number


def _float(m: Message, key: str) -> float:
    return finite(m.get(key) or 0.0)


def _maybe_float(m: Message, key: str) -> float | None:
    value = m.get(key)
    return None if value is None else finite(value)


def _text(m: Message, key: str, limit: int = 500) -> str:
    value = m.get(key)
    return "" if value is None else str(value)[-limit:]


def _ready(i: InstanceId, m: Message) -> Event:
    return InstanceReady(i, _int(m, "port"), _float(m, "setup_s"))


def _setup_failed(i: InstanceId, m: Message) -> Event:
    return SetupFailed(i, _int(m, "rc"), _text(m, "tail", _TAIL))


def _checked(i: InstanceId, m: Message) -> Event:
    return PeersChecked(i, _int(m, "attempt"), tuple(str(a) for a in m.get("unreachable") or ()))


def _started(i: InstanceId, m: Message) -> Event:
    return RanksStarted(i, _int(m, "attempt"), _int(m, "ranks"), _float(m, "spawned_at"))


def _place(m: Message, key: str) -> str | None:
    """A checkpoint, ``attempt:step``."""
    value = m.get(key)
    if value is None:
        return None
    attempt, _, step = str(value).partition(":")
    return f"{int(attempt)}:{int(step)}"


def _restored(i: InstanceId, m: Message) -> Event:
    missed = _place(m, "missed") or ""
    return Restored(i, _int(m, "attempt"), _place(m, "base"), _float(m, "restore_s"), missed)


def _saved(i: InstanceId, m: Message) -> Event:
    return CheckpointSaved(
        instance=i,
        attempt=_int(m, "attempt"),
        step=_int(m, "step"),
        bytes=_maybe_int(m, "bytes") or 0,
        save_s=_float(m, "save_s"),
        stall_s=_float(m, "stall_s"),
        durable=bool(m.get("durable", True)),
    )


def _audited(i: InstanceId, m: Message) -> Event:
    attempt, _, step = str(m["save"]).partition(":")
    verdict = str(m["verdict"])
    if verdict not in ("exact", "differs", "refuses", "unknown"):
        raise ValueError(f"unknown verdict {verdict!r}")
    return CheckpointAudited(i, _int(m, "attempt"), f"{int(attempt)}:{int(step)}", verdict, _text(m, "text"))


def _ended(i: InstanceId, m: Message) -> Event:
    outcome = str(m["outcome"])
    if outcome not in (h.OUTCOME_OK, h.OUTCOME_FAILED, h.OUTCOME_SAVED, h.OUTCOME_STOPPED):
        raise ValueError(f"unknown outcome {outcome!r}")
    return RanksEnded(
        instance=i,
        attempt=_int(m, "attempt"),
        outcome=outcome,
        rc=_maybe_int(m, "rc") or 0,
        signal=_maybe_int(m, "signal"),
        failed_rank=_maybe_int(m, "failed_rank"),
        step=_maybe_int(m, "step"),
        total=_maybe_int(m, "total"),
        first_step_at=_maybe_float(m, "first_step_at"),
        last_step_at=_maybe_float(m, "last_step_at"),
        steps_done=_maybe_int(m, "steps_done") or 0,
        stall_s=_float(m, "stall_s"),
        tail=_text(m, "tail", _TAIL),
        agent_killed=m.get("agent_killed") is True,
    )


def _notice(i: InstanceId, m: Message) -> Event:
    return NoticeReceived(i, NoticeKind(str(m["notice"])), _maybe_float(m, "deadline"))


def _shutdown(i: InstanceId, m: Message) -> Event:
    return ShutdownReported(i, _text(m, "how"))


def _outputs(i: InstanceId, m: Message) -> Event:
    return OutputsStored(i, _maybe_int(m, "files") or 0, _maybe_int(m, "bytes") or 0, _text(m, "error"))


def _lease(i: InstanceId, m: Message) -> Event:
    return LeaseExpired(i, _int(m, "attempt"))


def _grew(i: InstanceId, m: Message) -> Event:
    return FolderGrew(i, _int(m, "attempt"))


JOURNALLED: dict[str, Callable[[InstanceId, Message], Event]] = {
    h.MSG_READY: _ready,
    h.MSG_SETUP_FAILED: _setup_failed,
    h.MSG_CHECKED: _checked,
    h.MSG_STARTED: _started,
    h.MSG_RESTORED: _restored,
    h.MSG_SAVED: _saved,
    h.MSG_AUDITED: _audited,
    h.MSG_ENDED: _ended,
    h.MSG_NOTICE: _notice,
    h.MSG_SHUTDOWN: _shutdown,
    h.MSG_OUTPUTS_STORED: _outputs,
    h.MSG_LEASE_EXPIRED: _lease,
    h.MSG_FOLDER_GROWTH: _grew,
}
"""Kinds that become events."""

TELEMETRY = frozenset({h.MSG_HEARTBEAT, h.MSG_PROGRESS, h.MSG_EXEC_ENDED})
"""Kinds that do not."""


def to_event(instance: InstanceId, message: Message) -> Event | None:
    """The event that a message tells, None for telemetry.

    Raises:
        BadInput: an unknown kind, or a field that is missing or of the wrong form.
    """
    kind = str(message.get("kind"))
    make = JOURNALLED.get(kind)
    if make is None:
        if kind in TELEMETRY:
            return None
        raise BadInput(Problem("report", "kind", f"unknown message kind {kind!r}"))
    try:
        return make(instance, message)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise BadInput(Problem("report", kind, f"malformed message: {error!r}")) from error
