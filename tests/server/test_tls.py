"""The server behind TLS: people trust its certificate, agents its fingerprint, nobody anything else."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import random
import socket
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from everstep.agent.bundle import build_pyz
from everstep.agent.link import LinkDown, PinMismatch, Session
from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.home import Home, NoServer, UnsafeFile
from everstep.model import handshake as hs
from everstep.model.errors import BadInput
from everstep.model.task import Task
from everstep.providers.local import LocalProvider
from everstep.server import daemon, installation, listening
from everstep.server import tls as own_tls
from everstep.server.installation import Address
from everstep.server.listening import Tls
from everstep.server.options import parse
from tests.agent.conftest import python39
from tests.server import fakes
from tests.server.fakes import Rig


def make_certificate(folder: Path, *, days: tuple[int, int] = (-1, 2)) -> Tls:
    """A certificate of 127.0.0.1, signed by itself, good between these days from now."""
    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "everstep")])
    start, end = (datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=day) for day in days)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(private, hashes.SHA256())
    )
    folder.mkdir(parents=True, exist_ok=True)
    found = Tls(folder / "cert.pem", folder / "key.pem")
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    found.certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    found.key.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, plain))
    return found


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
        plain = Client(url.replace("https", "http"), fakes.TOKEN)
        for asked in (plain.health, lambda: plain.submit(Task(run="x"))):
            with pytest.raises(NoServer, match=r"speaks TLS and answers nobody in the clear: .* begins with https://"):
                await asyncio.to_thread(asked)
        with pytest.raises(LinkDown):
            await asyncio.to_thread(Session(plain.wire.url, fingerprint="", credential="c").request, "GET", "/")
        # The door still opens for others.
        assert await version(pinned(url, tls)) == "0.0-test"


async def test_who_asks_for_tls_where_there_is_none_is_told_so(rig: Rig, tls: Tls) -> None:
    async with rig.served() as url:
        with pytest.raises(NoServer, match="does not speak TLS: is that the right port"):
            await asyncio.to_thread(pinned(url.replace("http", "https"), tls).health)


async def test_garbage_and_handshakes_that_never_end_do_not_keep_others_out(rig: Rig, tls: Tls) -> None:
    garbage = [b"", b"\x00" * 70_000, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x40\x00\x01", random.randbytes(5_000)]
    async with rig.served(tls) as url:
        place = ("127.0.0.1", int(url.rpartition(":")[2]))
        held = []
        try:
            for n in range(300):
                one = socket.create_connection(place)
                held.append(one)
                with contextlib.suppress(OSError):
                    one.sendall(garbage[n % len(garbage)])
                    if n % 3 == 0:
                        one.shutdown(socket.SHUT_WR)
                await asyncio.sleep(0)
            assert await version(pinned(url, tls)) == "0.0-test"
        finally:
            for one in held:
                one.close()
        assert await version(pinned(url, tls)) == "0.0-test"


async def test_many_agents_join_at_once(rig: Rig, tls: Tls) -> None:
    pin = listening.check_tls(tls)

    def join(url: str) -> str:
        session = Session(url, fingerprint=pin, credential="join-token")
        try:
            return str(session.post_json(hs.PATH_JOIN, {"handshake": [1, 1]}, timeout_s=60.0)["credential"])
        finally:
            session.close()

    async with rig.served(tls) as url:
        with ThreadPoolExecutor(100) as threads:
            loop = asyncio.get_running_loop()
            joined = await asyncio.gather(*(loop.run_in_executor(threads, join, url) for _ in range(200)))
    assert joined == [fakes.CREDENTIAL] * 200


# --- Pinned -----------------------------------------------------------------------------------------------------------


def pinned(url: str, tls: Tls) -> Client:
    return Client(url, fakes.TOKEN, fingerprint=listening.check_tls(tls))


async def version(client: Client) -> str:
    with client:
        return (await asyncio.to_thread(client.health)).version


async def test_a_client_with_the_right_pin_is_served_by_any_name(rig: Rig, tls: Tls) -> None:
    async with rig.served(tls) as url:
        for base in (url, url.replace("127.0.0.1", "localhost")):
            assert await version(pinned(base, tls)) == "0.0-test"


async def test_a_client_with_another_pin_sends_nothing_and_says_one_line(rig: Rig, tls: Tls, stranger: Tls) -> None:
    async with rig.served(tls) as url:
        client = pinned(url, stranger)
        for asked in (client.health, lambda: client.submit(Task(run="x")), lambda: list(client.logs("j", follow=True))):
            with pytest.raises(NoServer, match="shows another certificate than the pinned one") as refused:
                await asyncio.to_thread(asked)
            assert "\n" not in str(refused.value)
            assert fakes.TOKEN not in str(refused.value)
    assert not rig.controller.submitted


async def test_a_certificate_that_ran_out_is_good_for_who_pinned_it_and_for_nobody_else(
    rig: Rig, tmp_path: Path
) -> None:
    old = make_certificate(tmp_path, days=(-30, -1))
    async with rig.served(old) as url:
        assert await version(pinned(url, old)) == "0.0-test"
        with pytest.raises(NoServer, match=r"not trusted \(certificate has expired\)"):
            await asyncio.to_thread(Client(url, fakes.TOKEN, certificate=old.certificate).health)
        session = Session(url, fingerprint=listening.check_tls(old), credential="join-token")
        body = {"handshake": [1, 1]}
        assert (await asyncio.to_thread(session.post_json, hs.PATH_JOIN, body))["credential"] == fakes.CREDENTIAL
        session.close()


async def test_a_server_that_comes_back_with_a_new_certificate_is_a_stranger(rig: Rig, tls: Tls, stranger: Tls) -> None:
    """Also for a client that was connected: its connection is made anew without asking it."""
    from everstep.server.serving import serve

    async def up(shown: Tls, port: int) -> tuple[Any, asyncio.Task[None]]:
        server = serve(rig.app, shown)
        task = asyncio.create_task(server.serve(sockets=[listening.bind("127.0.0.1", port)]))
        while not server.started:
            await asyncio.sleep(0.005)
        return server, task

    with listening.bind_anywhere("127.0.0.1") as free:
        port = free.getsockname()[1]
    client = pinned(f"https://127.0.0.1:{port}", tls)
    session = Session(f"https://127.0.0.1:{port}", fingerprint=listening.check_tls(tls), credential="credential-of-i-1")
    for shown in (tls, stranger):
        server, task = await up(shown, port)
        if shown is tls:
            await asyncio.to_thread(client.health)
        else:
            with pytest.raises(NoServer, match="another certificate"):
                await asyncio.to_thread(client.health)
            with pytest.raises(PinMismatch):
                await asyncio.to_thread(session.request, "GET", "/")
        server.should_exit = True
        await task


async def test_an_agent_on_a_bare_old_python_keeps_to_its_pin(
    rig: Rig, tls: Tls, stranger: Tls, tmp_path: Path
) -> None:
    ask = """
import sys
sys.path.insert(0, sys.argv[1])
from everstep.agent.link import LinkDown, Session
for pin in sys.argv[3:]:
    session = Session(sys.argv[2], fingerprint=pin, credential="join-token")
    try:
        print(session.post_json("/agent/v1/join", {"handshake": [1, 1]})["credential"])
    except LinkDown as error:
        print(type(error).__name__, error)
"""
    pins = [listening.check_tls(one) for one in (tls, stranger)]
    pyz = build_pyz(tmp_path / "agent.pyz")
    async with rig.served(tls) as url:
        command = [python39(), "-I", "-S", "-c", ask, str(pyz), url, *pins]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    right, wrong = done.stdout.splitlines()
    assert right == fakes.CREDENTIAL, done.stderr
    assert wrong.startswith("PinMismatch the server's certificate is not the pinned one")


# --- Of its own making ------------------------------------------------------------------------------------------------


def test_the_own_certificate_is_made_once_is_private_and_does_not_end(tmp_path: Path) -> None:
    home = Home(tmp_path)
    made = own_tls.own(home, ["everstep.example.org", "203.0.113.9"])
    digest = listening.check_tls(made)
    assert listening.check_tls(own_tls.own(home)) == digest
    for path, mode in ((made.key, 0o600), (made.certificate, 0o600), (home.tls_folder, 0o700)):
        assert stat.S_IMODE(path.stat().st_mode) == mode
    read = x509.load_pem_x509_certificate(made.certificate.read_bytes())
    assert read.not_valid_after_utc.year == 9999
    names = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "everstep.example.org" in names.get_values_for_type(x509.DNSName)
    assert ipaddress.ip_address("203.0.113.9") in names.get_values_for_type(x509.IPAddress)
    other = Home(tmp_path / "other")
    assert listening.check_tls(own_tls.own(other)) != digest


def test_an_own_certificate_that_is_not_safe_to_use_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    made = own_tls.own(home)
    made.key.chmod(0o640)
    with pytest.raises(UnsafeFile, match=r"can be read by others"):
        own_tls.own(home)
    made.key.chmod(0o600)
    text = made.key.read_text()
    made.key.write_text(text[:60])  # torn
    with pytest.raises(Exception, match="are not a certificate and its key"):
        own_tls.own(home)
    made.key.unlink()
    with pytest.raises(UnsafeFile, match=r"key.pem is missing; put it back"):
        own_tls.own(home)


@pytest.mark.parametrize(
    ("last", "said", "found"),
    [
        (Address("0.0.0.0", 7443, True, "https://a:7443"), "", ("0.0.0.0", True, "https://a:7443")),
        (Address("0.0.0.0", 7443, True, "https://a:7443"), "--host 127.0.0.1", ("127.0.0.1", False, "")),
        (Address("0.0.0.0", 7443, True, "https://a:7443"), "--tls", ("127.0.0.1", True, "")),
        (Address("0.0.0.0", 7443), "", ("127.0.0.1", False, "")),
        (Address("127.0.0.1", 7443), "", ("127.0.0.1", False, "")),
    ],
)
def test_only_what_was_behind_tls_is_listened_on_again_unasked(
    tmp_path: Path, last: Address, said: str, found: tuple[str, bool, str]
) -> None:
    home = Home(tmp_path)
    installation.keep_address(home, last)
    options = daemon.as_last_time(parse(["--home", str(tmp_path), *said.split()]))
    assert (options.host, options.own_tls, options.advertise) == found


def test_addresses_of_older_servers_are_read(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.address_file.write_text('{"host": "127.0.0.1", "port": 15001}')
    assert installation.last_address(home) == Address("127.0.0.1", 15001)
    for torn in ("", "[]", '{"host": "x"}', '{"host": "x", "por'):
        home.address_file.write_text(torn)
        assert installation.last_address(home) is None


def test_a_server_that_was_killed_between_its_two_files_makes_both_anew(tmp_path: Path) -> None:
    home = Home(tmp_path)
    own_tls.own(home).certificate.unlink()
    assert len(listening.check_tls(own_tls.own(home))) == 64


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
def test_a_job_runs_through_a_server_behind_its_own_certificate(home: Home) -> None:
    info = launcher.start_background(home, arguments=("--tls",))
    assert info.url.startswith("https://127.0.0.1:")
    assert info.fingerprint == listening.check_tls(own_tls.own(home))
    with Client(home=home) as client:
        job = client.submit(Task(name="t", run="echo over tls: $EVERSTEP_JOB"))
        detail = client.wait(job, timeout_s=60)
        log = "".join(part.text for part in client.logs(job))
    assert (detail.phase, detail.exit_code) == ("succeeded", 0)
    assert f"over tls: {job}" in log

    # Whoever starts it again need not say how: machines of running jobs call there.
    launcher.stop(home)
    again = launcher.start_background(home)
    assert (again.url, again.fingerprint) == (info.url, info.fingerprint)
    launcher.stop(home)
    plain = launcher.start_background(home, arguments=("--host", "127.0.0.1"))
    assert (plain.url, plain.fingerprint) == (info.url.replace("https", "http"), "")


@pytest.mark.e2e
def test_listening_elsewhere_without_tls_is_refused_unless_it_is_said(home: Home) -> None:
    with pytest.raises(BadInput, match=r"'0.0.0.0' can be reached from other machines.*--insecure"):
        launcher.start_background(home, arguments=("--host", "0.0.0.0"))
    assert not home.server_file.exists()
    info = launcher.start_background(home, arguments=("--host", "0.0.0.0", "--insecure"))
    port = int(info.url.rpartition(":")[2])
    with Client(f"http://127.0.0.1:{port}", home=home) as client:
        assert client.health().pid == info.pid
