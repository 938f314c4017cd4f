"""How a simulated cloud behaves: delays, failures, rules. And how a simulated job works."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from everstep.model.offers import BillingRule


@dataclass(frozen=True, slots=True)
class Conditions:
    """The vendor's side. Chances are 0 to 1; seconds are of virtual time.

    Attributes:
        boot_s: median from the start of a machine to its agent's first word. boot_spread: sigma of its logarithm.
        boot_failure: chance that a machine never comes up.
        answer_s: how long a launch call takes. end_s: how long ending a machine takes.
        notice_s: from the warning to the end of a machine that is taken back. notice_chance: that there is a warning.
        launch_failure: chance that a launch finds no machine although the zone has some.
        loss_per_h: machines that die by themselves, per hour.
        max_life_s: spot machines are ended after so long; None = never.
        quota: machines that the account may hold; None = as many as it likes.
        burst, calls_per_s: launch calls that are answered at once, and how fast that allowance comes back; a call
            beyond it is throttled.
        told: offers tell how many machines there are; if not, only launching does.
        disk_usd_per_gib_h: price of disks.
    """

    boot_s: float = 75.0
    boot_spread: float = 0.25
    boot_failure: float = 0.0
    answer_s: float = 1.5
    end_s: float = 1.0
    notice_s: float = 120.0
    notice_chance: float = 1.0
    launch_failure: float = 0.0
    loss_per_h: float = 0.0
    max_life_s: float | None = None
    quota: int | None = None
    burst: int = 100
    calls_per_s: float = 5.0
    told: bool = True
    billing: BillingRule = field(default_factory=BillingRule)
    disk_usd_per_gib_h: float = 0.000137


@dataclass(frozen=True, slots=True)
class Workload:
    """What a job does, as the world knows it.

    Attributes:
        steps: in all. step_s: seconds of one at speed 1; a gang goes at the pace of its slowest machine.
        speeds: by machine type; 1 where it is not listed.
        setup_s: set-up on a new machine. start_s: from the order to start to ranks that could work.
        restore_s: reading a checkpoint within its region. transfer_gb_per_s: how fast it comes from another region.
        save_s: from the beginning of a save to its publication. stall_s: how long training stands still for it.
        checkpoint_gb: its size.
        crash_s: how long ranks take to notice that another one is gone.
    """

    steps: int
    step_s: float = 1.0
    speeds: Mapping[str, float] = field(default_factory=dict)
    setup_s: float = 30.0
    start_s: float = 15.0
    restore_s: float = 20.0
    transfer_gb_per_s: float = 0.25
    save_s: float = 15.0
    stall_s: float = 5.0
    checkpoint_gb: float = 10.0
    crash_s: float = 2.0


def chance(seed: int, *words: str) -> Random:
    """Chance that depends on what it is for alone, not on what was drawn before."""
    return Random("/".join((str(seed), *words)))
