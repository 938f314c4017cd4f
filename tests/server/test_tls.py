"""The server behind TLS: people trust its certificate, agents its fingerprint, nobody anything else."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.agent.link import LinkDown, PinMismatch, Session
from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.home import Home, NoServer
from everstep.client.launcher import ServerFailed
from everstep.model import handshake as hs
from everstep.model.task import Task
from everstep.providers.local import LocalProvider
from everstep.server import listening
from everstep.server.listening import Tls
from tests.server import fakes
from tests.server.fakes import Rig


def make_certificate(folder: Path) -> Tls:
    """A certificate of 127.0.0.1, signed by itself."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    folder.mkdir(parents=True, exist_ok=True)
    if shutil.which("openssl"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=everstep", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run([*command, "-out", str(certificate), "-keyout", str(key)], check=True, capture_output=True)
    else:
        _with_library(certificate, key)
    return Tls(certificate, key)


def _with_library(certificate: Path, key: Path) -> None:
    why = "needs the openssl command or the package 'cryptography' to make a certificate"
    x509: Any = pytest.importorskip("cryptography.x509", reason=why)
    import datetime
    import ipaddress

    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "everstep")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, plain))


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return make_certificate(tmp_path_factory.mktemp("stranger"))


async def test_a_client_that_has_the_certificate_is_served(rig: Rig, tls: Tls) -> None:
    async with rig.served(tls) as url:
        client = Client(url, fakes.TOKEN, certificate=tls.certificate)
        assert (await asyncio.to_thread(client.health)).version == "0.0-test"
        client.close()


async def test_a_client_that_has_another_or_none_sends_nothing(rig: Rig, tls: Tls, stranger: Tls) -> None:
    async with rig.served(tls) as url:
        for certificate in ("", stranger.certificate):
            with pytest.raises(NoServer, match=r"shows a certificate that is not trusted \(.+\)$"):
                await asyncio.to_thread(Client(url, fakes.TOKEN, certificate=certificate).submit, Task(run="x"))
        with pytest.raises(NoServer, match=r"cannot be read: /nowhere"):
            await asyncio.to_thread(Client(url, fakes.TOKEN, certificate="/nowhere").health)
    assert not rig.controller.submitted


async def test_an_agent_trusts_the_fingerprint_and_nothing_else(rig: Rig, tls: Tls, stranger: Tls) -> None:
    pin = listening.check_tls(tls)
    body = {"handshake": [1, 1]}

    def join(url: str, fingerprint: str) -> dict[str, Any]:
        session = Session(url, fingerprint=fingerprint, credential="join-token")
        try:
            return session.post_json(hs.PATH_JOIN, body)
        finally:
            session.close()

    async with rig.served(tls) as url:
        assert (await asyncio.to_thread(join, url, pin))["credential"] == fakes.CREDENTIAL
        with pytest.raises(PinMismatch, match="not the pinned one"):
            await asyncio.to_thread(join, url, listening.check_tls(stranger))
        with pytest.raises(LinkDown, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(join, url, "")


async def test_nobody_is_answered_in_the_clear(rig: Rig, tls: Tls) -> None:
    async with rig.served(tls) as url:
        with pytest.raises(NoServer):
            await asyncio.to_thread(Client(url.replace("https", "http"), fakes.TOKEN).health)


def test_the_fingerprint_is_that_of_the_first_certificate_of_a_chain(tls: Tls, stranger: Tls, tmp_path: Path) -> None:
    chain = tmp_path / "chain.pem"
    chain.write_text(tls.certificate.read_text() + stranger.certificate.read_text())
    assert listening.check_tls(Tls(chain, tls.key)) == listening.check_tls(tls) != listening.check_tls(stranger)


def test_a_key_of_another_certificate_is_refused(tls: Tls, stranger: Tls) -> None:
    with pytest.raises(Exception, match="are not a certificate and its key"):
        listening.check_tls(Tls(tls.certificate, stranger.key))


# --- As a process -----------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, leak_guard: str) -> Iterator[Home]:
    made = Home(tmp_path / "home")
    yield made
    if launcher.is_running(made):
        launcher.stop(made)
    if (made.path / "local").exists():
        asyncio.run(LocalProvider(made.path / "local").stop())


@pytest.mark.e2e
def test_a_job_runs_through_a_server_behind_tls(home: Home, tls: Tls) -> None:
    arguments = ("--tls-cert", str(tls.certificate), "--tls-key", str(tls.key))
    info = launcher.start_background(home, arguments=arguments)
    assert info.url.startswith("https://127.0.0.1:")
    assert info.certificate == str(tls.certificate)
    with Client(home=home) as client:
        job = client.submit(Task(name="t", run="echo over tls: $EVERSTEP_JOB"))
        detail = client.wait(job, timeout_s=60)
        log = "".join(part.text for part in client.logs(job))
    assert (detail.phase, detail.exit_code) == ("succeeded", 0)
    assert f"over tls: {job}" in log


@pytest.mark.e2e
def test_listening_elsewhere_without_tls_is_refused_unless_it_is_said(home: Home) -> None:
    with pytest.raises(
        ServerFailed, match=r"(?s)exit code 2.*'0.0.0.0' can be reached from other machines.*--insecure"
    ):
        launcher.start_background(home, arguments=("--host", "0.0.0.0"))
    assert not home.server_file.exists()
    info = launcher.start_background(home, arguments=("--host", "0.0.0.0", "--insecure"))
    port = int(info.url.rpartition(":")[2])
    with Client(f"http://127.0.0.1:{port}", home=home) as client:
        assert client.health().pid == info.pid
