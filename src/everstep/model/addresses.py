"""Which addresses lead back to this very computer."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this computer reaches ``host``, a name or an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
