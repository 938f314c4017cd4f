"""The life of a job's disks: one per slot, made when no folder is shared, kept while instances come and go."""

from __future__ import annotations

from dataclasses import replace

from everstep.model.events import VolumeDeleted, VolumeDeleteIntended, VolumeFailed, VolumeIntended, VolumeReady
from everstep.model.job import JobState, VolumeState


def intended(s: JobState, e: VolumeIntended, now: float) -> JobState:
    """A disk is about to be made."""
    return replace(s, volumes={**s.volumes, e.name: VolumeState(e.slot, e.name, e.zone, e.provider, e.size_gib)})


def ready(s: JobState, e: VolumeReady, now: float) -> JobState:
    """The disk is there."""
    if any(v.volume == e.volume for v in s.volumes.values()):
        return s  # told again, of a disk that may be deleted by now: it is not that of its successor

    def made(v: VolumeState) -> VolumeState:
        if not _is_meant(v, e) or v.volume is not None:
            return v
        return replace(
            v, failed_at=None, volume=e.volume, created_at=e.created_at, price_usd_per_gib_h=e.price_usd_per_gib_h
        )

    return replace(s, volumes={name: made(v) for name, v in s.volumes.items()})


def failed(s: JobState, e: VolumeFailed, now: float) -> JobState:
    """The disk could not be made; ``plan`` tries again after a pause."""

    def mark(v: VolumeState) -> VolumeState:
        return replace(v, failed_at=now) if _is_meant(v, e) and v.volume is None and v.failed_at is None else v

    tried = {n: mark(v) for n, v in s.volumes.items()}
    return replace(s, volumes=tried, alarm=f"no disk for slot {e.slot}: {e.message}")


def deleting(s: JobState, e: VolumeDeleteIntended, now: float) -> JobState:
    """The disk is about to be deleted."""
    return replace(
        s, volumes={n: replace(v, deleting=True) if v.volume == e.volume else v for n, v in s.volumes.items()}
    )


def deleted(s: JobState, e: VolumeDeleted, now: float) -> JobState:
    """The disk is gone."""
    gone = {n: replace(v, deleted_at=e.deleted_at) if v.volume == e.volume else v for n, v in s.volumes.items()}
    return replace(s, volumes=gone)


def _is_meant(v: VolumeState, e: VolumeReady | VolumeFailed) -> bool:
    return v.slot == e.slot and e.name in ("", v.name)
