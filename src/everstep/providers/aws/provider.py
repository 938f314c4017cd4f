"""The eight methods of ``Provider`` on Amazon EC2."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from random import Random

from everstep.model.errors import BadInput, BadRequest, Problem, ProviderError, Unreachable
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
from everstep.providers.aws import doctor
from everstep.providers.aws.calls import Calls
from everstep.providers.aws.errors import GONE, code_of
from everstep.providers.aws.groups import Groups
from everstep.providers.aws.identity import IdentityCheck
from everstep.providers.aws.launching import Launching
from everstep.providers.aws.listing import ENDED, Listing
from everstep.providers.aws.market import NOTICE_S, Ec2Market
from everstep.providers.aws.settings import checked
from everstep.providers.aws.sweep import AwsSweeper
from everstep.providers.aws.volumes import Volumes
from everstep.providers.finding import Finding
from everstep.providers.sharing import Shared

_BATCH = 500
"""So many ids in one call: TerminateInstances takes up to 1,000."""
_UNSEEN_TRIES = 30


class AwsProvider:
    """Machines of EC2, spot and on demand; disks of EBS. Implements ``Provider``.

    Which of the vendor's codes has which meaning is the table of ``errors.py``. Prices: spot from EC2's price history,
    on demand and disks from AWS's price list. A machine is leased at the price of its offer; EC2 bills the spot price
    of the moment, which moves.

    Args:
        regions: where to lease, ``[us-east-1]``.
        types: what to lease, names with ``*``: ``[p3.2xlarge, g5.*]``.
        images: ``gpu`` and ``cpu``: an AMI (of one region), or ``resolve:ssm:`` and the name of a public parameter;
            default: AWS's image with NVIDIA's driver, and Ubuntu.
        subnets: by zone; default: the default subnet of the zone.
        security_groups: by region; default: the default group, whose members reach each other.
        placement_groups: whether the machines of a gang are placed close together, in a cluster placement group: a
            faster network between them, and less room for them.
        boot_disk_gib: size of the disk that comes and goes with each machine; at least that of the image.
        identity_certificates: file with certificates, PEM, that verify identity documents of EC2, besides those of
            the regions that need no opt-in.
        name: name of the provider in offers and pools.
        endpoint_url: where to call instead of AWS, for fakes.
        notice_s: how long before its end a spot machine is warned.
        look_s: between two looks at a machine that boots.
        now: UTC seconds.
        rng: for jitter.
    """

    poll_s = 10.0
    """How often the controller asks for the list: notices come from the agents, at once."""

    def __init__(
        self,
        regions: Sequence[str],
        types: Sequence[str],
        *,
        images: Mapping[str, str] | None = None,
        subnets: Mapping[str, str] | None = None,
        security_groups: Mapping[str, Sequence[str]] | None = None,
        placement_groups: bool = True,
        boot_disk_gib: int = 100,
        identity_certificates: str | None = None,
        name: str = "aws",
        endpoint_url: str | None = None,
        notice_s: float = NOTICE_S,
        look_s: float = 2.0,
        now: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        if find_spec("boto3") is None:
            fix = "pip install 'everstep[aws]'"
            raise BadInput(Problem("provider", name, "needs boto3, which is not installed", fix))
        self.name = name
        self.settings = checked(
            regions=regions,
            types=types,
            images=images,
            subnets=subnets,
            security_groups=security_groups,
            boot_disk_gib=boot_disk_gib,
        )
        self.identity = IdentityCheck(identity_certificates)
        self.calls = Calls(endpoint_url=endpoint_url, rng=rng)
        self.on_this_host = leads_here(endpoint_url)  # a fake's machines are processes of this computer
        self.now = now
        self._look_s = look_s
        self._put_together(notice_s, placement_groups=placement_groups)

    def _put_together(self, notice_s: float, *, placement_groups: bool) -> None:
        regions, look_s, now = self.settings.regions, self._look_s, self.now
        self._market = Ec2Market(
            self.name,
            self.calls,
            regions=regions,
            types=self.settings.types,
            boot_disk_gib=self.settings.boot_disk_gib,
            now=now,
        )
        groups = Groups(self.calls, wanted=placement_groups)
        self._volumes = Volumes(self.calls, regions, look_s=look_s, now=now)
        self._listing = Listing(
            self.calls,
            self._volumes,
            groups,
            regions,
            disk_price=self._market.disk_usd_per_gib_h,
            put_away=self.terminate,
            notice_s=notice_s,
            now=now,
        )
        self._listed = Shared(self._listing.resources)
        self._launching = Launching(
            self.calls,
            self.settings,
            self._volumes,
            groups,
            terminate=self.terminate,
            started=self._listing.started,
            taken_back=self._listing.taken_back,
            look_s=look_s,
        )

    async def offers(self, query: OfferQuery) -> Sequence[Offer]:
        """See ``Provider.offers``."""
        return [offer for offer in await self._market.offers() if query.wants(offer)]

    @property
    def unanswered(self) -> Sequence[str]:
        """See ``AnswersInPart``."""
        return self._market.unanswered

    async def launch(
        self, requests: Sequence[LaunchRequest], *, all_or_nothing: bool
    ) -> Sequence[Launched | Exception]:
        """See ``Provider.launch``. With a disk it returns when that is attached, about a minute later."""
        return await self._launching.launch(requests, all_or_nothing=all_or_nothing)

    async def resources(self, deployment: DeploymentId) -> Sequence[ProviderResource]:
        """See ``Provider.resources``; what ended is listed for two hours."""
        return await self._listed.get(deployment)

    async def terminate(self, instances: Sequence[InstanceId]) -> None:
        """See ``Provider.terminate``."""
        by_region: dict[str, list[str]] = {}
        for instance in dict.fromkeys(instances):
            known = self._listing.region(instance)
            for region in (known,) if known else self.settings.regions:
                by_region.setdefault(region, []).append(instance)
        batches = [(r, ids[i : i + _BATCH]) for r, ids in by_region.items() for i in range(0, len(ids), _BATCH)]
        await asyncio.gather(*(self._terminate(region, ids) for region, ids in batches))

    async def ensure_volume(self, spec: VolumeSpec) -> VolumeId:
        """See ``Provider.ensure_volume``; names are per deployment and zone."""
        return await self._volumes.ensure(spec)

    async def delete_volume(self, volume: VolumeId) -> None:
        """See ``Provider.delete_volume``; BadRequest while a machine has it, unless that is on its way out."""
        await self._volumes.delete(volume)

    async def notices(self, deployment: DeploymentId) -> Sequence[Notice]:
        """See ``Provider.notices``: spot machines that are marked for termination."""
        return await self._listing.notices(deployment)

    async def history(self, query: HistoryQuery) -> Sequence[HistoryPoint]:
        """See ``Provider.history``: spot prices of the last 90 days; EC2 does not tell availability."""
        return await self._market.history(query.pools, query.since)

    async def check_identity(
        self, instance: InstanceId, offer: Offer, proof: Mapping[str, str], *, server_url: str
    ) -> None:
        """See ``ProvesIdentity``: the identity document that EC2 signs."""
        self.identity.check(instance, offer, proof)

    async def examine(self) -> Sequence[Finding]:
        """What is missing, and how to mend it (see ``doctor``). Makes nothing."""
        return await doctor.examine(self)

    def sweeper(self) -> AwsSweeper:
        """See ``leftovers.Swept``."""
        return AwsSweeper(self.calls, self.settings.regions, look_s=self._look_s, now=self.now)

    def close(self) -> None:
        """Makes no more calls."""
        self.calls.close()

    async def _terminate(self, region: str, ids: list[str]) -> None:
        """One call for all; EC2 refuses the whole list for one id it does not know, which halving finds."""
        for _ in range(_UNSEEN_TRIES):
            try:
                told = await self.calls.ec2(region, "terminate_instances", InstanceIds=ids)
            except BadRequest as error:
                if code_of(error) not in GONE:
                    raise
                if len(ids) > 1:
                    middle = len(ids) // 2
                    await asyncio.gather(self._terminate(region, ids[:middle]), self._terminate(region, ids[middle:]))
                    return
                if not self._listing.is_recent(ids[0]):
                    return
                await asyncio.sleep(self._look_s)
                continue
            for ended in told["TerminatingInstances"]:
                # One that was ending already was not ended by this call: when and why is for the list to tell.
                if ended["PreviousState"]["Name"] not in ENDED:
                    self._listing.terminated(ended["InstanceId"])
            return
        raise _unseen(ids)


def _unseen(ids: list[str]) -> ProviderError:
    return Unreachable(f"EC2 does not show {', '.join(ids)}, which it started a moment ago")
