"""A server elsewhere that the commands here talk to: where it is, and what proves that it is ours.

``everstep server up`` writes the record, ``everstep server down`` removes it. It holds the token of the user API, so it
is a file that only its owner may read.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from everstep.client.home import Home, UnsafeFile, read_private_text, write_private
from everstep.model.codec import from_dict, to_dict


@dataclass(frozen=True, slots=True)
class RemoteServer:
    """A server on another machine.

    Attributes:
        kind: how it was put there: ``ssh``, or the name of a provider.
        url: base URL.
        fingerprint: SHA-256 of its certificate, hexadecimal.
        token: of its user API.
        deployment: UUID of its installation; empty while it is being set up.
        host: what ssh calls the machine, or the provider's id of it.
        folder: where its things are on that machine.
        since: UTC seconds at which it was put there.
        usd_per_h: what the machine costs; None = not known.
        more: what only this kind needs to find it again.
    """

    kind: str
    url: str
    fingerprint: str
    token: str = field(repr=False)
    deployment: str
    host: str
    folder: str
    since: float
    usd_per_h: float | None = None
    more: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """For people: ``gpu-box (ssh), in .everstep-server``."""
        return f"{self.host} ({self.kind}), in {self.folder}"


def find(home: Home) -> RemoteServer | None:
    """The server elsewhere that ``home`` belongs to, None if there is none.

    Raises:
        UnsafeFile: others can read the record, or it is not what we wrote.
    """
    try:
        text = read_private_text(home.remote_file)
    except FileNotFoundError:
        return None
    try:
        data: Any = json.loads(text)
        return from_dict(RemoteServer, data)
    except Exception:
        fix = "it names the server elsewhere; mend it, or remove it and put the server there again"
        raise UnsafeFile(f"{home.remote_file} is not what everstep server up wrote; {fix}") from None


def keep(home: Home, remote: RemoteServer) -> None:
    """Writes the record, mode 0600, whole or not at all."""
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(home.remote_file, json.dumps(to_dict(remote), indent=2) + "\n")


def forget(home: Home) -> None:
    """Removes the record."""
    home.remote_file.unlink(missing_ok=True)
