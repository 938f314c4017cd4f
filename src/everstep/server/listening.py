"""Where the server listens: loopback unless told otherwise, and the same port as last time, since machines call home
there.
"""

from __future__ import annotations

import hashlib
import random
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from everstep.model.addresses import is_loopback
from everstep.model.errors import BadInput, EverstepError, Problem

LOOPBACK = "127.0.0.1"
_LOWEST_PORT = 15_000
_PATIENCE_S = 3.0
_TRIES = 50


class PortTaken(EverstepError):
    """Somebody else listens there."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files with the certificate chain and its key, PEM."""

    certificate: Path
    key: Path


def check_exposure(host: str, *, tls: bool, insecure: bool) -> None:
    """Refuses to listen beyond this machine in the clear. Raises BadInput."""
    if not tls and not insecure and not is_loopback(host):
        raise BadInput(
            Problem(
                "--host",
                "",
                f"'{host}' can be reached from other machines, and the token would travel in the clear",
                "give --tls, or --insecure if the network is yours",
            )
        )


def check_tls(tls: Tls) -> str:
    """The certificate's SHA-256, hexadecimal, which agents are told to trust.

    Raises:
        BadInput: the files are not a certificate and its key.
    """
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
        text = tls.certificate.read_text()
        first = begin + text.split(begin, 1)[1].split(end, 1)[0] + end + "\n"
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(first)).hexdigest()
    except (OSError, ValueError, IndexError) as error:
        text = f"{tls.certificate} and {tls.key} are not a certificate and its key ({error})"
        raise BadInput(Problem("--tls-cert", "", text)) from None


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        PortTaken: somebody else does, and still did after three seconds (an old server may just be ending).
        BadInput: this machine has no such address.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _listen(host, port)
        except PortTaken:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def bind_anywhere(host: str) -> socket.socket:
    """A socket on a free port that will still be free after a restart.

    The kernel's own choice would come from the range of outgoing connections. While a server of ours is down its
    agents keep calling, and a caller on the same machine may be given the very port it calls: TCP then connects it to
    itself, and the server can never have it back. So the port comes from below that range.
    """
    lowest = min(_lowest_ephemeral(), 32_768)
    chance = random.SystemRandom()
    for _ in range(_TRIES):
        try:
            return _listen(host, chance.randrange(min(_LOWEST_PORT, lowest - 1000), lowest))
        except PortTaken:
            continue
    raise PortTaken(f"no free port found on {host}; choose one with --port")


def url_of(host: str, port: int, *, tls: bool) -> str:
    """Base URL under which the server is reached; a wildcard address is reached by this machine's name."""
    shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    shown = f"[{shown}]" if ":" in shown else shown
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise BadInput(Problem("--host", "", f"'{host}' is not an address of this machine ({error})")) from None
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(2048)
        found.setblocking(False)
    except OSError as error:
        found.close()
        if isinstance(error, PermissionError):
            raise BadInput(Problem("--port", "", f"this user may not listen on port {port}")) from None
        if error.errno == 99:  # EADDRNOTAVAIL
            raise BadInput(Problem("--host", "", f"'{host}' is not an address of this machine")) from None
        raise PortTaken(f"port {port} on {host} is taken by another program ({error.strerror or error})") from None
    return found


def _lowest_ephemeral() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
