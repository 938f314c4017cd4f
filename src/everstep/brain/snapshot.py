"""What a decision looks at: the input of ``plan``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from everstep.brain.pools import PoolBook
from everstep.brain.select import SELECTORS, Selector
from everstep.model.ids import DeploymentId, InstanceId
from everstep.model.job import JobState
from everstep.model.offers import Offer, Pool


@dataclass(frozen=True, slots=True)
class Heard:
    """Live telemetry of one machine.

    Last word (UTC seconds), last step and when it was done, total if the script tells.
    """

    last: float
    step: int | None = None
    step_at: float | None = None
    total: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How patient the brain is; seconds unless stated.

    Attributes:
        silence_s: no word for so long and the machine counts as lost, even if the provider does not say so.
        calm_s: a machine heard from so long after a failure is healthy: the failure was the user's.
        outputs_timeout_s: how long a machine may take to bring its outputs home.
        launches_per_minute: launch credits of each pool.
        patience_s: next look at the market while a job waits.
        check_limit_s: how long a gang may take to find out whether its machines reach each other.
        stop_margin_s: how much longer than the task's grace ranks may take to tell their end.
    """

    silence_s: float = 10.0
    calm_s: float = 2.0
    outputs_timeout_s: float = 120.0
    launches_per_minute: int = 60
    patience_s: float = 5.0
    check_limit_s: float = 120.0
    stop_margin_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a decision looks at.

    Attributes:
        deployment: part of every token.
        jobs: the jobs to look at: those that changed or whose wake-up time came.
        offers: the whole market.
        pools: what we remember of it.
        heard: telemetry by machine.
        shared_folders: zone -> folder that all machines of the zone see; missing = none.
        inflight: launches without an answer, by pool, over all jobs.
        selectors: policies by name.
        digest: ``offers_digest`` of the offers, where the caller has it at hand.
    """

    deployment: DeploymentId
    jobs: Sequence[JobState]
    offers: Sequence[Offer]
    pools: PoolBook = field(default_factory=PoolBook)
    heard: Mapping[InstanceId, Heard] = field(default_factory=dict)
    shared_folders: Mapping[str, str] = field(default_factory=dict)
    inflight: Mapping[Pool, int] = field(default_factory=dict)
    selectors: Mapping[str, Selector] = field(default_factory=lambda: SELECTORS)
    settings: Settings = Settings()
    digest: str = ""
