"""Checkpoints of a job as the server knows them: which were published, which a new attempt could start from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from everstep.client import results as r
from everstep.model.errors import Conflict, EverstepError, NotFound
from everstep.model.job import AttemptState, GangPhase, JobState

_NEAREST = 6

_Place = tuple[int, int]
"""(attempt, step)."""


def checkpoints(state: JobState) -> tuple[r.CheckpointView, ...]:
    """The checkpoints published, in order of (attempt, step).

    Visible is what the chain of bases shows: all of the newest attempt; of the one it started from, up to its base;
    and so on. An attempt that never got as far as restoring froze nothing.

    Kept is reckoned, not looked up: the folder is on the machines. After each save the library deletes all but the
    ``checkpoint.keep`` newest that its attempt sees and the one that attempt began from.
    """
    lineage = _Lineage.of(state)
    kept = _kept(state, lineage)
    return tuple(
        r.CheckpointView(
            attempt=a.no,
            step=s.step,
            at=s.at,
            bytes=s.bytes,
            durable=s.durable,
            visible=lineage.shows(state.attempt_no, (a.no, s.step)),
            kept=(a.no, s.step) in kept,
            keep=state.task.checkpoint.keep,
        )
        for a in state.attempts
        for s in sorted(a.saves, key=lambda s: s.step)
    )


def restorable(state: JobState, step: int, attempt: int | None) -> str:
    """The checkpoint of a step that a new attempt can start from, ``attempt:step``; the newest if several have it.

    Raises:
        NotFound: there never was one. Conflict: there was, and nothing can start from it any more. Both name the
            nearest steps that can be restored.
    """
    every = checkpoints(state)
    there = [c for c in every if c.restorable]
    named = [c for c in every if c.step == step and attempt in (None, c.attempt)]
    good = [c for c in named if c.restorable]
    if good:
        return f"{good[-1].attempt}:{step}"
    steps = sorted({c.step for c in there}, key=lambda s: (abs(s - step), s))
    shown = ", ".join(map(str, sorted(steps[:_NEAREST])))
    which = "the nearest steps that" if len(steps) > _NEAREST else "these steps"
    raise _refusal(state, named, step, attempt, f"{which} can be restored: {shown}" if steps else "there is none")


def _refusal(
    state: JobState, named: list[r.CheckpointView], step: int, attempt: int | None, rest: str
) -> EverstepError:
    if not named:
        of = f" of attempt {attempt}" if attempt is not None else ""
        return NotFound(f"job {state.id} has no checkpoint of step {step}{of}; {rest}")
    last = named[-1]
    why = f"was deleted (keep {last.keep})" if last.visible else "is not visible: its attempt was superseded"
    return Conflict(f"checkpoint {last.attempt}:{last.step} of job {state.id} {why}; {rest}")


@dataclass(frozen=True, slots=True)
class _Lineage:
    """Who began from where: base by attempt, None from nothing.

    An attempt that ended without having told of a base hands on to the one before it: it froze nothing, or if it did,
    and died before it could tell, the next one finds its record.
    """

    bases: Mapping[int, _Place | None]

    @staticmethod
    def of(state: JobState) -> _Lineage:
        return _Lineage({a.no: _base(a) for a in state.attempts})

    def chain(self, head: int) -> Iterator[tuple[int, int, int | None]]:
        """(attempt, after, upto) from ``head`` back: steps s with after < s <= upto are seen; upto None = all."""
        no, upto = head, None
        while no in self.bases:
            base = self.bases[no]
            yield no, base[1] if base is not None and base[0] < no else -1, upto
            if base is None or base[0] >= no:
                return
            # Handed on: nothing was frozen in between, so the one before is seen to its end.
            no, upto = base[0], (None if base[1] < 0 else base[1])

    def shows(self, head: int, place: _Place) -> bool:
        """Whether ``head`` sees a checkpoint."""
        return any(
            no == place[0] and after < place[1] and (upto is None or place[1] <= upto)
            for no, after, upto in self.chain(head)
        )


def _base(a: AttemptState) -> _Place | None:
    coming = a.base_wanted if a.phase is not GangPhase.ENDED else ""
    text = a.base if a.restored_at is not None else coming
    if text:
        attempt, _, step = text.partition(":")
        return int(attempt), int(step)
    return None if a.restored_at is not None else (a.no - 1, -1)


def _kept(state: JobState, lineage: _Lineage) -> frozenset[_Place]:
    """What is left when each attempt collected after each of its saves (``train.lineage.garbage``)."""
    there: set[_Place] = set()
    for a in state.attempts:
        base = lineage.bases[a.no]
        if base is not None and a.restored_at is not None:
            there.add(base)  # it was read, so it was there
        for save in sorted(a.saves, key=lambda s: s.step):
            there.add((a.no, save.step))
            seen = _newest(p for p in there if lineage.shows(a.no, p))
            there &= {*seen[: state.task.checkpoint.keep], *([base] if base is not None else [])}
    return frozenset(there)


def _newest(places: Iterable[_Place]) -> list[_Place]:
    return sorted(places, reverse=True)
