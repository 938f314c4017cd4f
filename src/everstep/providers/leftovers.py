"""What of ours there is in an account, of every deployment: what ``everstep cloud sweep`` looks at and ends.

Unlike ``Provider.resources`` it asks for no deployment: whatever carries our tags is listed, also what a server left
behind that nobody knows any more. What does not carry them is never listed, and never ended.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from everstep.model import handshake as hs
from everstep.model.errors import ProviderError


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing of ours.

    Attributes:
        kind: ``instance``, ``volume``, ``group``, ``address`` or ``firewall``.
        id: as ``Provider.resources`` names it.
        region, zone: where; a zone only for what lies in one.
        deployment, job: from its tags; empty for what belongs to none, as a server does.
        what: machine type, or size and kind of a disk.
        state: in the vendor's words.
        since: UTC seconds of its start; None = the vendor does not tell.
        price_usd_per_h: at which it was leased, or the list price; None = not known.
        cost_usd: since its start, by the vendor's billing rule; None = not known.
        attached_to: what uses it; it can only go together with that.
        is_server: part of a server of ours that ``everstep server up`` put there.
    """

    kind: str
    id: str
    region: str
    deployment: str
    zone: str = ""
    job: str = ""
    what: str = ""
    market: str = ""
    state: str = ""
    since: float | None = None
    price_usd_per_h: float | None = None
    cost_usd: float | None = None
    attached_to: str = ""
    is_server: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """What was found, and what could not be looked at: one line each."""

    things: tuple[Leftover, ...]
    unseen: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CallsHome:
    """Whom the agent of a machine calls: base URL and SHA-256 of the certificate, empty for none."""

    url: str
    fingerprint: str = ""


class Sweeper(Protocol):
    """Looks at an account and ends what it is told to."""

    async def look(self, regions: Sequence[str]) -> Found:
        """Everything of ours in these regions; without any, in all that the account has switched on.

        Raises:
            ProviderError: nothing at all could be looked at.
        """
        ...

    async def calls_home(self, machine: Leftover) -> CallsHome | None:
        """Whom a machine was told to call; None if it was told nothing, or the vendor does not say."""
        ...

    async def end(self, thing: Leftover) -> None:
        """Ends one thing; returns when it is gone or certainly going. What is gone already is no error.

        Raises:
            ProviderError: it is still there, and why.
        """
        ...


@runtime_checkable
class Swept(Protocol):
    """A provider whose account can be swept."""

    def sweeper(self) -> Sweeper:
        """Makes no call."""
        ...


class NotOurs(ProviderError):
    """It does not carry our tags (any more), or would take along what does not."""


_SET = re.compile(r"\|\| (\w+)=(.*)")


def told(script: str) -> CallsHome | None:
    """Whom a machine calls, by its boot script (``boot_script.script``); None if that is none of ours."""
    values = {}
    for line in script.splitlines():
        found = _SET.search(line)
        if found is not None and found[1] in (hs.BOOT_SERVER, hs.BOOT_CA_FINGERPRINT):
            try:
                values[found[1]] = "".join(shlex.split(found[2]))
            except ValueError:
                return None
    url = values.get(hs.BOOT_SERVER, "")
    return CallsHome(url, values.get(hs.BOOT_CA_FINGERPRINT, "")) if url else None
