"""The whole outside world on one page: Provider, Store, Clock, Blobs, AgentLink.

Every port has a conformance suite in ``everstep.testing``; an implementation is done when it passes. Errors are those
of ``everstep.model.errors``: each is a meaning with one documented reaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from everstep.model.causes import InstanceEnd, NoticeKind
from everstep.model.ids import DeploymentId, InstanceId, JobId, LaunchToken, StreamId, VolumeId
from everstep.model.offers import Market, Offer, Pool

# --- Provider --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OfferQuery:
    """Which offers are wanted; empty fields mean any."""

    regions: tuple[str, ...] = ()
    machine_types: tuple[str, ...] = ()

    def wants(self, offer: Offer) -> bool:
        """Whether the offer is one of them."""
        here = not self.regions or offer.region in self.regions
        return here and (not self.machine_types or offer.machine.name in self.machine_types)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """One machine to start.

    Attributes:
        token: idempotency token. The same token gives the same machine, however often it is asked.
        deployment, job, launch_no: go into the machine's tags.
        offer: what to lease, where, at what price.
        max_price_usd_per_h: never pay more (spot).
        user_data: environment of the agent at boot (``BOOT_*`` of the handshake).
        volume: disk to attach; must lie in the offer's zone.
        disk_gib: size of the machine's own disk; None = the type's usual.
        gang: how many machines work together with it, itself included. Those of a gang are placed close together where
            the provider can do that.
    """

    token: LaunchToken
    deployment: DeploymentId
    job: JobId
    launch_no: int
    offer: Offer
    max_price_usd_per_h: float | None
    user_data: Mapping[str, str]
    volume: VolumeId | None = None
    disk_gib: float | None = None
    gang: int = 1


@dataclass(frozen=True, slots=True)
class Launched:
    """What a launch gave: the provider's id, its start (UTC seconds) and the price that is billed."""

    token: LaunchToken
    instance: InstanceId
    started_at: float
    price_usd_per_h: float


class ResourceKind(StrEnum):
    """Everything that can cost."""

    INSTANCE = "instance"
    VOLUME = "volume"
    GROUP = "group"
    ADDRESS = "address"


@dataclass(frozen=True, slots=True)
class ProviderResource:
    """The provider's truth about one thing of ours.

    Attributes:
        id: the provider's id.
        deployment, job, launch_no, token: from its tags.
        alive: still there (an ended instance is listed for a while, as clouds do).
        started_at, ended_at: UTC seconds by the provider; they are what is billed.
        end: why it ended, if it did and the provider knows.
        attached_to: for volumes, the instance that has it.
        price_usd_per_h: what an hour of it costs.
        size_gib: for volumes.
    """

    kind: ResourceKind
    id: str
    deployment: DeploymentId
    job: JobId | None
    launch_no: int | None
    token: LaunchToken | None
    zone: str
    machine_type: str
    market: Market
    alive: bool
    started_at: float
    ended_at: float | None = None
    end: InstanceEnd | None = None
    attached_to: InstanceId | None = None
    price_usd_per_h: float = 0.0
    size_gib: float = 0.0

    @classmethod
    def of_launch(cls, request: LaunchRequest, launched: Launched) -> ProviderResource:
        """The machine that answers a launch, as the provider's list will show it."""
        return cls(
            kind=ResourceKind.INSTANCE,
            id=launched.instance,
            deployment=request.deployment,
            job=request.job,
            launch_no=request.launch_no,
            token=request.token,
            zone=request.offer.zone,
            machine_type=request.offer.machine.name,
            market=request.offer.market,
            alive=True,
            started_at=launched.started_at,
            price_usd_per_h=launched.price_usd_per_h,
        )


@dataclass(frozen=True, slots=True)
class VolumeSpec:
    """A disk to have: one per (job, slot), idempotent by ``name``."""

    deployment: DeploymentId
    job: JobId
    name: str
    zone: str
    size_gib: float


@dataclass(frozen=True, slots=True)
class Notice:
    """A warning as the provider's own API tells it (the agent hears most of them first)."""

    instance: InstanceId
    kind: NoticeKind
    deadline: float | None


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Price and availability history of pools since ``since`` (UTC seconds)."""

    pools: tuple[Pool, ...]
    since: float


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """At ``at`` (UTC seconds) the pool cost so much and had so many; None = not known."""

    pool: Pool
    at: float
    price_usd_per_h: float | None
    available: int | None


class Provider(Protocol):
    """A source of machines. Eight methods; every failure is one of the typed ``ProviderError``s."""

    name: str

    async def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """What can be leased now. Cached by the provider; cheap to call."""
        ...

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """Starts machines; idempotent per token.

        Args:
            requests: one per machine.
            all_or_nothing: either all are started or none is (then the error is raised).

        Returns:
            Per request, in order, the machine or the typed error.
        """
        ...

    async def resources(self, deployment: DeploymentId) -> Sequence[ProviderResource]:
        """The truth: everything of this deployment that costs, and instances that ended lately.

        Lately: for at least an hour after their end.
        """
        ...

    async def terminate(self, instances: Sequence[InstanceId]) -> None:
        """Ends machines. Unknown or ended ones are no error. Returns when the provider has accepted it."""
        ...

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        """The disk of that name, made if it is not there."""
        ...

    async def delete_volume(self, volume: VolumeId) -> None:
        """Deletes a disk; an unknown one is no error."""
        ...

    async def notices(self, deployment: DeploymentId) -> Sequence[Notice]:
        """Warnings in force for our machines."""
        ...

    async def history(self, query: HistoryQuery) -> Sequence[HistoryPoint]:
        """Past prices and availability, oldest first; empty if the provider keeps none."""
        ...


@runtime_checkable
class SharedFolder(Protocol):
    """Optional: the provider's machines see one common folder.

    NFS, EFS, Filestore; the local disk in a cloud in a box.
    """

    def shared_folder(self, zone: str) -> str | None:
        """Path of the folder on machines of ``zone``, None if there is none."""
        ...


@runtime_checkable
class OnThisHost(Protocol):
    """Optional: the provider's machines may be this very host, and reach a server on its loopback address.

    Machines of every other provider need a server that other hosts reach; without one nothing is leased.
    """

    @property
    def on_this_host(self) -> bool:
        """Whether all of them are."""
        ...


@runtime_checkable
class AnswersInPart(Protocol):
    """Optional: the provider's offers may lack those of some regions, because these do not answer.

    What such a region sells is then not known: nobody says that it is not on sale.
    """

    @property
    def unanswered(self) -> Sequence[str]:
        """Regions that the last offers lack."""
        ...


@runtime_checkable
class ProvesIdentity(Protocol):
    """Optional: machines prove who they are, by what the vendor signs about each of them.

    A join token travels in user data, which more can read than the machine itself.
    """

    async def check_identity(
        self, instance: InstanceId, offer: Offer, proof: Mapping[str, str], *, server_url: str
    ) -> None:
        """Returns if the proof is about that machine, which was leased by that offer.

        Args:
            proof: ``JOIN_IDENTITY`` of the handshake; empty if the machine showed none.
            server_url: what the machine was told to call (the audience of a proof that has one).

        Raises:
            NotAuthorized: it is not; the text says why and holds nothing of the proof that is secret.
        """
        ...


@runtime_checkable
class Metered(Protocol):
    """Optional: the provider keeps a meter of its own, so that our ledger can be checked against it."""

    async def meter(self, deployment: DeploymentId) -> Sequence[Mapping[str, Any]]:
        """One mapping per charge: kind, resource, start, end, quantity, price_usd, cost_usd, reclaimed."""
        ...


# --- Store -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the journal.

    Attributes:
        seq: position in the whole journal, from 1, without gaps between what is read in order.
        stream: the stream it belongs to.
        version: position in its stream, from 1.
        at: UTC seconds.
        kind: event type.
        schema: version of the event's schema; upcasters bring old ones up to date on reading.
        body: the event, JSON-ready.
    """

    seq: int
    stream: StreamId
    version: int
    at: float
    kind: str
    schema: int
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A line to append; ``seq`` and ``version`` are given by the store."""

    at: float
    kind: str
    schema: int
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Append:
    """Lines for one stream.

    ``expected_version`` is the version of its last line (0 = new stream); None = whatever it is.
    """

    stream: StreamId
    records: tuple[NewRecord, ...]
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of a lease: only the newest ``number`` of ``name`` may write."""

    name: str
    holder: str
    number: int


class Store(Protocol):
    """The journal, the only source of truth."""

    async def append(self, batch: Sequence[Append], fence: Fence | None) -> int:
        """Writes the whole batch durably in one transaction, or nothing of it.

        Returns:
            ``seq`` of the last line written (of the journal when the batch is empty).

        Raises:
            StaleFence: a newer lease was granted; VersionConflict: a stream moved on.
        """
        ...

    async def read(self, *, stream: StreamId | None = None, after: int = 0, limit: int = 10_000) -> Sequence[Record]:
        """Lines in order: of one stream with ``version > after``, or of the whole journal with ``seq > after``."""
        ...

    def follow(self, *, after: int = 0) -> AsyncIterator[Record]:
        """Every line with ``seq > after``, those to come included; ends when the store is closed."""
        ...

    async def save_snapshot(self, name: str, *, seq: int, body: bytes) -> None:
        """Keeps the state folded up to ``seq``; replaces the older one of that name. Can always be thrown away."""
        ...

    async def load_snapshot(self, name: str) -> tuple[int, bytes] | None:
        """The newest snapshot of that name, or None. A damaged one counts as none."""
        ...

    async def lease(self, name: str, holder: str, ttl_s: float) -> Fence:
        """Takes or renews a lease. A renewal by the same holder keeps its number; a new holder gets a higher one.

        Raises:
            LeaseHeld: another holder's lease has not run out.
        """
        ...

    async def close(self) -> None:
        """Flushes and closes; idempotent."""
        ...


# --- Clock -----------------------------------------------------------------------------------------------------------


class Clock(Protocol):
    """Time. Instants are UTC seconds, anchored once and moved on by the monotonic clock."""

    def now(self) -> float:
        """UTC seconds; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...


# --- Blobs -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlobInfo:
    """Name, size in bytes and time of the last change (UTC seconds) of an object."""

    key: str
    size: int
    modified_at: float


class BlobExists(Exception):
    """``put(if_absent=True)`` found an object of that name; nothing was changed."""


class BlobMissing(Exception):
    """There is no such object."""


class BlobsRefuse(Exception):
    """The store turns us away: keys or permissions are missing. Asking again does not help; the text is its own."""


class Blobs(Protocol):
    """An object store. Keys are ``/``-separated, relative, without ``..``. Every call may raise BlobsRefuse."""

    async def put(self, key: str, data: bytes, *, if_absent: bool = False) -> None:
        """Stores an object whole or not at all. Raises BlobExists when ``if_absent`` and it is there."""
        ...

    async def get(self, key: str) -> bytes:
        """The object. Raises BlobMissing."""
        ...

    async def list(self, prefix: str) -> Sequence[BlobInfo]:
        """Objects whose key starts with ``prefix``, in order of key."""
        ...

    async def delete(self, key: str) -> None:
        """Deletes; a missing object is no error."""
        ...

    async def presign(self, key: str, *, method: str, ttl_s: float) -> str | None:
        """A URL with which anyone may ``GET`` or ``PUT`` the object for ``ttl_s`` seconds.

        None if the store has no such thing.
        """
        ...


# --- AgentLink -------------------------------------------------------------------------------------------------------


class AgentLink(Protocol):
    """The way to the agents. They dial out, so sending means: keep the newest orders until the agent asks."""

    def send(self, instance: InstanceId, orders: Mapping[str, Any]) -> None:
        """Replaces the orders of an instance (``ORDERS_*`` of the handshake) and wakes its long poll."""
        ...

    def reports(self) -> AsyncIterator[tuple[InstanceId, Mapping[str, Any]]]:
        """Messages of agents (``MSG_*`` of the handshake), in the order each agent sent them."""
        ...
