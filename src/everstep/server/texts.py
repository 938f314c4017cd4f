"""Events in one line for people: a sentence per kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from everstep.model import events as ev
from everstep.model.causes import NoticeKind
from everstep.model.events import Event
from everstep.model.offers import Offer
from everstep.model.units import format_count, format_money, format_price


def text_of(event: Event) -> str:
    """What happened, in one line."""
    sentence = TEXTS[type(event)](event)
    return " ".join(sentence.split())


_CONCLUDED: dict[str, str] = {
    ev.CauseSettled.__name__: "settle why an attempt ended",
    ev.AttemptOverdue.__name__: "wait for an attempt no longer",
    ev.InstanceSilent.__name__: "count on a silent machine no longer",
    ev.KeepExpired.__name__: "let go of machines that were kept for debugging",
    ev.BudgetSpent.__name__: "pause, the budget is spent",
    ev.DeadlineAlarm.__name__: "raise the alarm, the deadline cannot be kept",
    ev.GaveUp.__name__: "give up",
}
_FULL_DIGITS = re.compile(r"\$(\d+\.\d{4})(?!\d)")


def said(line: str) -> str:
    """A line of a decision as people read it.

    The journal has it as the brain wrote it, since journals of old are replayed word by word: a fact that was concluded
    by the kind of its event alone, amounts with all their digits.
    """
    if line in ev.KINDS:
        return _CONCLUDED.get(line) or f"note: {ev.words_of(line)}"
    return _FULL_DIGITS.sub(lambda found: format_money(float(found[1])), line)


def _offer(offer: Offer) -> str:
    return f"{offer.machine.name} in {offer.zone} ({offer.market}, {format_price(offer.price_usd_per_h)})"


def _by(actor: str, reason: str = "") -> str:
    return f" by {actor}" + (f": {reason}" if reason else "")


def utc(at: float) -> str:
    """``2026-11-20 18:00:00 UTC``; a time that no calendar has is told in seconds."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at:.0f} s since 1970"


def _clock(at: float | None) -> str:
    return "at a time it does not tell" if at is None else f"at {utc(at)}"


def _size(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _last_line(tail: str) -> str:
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return f": {lines[-1][:200]}" if lines else ""


def _submitted(e: ev.JobSubmitted) -> str:
    size = e.task.gang.size
    return f"task '{e.task.name}' submitted by {e.user} ({size} machine{'s' if size != 1 else ''}, spot: {e.task.spot})"


def _intended(e: ev.LaunchIntended) -> str:
    disk = f", with disk {e.volume}" if e.volume else ""
    return f"launch {e.launch_no} for slot {e.slot}: {_offer(e.offer)}{disk}"


def _ended(e: ev.InstanceEnded) -> str:
    at_step = f", last step {e.last_step}" if e.last_step is not None else ""
    return f"machine {e.instance} ended: {e.end.replace('_', ' ')}{at_step}"


def _notice(e: ev.NoticeReceived) -> str:
    will = {
        NoticeKind.REBALANCE: "may be taken back soon",
        NoticeKind.TERMINATE: "will be taken back",
        NoticeKind.MAINTENANCE: "will be stopped for maintenance",
        NoticeKind.MAX_LIFE: "reaches its maximum life",
    }[e.notice]
    when = f" {_clock(e.deadline)}" if e.deadline is not None else ""
    return f"machine {e.instance} {will}{when} (told by {e.source})"


def _silent(e: ev.InstanceSilent) -> str:
    return f"no word from machine {e.instance} since {_clock(e.last_heard).removeprefix('at ')}"


def _checked(e: ev.PeersChecked) -> str:
    if e.unreachable:
        return f"machine {e.instance} cannot reach {', '.join(e.unreachable)} (attempt {e.attempt})"
    return f"machine {e.instance} reaches every other (attempt {e.attempt})"


def _progress(e: ev.ProgressSeen) -> str:
    return f"attempt {e.attempt} makes progress: step {e.step}" + (f" of {e.total}" if e.total is not None else "")


def _restored(e: ev.Restored) -> str:
    missed = f", NOT from {e.missed}, which was asked for and is gone" if e.missed else ""
    if e.base is None:
        return f"attempt {e.attempt} starts from scratch{missed}"
    return f"attempt {e.attempt} goes on from checkpoint {e.base} (restored in {e.restore_s:.1f} s){missed}"


def _saved(e: ev.CheckpointSaved) -> str:
    held = "" if e.durable else ", NOT durable yet"
    cost = f"{_size(e.bytes)} in {e.save_s:.1f} s, training stood still {e.stall_s:.2f} s"
    return f"checkpoint {e.attempt}:{e.step} published ({cost}{held})"


def _ranks_ended(e: ev.RanksEnded) -> str:
    where = f"ranks of machine {e.instance} (attempt {e.attempt})"
    if e.outcome == "failed":
        who = f"rank {e.failed_rank}" if e.failed_rank is not None else "a rank"
        how = f"was killed by signal {e.signal}" if e.signal else f"exited with {e.rc}"
        return f"{where} failed: {who} {how}{_last_line(e.tail)}"
    words = {"ok": "finished well", "saved": "saved and stopped", "stopped": "were stopped"}
    at_step = f" at step {e.step}" if e.step is not None else ""
    return f"{where} {words.get(e.outcome, e.outcome)}{at_step}"


def _outputs(e: ev.OutputsStored) -> str:
    if e.error:
        return f"outputs of machine {e.instance} did not come home: {e.error}"
    return f"outputs of machine {e.instance} came home: {format_count(e.files, 'file')}, {_size(e.bytes)}"


def _settled(e: ev.CauseSettled) -> str:
    return f"attempt {e.attempt} ended by {e.cause.replace('_', ' ')}: {e.evidence}"


def _decided(e: ev.Decided) -> str:
    parts = [said(line) for line in e.effects or e.reasons[:1]]
    if e.wait:
        parts.append(f"waiting: {said(e.wait)}")
    return "decided: " + ("; ".join(parts) or "nothing to do")


def _volume(e: ev.VolumeIntended) -> str:
    return f"make disk {e.name} for slot {e.slot} in {e.zone} ({e.size_gib:.4g} GiB)"


def _joined(e: ev.InstanceJoined) -> str:
    gpus = f", {e.gpus} GPU{'s' if e.gpus != 1 else ''}" if e.gpus else ""
    return f"machine {e.instance} is up at {e.address}{gpus}"


TEXTS: dict[type[Event], Callable[[Any], str]] = {
    ev.JobSubmitted: _submitted,
    ev.CancelRequested: lambda e: f"cancel asked{_by(e.actor, e.reason)}",
    ev.PauseRequested: lambda e: f"pause asked{_by(e.actor, e.reason)}",
    ev.UnpauseRequested: lambda e: f"unpause asked{_by(e.actor)}",
    ev.RetryRequested: lambda e: f"retry asked{_by(e.actor)}",
    ev.RestoreRequested: lambda e: f"restore of checkpoint {e.base} asked{_by(e.actor)}",
    ev.ExecRequested: lambda e: f"command {e.exec_id} asked{_by(e.actor)}: {e.command}",
    ev.LaunchIntended: _intended,
    ev.LaunchSucceeded: lambda e: f"machine {e.instance} started at {format_price(e.price_usd_per_h)}",
    ev.LaunchFailed: lambda e: f"launch refused, {e.error.replace('_', ' ')}: {e.message}",
    ev.TerminateIntended: lambda e: f"end machine {e.instance}: {e.reason}",
    ev.InstanceEnded: _ended,
    ev.VolumeIntended: _volume,
    ev.VolumeReady: lambda e: f"disk {e.volume} is there for slot {e.slot}",
    ev.VolumeFailed: lambda e: f"no disk for slot {e.slot}, {e.error.replace('_', ' ')}: {e.message}",
    ev.VolumeDeleteIntended: lambda e: f"delete disk {e.volume}",
    ev.VolumeDeleted: lambda e: f"disk {e.volume} is gone",
    ev.InstanceJoined: _joined,
    ev.InstanceBarred: lambda e: f"the agent of machine {e.instance} was not let in: {e.why}",
    ev.InstanceReady: lambda e: f"machine {e.instance} is ready (setup took {e.setup_s:.1f} s)",
    ev.SetupFailed: lambda e: f"setup failed on machine {e.instance} with exit code {e.rc}{_last_line(e.tail)}",
    ev.NoticeReceived: _notice,
    ev.InstanceSilent: _silent,
    ev.InstanceHeard: lambda e: f"machine {e.instance} is heard again",
    ev.ShutdownReported: lambda e: f"machine {e.instance} says it goes down: {e.how}",
    ev.PeersChecked: _checked,
    ev.RanksStarted: lambda e: (
        f"{e.ranks} rank{'s' if e.ranks != 1 else ''} started on machine {e.instance} (attempt {e.attempt})"
    ),
    ev.ProgressSeen: _progress,
    ev.Restored: _restored,
    ev.CheckpointSaved: _saved,
    ev.CheckpointAudited: lambda e: e.text or f"audit of save {e.save}: {e.verdict}",
    ev.FolderGrew: lambda e: f"the checkpoint folder grew in attempt {e.attempt} (machine {e.instance})",
    ev.RanksEnded: _ranks_ended,
    ev.LeaseExpired: lambda e: (
        f"machine {e.instance} heard nothing from the server for a whole lease; "
        f"its ranks (attempt {e.attempt}) saved and stopped"
    ),
    ev.OutputsStored: _outputs,
    ev.CauseSettled: _settled,
    ev.AttemptsSkipped: lambda e: f"the next attempt is {e.to + 1}: {e.text}",
    ev.AttemptOverdue: lambda e: f"attempt {e.attempt} counts as ended: {e.text}",
    ev.KeepExpired: lambda e: "machines kept for debugging may go now",
    ev.BudgetSpent: lambda e: f"the budget is spent ({format_money(e.cost_usd)})",
    ev.DeadlineAlarm: lambda e: f"the deadline cannot be kept, earliest finish {_clock(e.earliest_finish)}: {e.text}",
    ev.GaveUp: lambda e: f"gave up: {e.reason}",
    ev.Decided: _decided,
    ev.Rejected: lambda e: f"a move that cannot be: {e.kind} in phase {e.phase}; the job is held back: {e.text}",
}
"""Every kind of event."""
