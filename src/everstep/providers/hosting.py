"""A machine of a cloud that the server itself runs on: what it is, and what a cloud has to be able to do for it.

Such a machine carries the tag ``everstep:server`` and none of a deployment, so that no sweep of jobs' machines ever
meets it, and the server's own role cannot end it. Its disk outlives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

SSH_PORT = 7422
"""Where the machine's set-up listens: an sshd of ours alone, behind one key, let in only while somebody sets up."""


@dataclass(frozen=True, slots=True)
class Host:
    """What is wanted.

    Attributes:
        id: twelve hexadecimal digits; everything of it is found again by that.
        machine: type, in the cloud's words.
        zone: where it and its disk are.
        disk_gib: size of the disk that holds the journal.
        port: of the server's API.
        allow: networks that may call it, ``203.0.113.0/24``.
        role: what the machine may do in the cloud: an instance profile, a service account; empty = nothing.
        image: another image than the cloud's Ubuntu; empty = that.
        login: public key that may set it up, as in ``authorized_keys``.
        host_key: private key, by which whoever sets it up knows it.
        generation: how many machines it had before this one.
    """

    id: str
    machine: str
    zone: str
    disk_gib: int
    port: int
    allow: tuple[str, ...]
    login: str
    host_key: str = field(repr=False)
    role: str = ""
    image: str = ""
    generation: int = 0

    @property
    def name(self) -> str:
        """Of the machine and of what belongs to it."""
        return f"everstep-server-{self.id}"


@dataclass(frozen=True, slots=True)
class Standing:
    """What there is.

    Attributes:
        machine: the cloud's id of it; empty if there is none.
        state: in the cloud's words.
        address: at which everybody reaches it; empty while it has none.
        disk: id of the disk; empty if there is none.
        machine_since, disk_since: UTC seconds.
        generation: see ``Host``.
    """

    machine: str = ""
    state: str = ""
    address: str = ""
    disk: str = ""
    machine_since: float = 0.0
    disk_since: float = 0.0
    generation: int = 0


@dataclass(frozen=True, slots=True)
class Rates:
    """What it costs, USD per hour; ``source`` says where the prices come from."""

    machine: float
    disk: float
    address: float
    source: str


class Hosting(Protocol):
    """A cloud that can hold a server. Every method raises a typed ProviderError when the cloud refuses."""

    kind: str

    async def zone_for(self, machine: str) -> str:
        """A zone that sells the machine type; BadRequest if none does."""
        ...

    async def rates(self, host: Host) -> Rates:
        """What it will cost."""
        ...

    async def look(self, host: Host) -> Standing:
        """What there is of it."""
        ...

    async def ensure(self, host: Host) -> Standing:
        """Makes what is missing and returns when the machine runs, has an address and its disk. Repeatable."""
        ...

    async def let_in(self, host: Host, ports: Sequence[int]) -> None:
        """Lets ``host.allow`` in at exactly these ports."""
        ...

    async def remove(self, host: Host, *, disk: bool) -> None:
        """Ends the machine and what belongs to it, with or without its disk; what is gone is no error."""
        ...

    def close(self) -> None:
        """Makes no more calls."""
        ...
