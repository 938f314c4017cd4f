"""HTTPS to the one server whose certificate we were told: by its SHA-256 and by nothing else.

A server of everstep signs its certificate itself, so there is no authority to ask; whoever has the digest from a
trusted place (the boot settings of a machine, an ssh connection) needs none. Names and dates in the certificate say
nothing more: a machine whose clock is wrong must still reach its server.
"""

from __future__ import annotations

import hashlib
import http.client
import ssl

_HEX = frozenset("0123456789abcdef")


class WrongCertificate(OSError):
    """Whoever answered showed another certificate than the pinned one. Nothing was sent to it but the handshake."""


def normal(fingerprint: str) -> str:
    """The digest as 64 lower-case hexadecimal digits, colons left out; raises ValueError if it is anything else."""
    plain = fingerprint.replace(":", "").strip().lower()
    if len(plain) != 64 or set(plain) - _HEX:
        raise ValueError("expected 64 hexadecimal digits, the SHA-256 of a certificate")
    return plain


class PinnedConnection(http.client.HTTPSConnection):
    """A connection that looks at the certificate whenever it connects, before anything of ours is sent.

    Raises on connecting:
        WrongCertificate: it is another one. OSError: as usual.
    """

    def __init__(self, host: str, port: int | None, *, fingerprint: str, timeout_s: float) -> None:
        """Connects on first use, like any ``HTTPConnection``."""
        super().__init__(host, port, timeout=timeout_s, context=_context())
        self._fingerprint = normal(fingerprint)

    def connect(self) -> None:
        """Connects and looks. Also called by ``http.client`` itself when it connects anew."""
        super().connect()
        assert isinstance(self.sock, ssl.SSLSocket)
        shown = hashlib.sha256(self.sock.getpeercert(binary_form=True) or b"").hexdigest()
        if shown != self._fingerprint:
            self.close()
            raise WrongCertificate(
                f"the server's certificate is not the pinned one (pinned {self._fingerprint[:16]}..., "
                f"shown {shown[:16]}...)"
            )


def _context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # the digest is compared instead
    return context
