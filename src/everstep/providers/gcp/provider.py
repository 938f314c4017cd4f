"""The eight methods of ``Provider`` on Google Compute Engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from random import Random
from typing import Any

from everstep.model.errors import BadInput, BadRequest, Problem
from everstep.model.ids import DeploymentId, InstanceId, VolumeId
from everstep.model.offers import Offer
from everstep.ports import (
    HistoryPoint,
    HistoryQuery,
    Launched,
    LaunchRequest,
    Notice,
    OfferQuery,
    ProviderResource,
    VolumeSpec,
)
from everstep.providers import leads_here
from everstep.providers.finding import Finding
from everstep.providers.gcp import doctor, naming
from everstep.providers.gcp.calls import NAMES_A_CALL, Calls, filter_of_names
from everstep.providers.gcp.disks import Disks
from everstep.providers.gcp.errors import GONE, code_of
from everstep.providers.gcp.groups import Groups
from everstep.providers.gcp.identity import CERTS_URL, IdentityCheck
from everstep.providers.gcp.launching import Launching
from everstep.providers.gcp.listing import Listing
from everstep.providers.gcp.market import NOTICE_S, GceMarket
from everstep.providers.gcp.settings import checked
from everstep.providers.gcp.sweep import GcpSweeper
from everstep.providers.sharing import Shared


class GcpProvider:
    """Machines of Compute Engine, spot and on demand; persistent disks. Implements ``Provider``.

    Which of the vendor's codes has which meaning is the table of ``errors.py``, those inside operations included.
    Prices come from Google's billing catalog, spot ones too.

    Args:
        project: id of the project that pays.
        regions: where to lease, ``[us-central1]``.
        types: what to lease, names with ``*``; accelerators that are attached after a plus: ``[g2-standard-8,
            n1-standard-8+T4:1]``.
        images: ``gpu`` and ``cpu``: ``projects/P/global/images/family/F``; default: Ubuntu with NVIDIA's driver, and
            Ubuntu.
        subnetworks: by region; default: the network ``default``.
        external_address: whether machines have an address of their own; without one the network needs Cloud NAT.
        service_account: of the machines; they get its identity token, and may write logs.
        disk_type: ``pd-balanced``, ``pd-ssd`` or ``pd-standard``.
        boot_disk_gib: size of the disk a machine boots from, unless the task says otherwise.
        keep: what survives a preemption: ``volume``, a disk beside the one it boots from, or ``boot_disk``, the disk it
            boots from, with everything that was installed.
        legacy_preemptible: lease preemptible machines of the old kind, which live for 24 hours at most.
        compact_placement: whether the machines of a gang are placed close together, where their type can be.
        name: name of the provider in offers and pools.
        endpoint_url: where to call instead of Google, for fakes.
        credentials: of google-auth; default: the vendor's own chain.
        identity_certs_url: where the keys are that verify machines' identity tokens; default: Google's.
        notice_s: how long before its end a spot machine is warned.
        look_s: between two looks at something that changes.
        now: UTC seconds.
        rng: for jitter.
    """

    poll_s = 10.0
    """How often the controller asks for the list: notices come from the agents, at once."""

    def __init__(
        self,
        project: str,
        regions: Sequence[str],
        types: Sequence[str],
        *,
        images: Mapping[str, str] | None = None,
        subnetworks: Mapping[str, str] | None = None,
        external_address: bool = True,
        service_account: str = "default",
        disk_type: str = "pd-balanced",
        boot_disk_gib: int = 50,
        keep: str = "volume",
        legacy_preemptible: bool = False,
        compact_placement: bool = True,
        name: str = "gcp",
        endpoint_url: str | None = None,
        credentials: Any = None,
        identity_certs_url: str = CERTS_URL,
        notice_s: float = NOTICE_S,
        look_s: float = 2.0,
        now: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        if not _is_installed():
            fix = "pip install 'everstep[gcp]'"
            raise BadInput(Problem("provider", name, "needs google-cloud-compute, which is not installed", fix))
        self.name = name
        self.settings = checked(
            project=project,
            regions=regions,
            types=types,
            images=images,
            subnetworks=subnetworks,
            external_address=external_address,
            service_account=service_account,
            disk_type=disk_type,
            boot_disk_gib=boot_disk_gib,
            keep=keep,
            legacy_preemptible=legacy_preemptible,
            compact_placement=compact_placement,
        )
        self.calls = Calls(project, endpoint_url=endpoint_url, credentials=credentials, look_s=look_s, rng=rng)
        # See ``OnThisHost``: machines of a fake that is served here are processes of this computer.
        self.on_this_host = leads_here(endpoint_url)
        self.now = now
        self._look_s = look_s
        self._identity = IdentityCheck(project, identity_certs_url)
        self._put_together(look_s, notice_s)

    def _put_together(self, look_s: float, notice_s: float) -> None:
        settings, now = self.settings, self.now
        legacy = settings.legacy_preemptible
        own_gib = 0 if settings.keep == "boot_disk" else settings.boot_disk_gib
        self._market = GceMarket(
            self.name,
            self.calls,
            regions=settings.regions,
            types=settings.types,
            legacy=legacy,
            boot_disk=(settings.disk_type, own_gib),
            now=now,
        )
        self._disks = Disks(self.calls, settings, look_s=look_s, now=now)
        groups = Groups(self.calls, wanted=settings.compact_placement, look_s=look_s)
        self._listing = Listing(
            self.calls,
            self._disks,
            groups,
            disk_price=self._market.disk_usd_per_gib_h,
            put_away=self.terminate,
            notice_s=notice_s,
            legacy=legacy,
            now=now,
        )
        self._listed = Shared(self._listing.resources)
        self._launching = Launching(
            self.calls,
            settings,
            self._disks,
            groups,
            self._market,
            started=self._listing.started,
            ended=self._listing.taken_back,
            look_s=look_s,
        )

    async def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """See ``Provider.offers``."""
        return [offer for offer in await self._market.offers() if query.wants(offer)]

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """See ``Provider.launch``. It returns when the machines run, since only then it is known that there is room."""
        return await self._launching.launch(requests, all_or_nothing=all_or_nothing)

    async def resources(self, deployment: DeploymentId) -> Sequence[ProviderResource]:
        """See ``Provider.resources``; what ended is listed for two hours. Machines that have stopped are deleted."""
        return await self._listed.get(deployment)

    async def terminate(self, instances: Sequence[InstanceId]) -> None:
        """See ``Provider.terminate``: deletes them."""
        wanted = list(dict.fromkeys(instances))
        unknown = [i for i in wanted if self._listing.zone(i) is None]
        zones = {i: zone for i in wanted if (zone := self._listing.zone(i)) is not None}
        for first in range(0, len(unknown), NAMES_A_CALL):
            some = [i for i in unknown[first : first + NAMES_A_CALL] if i.replace("-", "").isalnum()]
            names = filter_of_names(some)
            for machine in await self.calls.everything("instances", "instances", filter=names) if some else ():
                zones[InstanceId(machine["name"])] = naming.last(machine["zone"])
        await asyncio.gather(*(self._delete(zone, instance) for instance, zone in zones.items()))

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        """See ``Provider.ensure_volume``; names are per deployment and zone."""
        return await self._disks.ensure(spec)

    async def delete_volume(self, volume: VolumeId) -> None:
        """See ``Provider.delete_volume``; BadRequest while a machine has it, unless that is on its way out."""
        await self._disks.delete(volume)

    async def notices(self, deployment: DeploymentId) -> Sequence[Notice]:
        """See ``Provider.notices``: spot machines whose preemption has begun, and old ones whose life ends soon."""
        return await self._listing.notices(deployment)

    async def history(self, query: HistoryQuery) -> Sequence[HistoryPoint]:
        """See ``Provider.history``: spot list prices; the vendor does not tell availability."""
        return await self._market.history(query.pools, query.since)

    async def check_identity(
        self, instance: InstanceId, offer: Offer, proof: Mapping[str, str], *, server_url: str
    ) -> None:
        """See ``ProvesIdentity``: the identity token that Google signs."""
        await self._identity.check(instance, offer, proof, server_url=server_url)

    async def examine(self) -> Sequence[Finding]:
        """What is missing, and how to mend it (see ``doctor``). Makes nothing."""
        return await doctor.examine(self)

    def sweeper(self) -> GcpSweeper:
        """See ``leftovers.Swept``."""
        return GcpSweeper(self.calls, look_s=self._look_s, now=self.now)

    def close(self) -> None:
        """Makes no more calls."""
        self.calls.close()

    async def _delete(self, zone: str, instance: InstanceId) -> None:
        try:
            # Without a request id: a delete is harmless however often it is asked for.
            await self.calls.call("instances", "delete", zone=zone, instance=instance)
        except BadRequest as error:
            if code_of(error) not in GONE:
                raise


def _is_installed() -> bool:
    """Looked for, not imported: that takes seconds."""
    try:
        return find_spec("google.cloud.compute_v1") is not None
    except ModuleNotFoundError:
        return False
