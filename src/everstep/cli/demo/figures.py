"""What the evidence says, in numbers: the journal folded by production code, the bill beside the provider's meter."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.brain.economics.ledger import Account, account
from everstep.brain.lifecycle import submitted, transition
from everstep.model.errors import BadInput, Problem
from everstep.model.events import JobSubmitted, decode
from everstep.model.job import JobState
from everstep.model.ledger import LineKind

Line = Mapping[str, Any]
"""One line of the exported journal (``version, at, kind, body``) or of the meter."""

CENT_FRACTION_USD = 1e-6
"""Ledger and meter round in different ways; beyond this they differ."""
GOAL_BILLED_PER_USEFUL = 1.3


def fold(journal: Sequence[Line]) -> JobState:
    """The state of the job after all lines.

    Raises:
        BadInput: the lines are not the journal of one job, from its submission on.
    """
    if not journal:
        raise BadInput(Problem("journal.jsonl", "", "is empty"))
    first = decode(journal[0]["kind"], journal[0]["body"])
    if not isinstance(first, JobSubmitted):
        raise BadInput(Problem("journal.jsonl", "", f"begins with {journal[0]['kind']}, not with JobSubmitted"))
    state = submitted(first, journal[0]["at"])
    for line in journal[1:]:
        state = transition(state, decode(line["kind"], line["body"]), line["at"])
    return state


def weights_sha256(path: Path) -> str:
    """Digest of the raw bytes of all tensors of a state dict, in the order of their names."""
    import torch

    digest = hashlib.sha256()
    for name, tensor in sorted(torch.load(path, weights_only=True).items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def bill_differences(bill: Account, meter: Sequence[Line]) -> list[str]:
    """Where the ledger and the provider's own meter differ, one line each; none = they agree."""
    ours = {(line.kind.value, line.resource): line.cost_usd for line in bill.lines if line.cost_usd or line.quantity}
    theirs = {(str(line["kind"]), str(line["resource"])): float(line["cost_usd"]) for line in meter}
    found = []
    for key in sorted(ours.keys() | theirs.keys()):
        mine, other = ours.get(key, 0.0), theirs.get(key, 0.0)
        if abs(mine - other) > CENT_FRACTION_USD:
            found.append(f"{key[0]} {key[1]}: ledger ${mine:.6f}, meter ${other:.6f}")
    return found


def summary(
    journal: Sequence[Line], meter: Sequence[Line], *, weights_sha256: str, reference_sha256: str
) -> dict[str, Any]:
    """Every figure of ``summary.json``; a function of the files of the report alone.

    Money is USD of the box's market, ``*_instance_s`` are instance-seconds of the clock, ``wall_s`` runs from the
    submission to the job's end.
    """
    state = fold(journal)
    bill = account(state, journal[-1]["at"])
    billed = bill.billed_instance_s
    metered_s = sum(float(m["end"]) - float(m["start"]) for m in meter if m["kind"] == LineKind.COMPUTE and m["end"])
    return {
        "job": state.id,
        "phase": state.phase.value,
        "steps": state.attempt.step if state.attempt is not None else None,
        "preemptions": bill.preemptions,
        "recoveries": bill.recoveries,
        "attempts": bill.attempts,
        "lost_steps": bill.lost_steps,
        "weights_identical": weights_sha256 == reference_sha256,
        "weights_sha256": weights_sha256,
        "reference_sha256": reference_sha256,
        "cost_usd": bill.cost_usd,
        "on_demand_cost_usd": bill.on_demand_cost_usd,
        "saved_usd": bill.saved_usd,
        "saved_fraction": bill.saved_fraction,
        "billed_instance_s": billed,
        "useful_instance_s": bill.useful_instance_s,
        "billed_per_useful": billed / bill.useful_instance_s if bill.useful_instance_s else None,
        "overhead_instance_s": dict(bill.overhead),
        "metered_usd": sum(float(line["cost_usd"]) for line in meter),
        "metered_instance_s": metered_s,
        "ledger_differs": bill_differences(bill, meter),
        "wall_s": (state.ended_at or journal[-1]["at"]) - state.submitted_at,
    }


def failures(figures: Mapping[str, Any]) -> list[str]:
    """What must not be, one line each: why ``everstep demo`` exits with 1."""
    found = []
    if figures["phase"] != "succeeded":
        found.append(f"the job is {figures['phase']}, not succeeded")
    if not figures["weights_identical"]:
        found.append("the weights differ from those of the undisturbed run")
    found += [f"ledger and meter differ: {line}" for line in figures["ledger_differs"]]
    return found
