"""A cloud in a box: instances are real processes on this computer, the market follows real traces.

Parts, from the outside in: ``provider`` (the client), ``daemon`` with ``api``, ``rpc``, ``metadata`` and ``proxy``
(the process that plays the vendor), ``box`` and ``supply`` (its rules, synchronous), ``machines``, ``processes`` and
``init`` (real processes), ``state`` and ``meter`` (what it remembers and charges), ``config`` and ``trace`` (what it
is told to be), ``workstation``.
"""

from __future__ import annotations

from everstep.providers.local.provider import LocalProvider

__all__ = ["LocalProvider"]
