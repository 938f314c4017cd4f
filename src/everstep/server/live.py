"""What the server needs of the rest of everstep, as protocols: the real parts are put in by ``daemon``, fakes by
tests.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from everstep.model.access import Actor
from everstep.model.events import Event
from everstep.model.ids import DeploymentId, InstanceId, JobId
from everstep.model.job import JobState
from everstep.model.ledger import LedgerLine
from everstep.model.offers import Offer
from everstep.model.task import Task
from everstep.ports import ProviderResource


class Seen(Protocol):
    """The newest telemetry of an instance."""

    @property
    def last_heard(self) -> float:
        """UTC seconds of its agent's last word."""
        ...

    @property
    def attempt(self) -> int | None:
        """Attempt that the values below belong to."""
        ...

    @property
    def step(self) -> int | None:
        """Last step reported."""
        ...

    @property
    def total(self) -> int | None:
        """Steps to do, if the script says so."""
        ...

    @property
    def metrics(self) -> Mapping[str, float]:
        """Whatever numbers the script reports."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What its agent warned of, each once."""
        ...


class LiveController(Protocol):
    """The controller, as far as the API needs it."""

    @property
    def states(self) -> Mapping[JobId, JobState]:
        """Every job known, live and ended."""
        ...

    @property
    def deployment(self) -> DeploymentId:
        """The installation."""
        ...

    @property
    def troubles(self) -> Mapping[str, str]:
        """What keeps providers from answering, by name; only those that have any."""
        ...

    def live_states(self) -> Sequence[JobState]:
        """Jobs that are not over, cheap to ask; ``states`` may have to unpack those that are."""
        ...

    def job_of(self, instance: InstanceId) -> JobId | None:
        """The job a living machine is for."""
        ...

    async def submit(self, task: Task, *, secrets: Mapping[str, str], actor: Actor, project: str) -> JobId:
        """Takes a task in."""
        ...

    async def ask(self, job: JobId, event: Event) -> JobState:
        """Puts a user's wish to a job. Raises NotFound, Conflict."""
        ...

    def observed(self, instance: InstanceId) -> Seen | None:
        """Telemetry of an instance."""
        ...

    async def offers(self) -> Sequence[Offer]:
        """What can be leased now."""
        ...

    @property
    def market(self) -> Sequence[Offer]:
        """What could be leased when the clouds were last asked."""
        ...

    @property
    def silent(self) -> Collection[str]:
        """Providers of which ``market`` does not have all: they did not answer, or not for every region."""
        ...

    async def preview(self, task: Task) -> Mapping[str, Any]:
        """What would be done with the task."""
        ...

    def unknown(self) -> Sequence[ProviderResource]:
        """What the sweep found and does not know."""
        ...

    async def end_unknown(self, ids: Sequence[str]) -> None:
        """Ends some of them."""
        ...


class LiveDesk(Protocol):
    """The agents' desk."""

    async def join(self, token: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Trades a join token for a credential. Raises NotAuthorized, HandshakeMismatch, Conflict, NotYet."""
        ...

    def bearer(self, credential: str) -> tuple[JobId, InstanceId]:
        """Job and machine that it was given out for. Raises NotAuthorized."""
        ...

    async def report(
        self, instance: InstanceId, messages: Sequence[Mapping[str, Any]], *, given_for: JobId | None = None
    ) -> Mapping[str, Any]:
        """Takes messages in; returns once they are durable."""
        ...

    async def orders(self, instance: InstanceId, *, seen: int, wait_s: float) -> Mapping[str, Any] | None:
        """The orders, as soon as their version differs from ``seen``; None after ``wait_s``."""
        ...


class BillAccount(Protocol):
    """Sums of a bill, USD and billed instance-seconds."""

    @property
    def cost_usd(self) -> float: ...  # noqa: D102
    @property
    def on_demand_cost_usd(self) -> float: ...  # noqa: D102
    @property
    def saved_usd(self) -> float: ...  # noqa: D102
    @property
    def saved_fraction(self) -> float: ...  # noqa: D102
    @property
    def useful_instance_s(self) -> float: ...  # noqa: D102
    @property
    def billed_instance_s(self) -> float: ...  # noqa: D102
    @property
    def lost_steps(self) -> int: ...  # noqa: D102
    @property
    def preemptions(self) -> int: ...  # noqa: D102
    @property
    def recoveries(self) -> int: ...  # noqa: D102
    @property
    def lines(self) -> Sequence[LedgerLine]: ...  # noqa: D102
    @property
    def overhead(self) -> Mapping[Any, float]: ...  # noqa: D102


class Bill(Protocol):
    """The ledger's arithmetic (``everstep.brain.economics.ledger``)."""

    def account(self, state: JobState, now: float) -> BillAccount:
        """Charges and their sums so far."""
        ...
