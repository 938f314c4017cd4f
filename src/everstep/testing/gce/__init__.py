"""A fake Compute Engine that is as strict as the vendor: for our provider, and for any other client of the API.

``FakeGce`` serves on loopback; point any client at ``url``::

    with FakeGce(SMALL_WORLD) as gce:
        options = ClientOptions(api_endpoint=gce.url)
        compute_v1.InstancesClient(credentials=..., client_options=options)

Every request must fit the discovery document of compute v1 that google-api-python-client ships. Changes are operations,
whose errors come inside them (a stock-out, a quota); request ids are idempotent; capacity and rates follow the world's
steps; disks keep to their zone and to one writer; labels change only over the fingerprint the caller has seen; spot
machines are told of their end by their metadata and then stop or go; what is not played is refused.
``python -m everstep.testing.gce`` starts one. Needs google-api-python-client and cryptography.

Parts: ``server`` and ``discovery`` (the protocol), ``cloud``, ``launch`` and ``permissions`` (the rules), ``books``
(what is there), ``market`` and ``catalog`` (what is for sale), ``filters``, ``faults``, ``meter``, ``metadata`` and
``identity``, ``power`` (instances that boot).
"""

from __future__ import annotations

from everstep.testing.gce.fake import FakeGce
from everstep.testing.gce.market import SMALL_WORLD, Kind, Rate, Supply, Timing, World

__all__ = ["SMALL_WORLD", "FakeGce", "Kind", "Rate", "Supply", "Timing", "World"]
