"""The deployment: health, offers, costs of all jobs, unknown resources, stopping."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from everstep.client.results import Health
from everstep.model.access import Verb
from everstep.model.codec import to_dict
from everstep.model.errors import BadInput, Problem
from everstep.model.handshake import HANDSHAKE_VERSION, OLDEST_HANDSHAKE_VERSION
from everstep.server.context import actor_of, context_of, json_object
from everstep.server.routes.jobs import may_read
from everstep.server.views import offer_view, unknown_view

router = APIRouter()


@router.get("/api/v1/health")
async def health(request: Request) -> Any:
    """The server about itself."""
    context = context_of(request)
    live = context.controller.live_states()
    # Ended jobs are packed away; saying how each ended would mean unpacking them all.
    phases = Counter(str(state.phase) for state in live)
    phases["ended"] += len(context.controller.states) - len(live)
    return to_dict(
        Health(
            version=context.version,
            deployment=context.controller.deployment,
            pid=context.pid,
            started_at=context.started_at,
            now=context.clock.now(),
            jobs={phase: count for phase, count in phases.items() if count},
            providers=tuple(await context.providers_health()),
            handshake=(OLDEST_HANDSHAKE_VERSION, HANDSHAKE_VERSION),
            backup=context.backup(),
            files="" if context.bucket_files is None else context.bucket_files.text,
        )
    )


@router.get("/api/v1/offers")
async def offers(request: Request, accelerator: str = "", all: bool = False) -> Any:
    """What can be leased now, cheapest first."""
    context = context_of(request)
    context.allow(actor_of(request), Verb.READ)
    found = [
        offer_view(offer)
        for offer in await context.controller.offers()
        if (all or offer.available != 0) and accelerator.lower() in ("", offer.machine.accelerator.lower())
    ]
    found.sort(key=lambda o: (o.price_usd_per_h, o.provider, o.zone, o.machine_type, o.market))
    return {"offers": to_dict(found)}


@router.get("/api/v1/cost")
async def costs(request: Request) -> Any:
    """What all jobs cost."""
    context = context_of(request)
    actor = actor_of(request)
    return to_dict(await context.views.costs(context.clock.now(), lambda view: may_read(context, actor, view)))


@router.get("/api/v1/unknown")
async def unknown(request: Request) -> Any:
    """Resources with our tag that the journal does not know."""
    context = context_of(request)
    context.allow(actor_of(request), Verb.ADMIN)
    return {"resources": to_dict([unknown_view(resource) for resource in context.controller.unknown()])}


@router.post("/api/v1/unknown/end")
async def end_unknown(request: Request) -> Any:
    """Ends some of them."""
    context = context_of(request)
    context.allow(actor_of(request), Verb.ADMIN)
    ids = (await json_object(request)).get("ids")
    if not isinstance(ids, list) or not all(isinstance(one, str) for one in ids):
        raise BadInput(Problem("", "ids", "expected a list of ids"))
    known = {resource.id for resource in context.controller.unknown()}
    strange = [one for one in ids if one not in known]
    if strange:
        raise BadInput(Problem("", "ids", f"'{strange[0]}' is not among the unknown resources; nothing was ended"))
    await context.controller.end_unknown(ids)
    return {"ended": ids}


@router.post("/api/v1/server/stop")
async def stop(request: Request) -> Any:
    """Stops the server; jobs and machines go on."""
    context = context_of(request)
    context.allow(actor_of(request), Verb.ADMIN)
    context.on_stop()
    return {"stopping": True}
