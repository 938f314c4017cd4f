"""A certificate of the server's own making: signed by itself, trusted by its digest.

It is made once and kept, and it never runs out: machines carry its digest from their boot on, so a new certificate
would cut every machine that lives off from its server.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from everstep.client.home import Home, UnsafeFile, read_private_text, write_private
from everstep.model.errors import BadInput, Problem
from everstep.server.listening import Tls, check_tls

_NO_END = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
"""RFC 5280, 4.1.2.5: "To indicate that a certificate has no well-defined expiration date"."""
_LATE_CLOCKS = datetime.timedelta(days=30)


def own(home: Home, hosts: Iterable[str] = ()) -> Tls:
    """The server's own certificate, made on first use; both files have mode 0600.

    Args:
        home: folder of the installation.
        hosts: names and addresses to write into a new one, for readers that look at names; ours do not.

    Raises:
        UnsafeFile: others can read the key, or one of the two files is missing.
        BadInput: the package that makes certificates is not installed, or the files are damaged.
    """
    tls = Tls(home.tls_folder / "certificate.pem", home.tls_folder / "key.pem")
    there = [path for path in (tls.certificate, tls.key) if path.exists()]
    # The key is written first: a key alone is what a server that was killed in between left, and nobody has seen it.
    if tls.certificate not in there:
        certificate, key = _make(hosts)
        home.tls_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(tls.key, key)
        write_private(tls.certificate, certificate)
    elif tls.key not in there:
        text = f"{tls.key} is missing; put it back, or remove {tls.certificate} to get a new certificate"
        raise UnsafeFile(f"{text} (machines that run now will not accept that)")
    _check_private(tls.key)
    check_tls(tls)
    return tls


def _check_private(path: Path) -> None:
    read_private_text(path)
    info = path.stat()
    if info.st_uid != os.getuid() or not stat.S_ISREG(info.st_mode):
        raise UnsafeFile(f"{path} must be a plain file of the user of the server")


def _make(hosts: Iterable[str]) -> tuple[str, str]:
    """A new certificate and its key, PEM: P-256, signed by itself."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        fix = "pip install 'everstep[tls]', or give --tls-cert and --tls-key"
        raise BadInput(Problem("--tls", "", "needs the package cryptography, which is not installed", fix)) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "everstep")])
    names: list[x509.GeneralName] = []
    for host in dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts]):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host.strip("[]"))))
        except ValueError:
            names.append(x509.DNSName(host))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.now(datetime.UTC) - _LATE_CLOCKS)
        .not_valid_after(_NO_END)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    form, open_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    return certificate.public_bytes(pem).decode(), key.private_bytes(pem, form, open_).decode()
