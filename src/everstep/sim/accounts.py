"""The bill of simulated jobs from their journal alone: the ledger, and transfers of checkpoints between regions."""

from __future__ import annotations

from collections.abc import Callable

from everstep.brain.economics.ledger import Account, account, lines
from everstep.model.job import AttemptState, JobState
from everstep.model.ledger import LedgerLine, LineKind
from everstep.model.offers import Market

_GB = 1e9


def bill(state: JobState, now: float, usd_per_gb: Callable[[str, str], float]) -> tuple[LedgerLine, ...]:
    """Every charge of a job up to ``now`` (UTC seconds), with a line for each checkpoint read from another region.

    Args:
        state: the job.
        now: UTC seconds.
        usd_per_gb: price of transfer from region to region.
    """
    return (*lines(state, now), *transfers(state, usd_per_gb))


def transfers(state: JobState, usd_per_gb: Callable[[str, str], float]) -> list[LedgerLine]:
    """One line per attempt that went on from a checkpoint that lies in another region.

    A checkpoint lies where the master of the attempt that saved it was; the master of the new one reads it.
    """
    by_no = {attempt.no: attempt for attempt in state.attempts}
    found = []
    for attempt in state.attempts:
        if attempt.base is None or attempt.restored_at is None:
            continue
        number, step = map(int, attempt.base.split(":"))
        saver = by_no.get(number)
        save = None if saver is None else next((s for s in saver.saves if s.step == step), None)
        if saver is None or save is None:
            continue
        source, target = _region(state, saver), _region(state, attempt)
        if source != target:
            found.append(_line(state, attempt, (source, target), save.bytes / _GB, usd_per_gb(source, target)))
    return found


def _region(state: JobState, attempt: AttemptState) -> str:
    return state.instances[attempt.members[0]].offer.region


def _line(
    state: JobState, attempt: AttemptState, way: tuple[str, str], gigabytes: float, usd_per_gb: float
) -> LedgerLine:
    machine = state.instances[attempt.members[0]]
    assert attempt.restored_at is not None
    return LedgerLine(
        kind=LineKind.EGRESS,
        job=state.id,
        resource="->".join(way),
        provider=machine.offer.provider,
        zone=machine.offer.zone,
        machine_type="",
        market=Market.ON_DEMAND,
        start=attempt.restored_at,
        end=attempt.restored_at,
        quantity=gigabytes,
        price_usd=usd_per_gb,
        cost_usd=gigabytes * usd_per_gb,
        price_source=f"{machine.offer.provider}: transfer",
        price_as_of=attempt.restored_at,
        instance=machine.instance,
    )


__all__ = ["Account", "account", "bill", "transfers"]
