"""What a controller is given: how patient it is, and where secrets are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from everstep.brain.plan import Settings
from everstep.model.ids import JobId


class Vault(Protocol):
    """Where the values of secrets are kept, apart from the journal."""

    def put(self, job: JobId, values: Mapping[str, str]) -> None:
        """Keeps the values of a job."""
        ...

    def get(self, job: JobId) -> Mapping[str, str]:
        """The values of a job."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """How the loop runs; seconds.

    Attributes:
        lease_s: told to agents; a shorter outage of the server is invisible to training (rule 3).
        heartbeat_s: told to agents.
        poll_s: between two looks at a provider's list, unless the provider names its own.
        offers_s: between two looks at the market.
        settings: patience of the brain.
        snapshot_every: journal lines between snapshots.
    """

    lease_s: float = 900.0
    heartbeat_s: float = 1.0
    poll_s: float = 5.0
    offers_s: float = 5.0
    settings: Settings = field(default_factory=Settings)
    snapshot_every: int = 5_000
