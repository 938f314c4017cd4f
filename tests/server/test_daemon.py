"""The server as a process: its files, its lock, its port, its life."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from everstep.cli.local import left_behind
from everstep.client import launcher
from everstep.client.api import Client
from everstep.client.home import Home, UnsafeFile
from everstep.model.errors import BadInput
from everstep.model.task import Task
from everstep.providers.local import LocalProvider
from everstep.server import installation, listening, options
from everstep.server.listening import PortTaken, Tls

SECRET = "correct-horse-battery-staple"


@pytest.fixture
def home(tmp_path: Path, leak_guard: str) -> Iterator[Home]:
    """A folder for a server; whatever runs for it at the end is ended."""
    made = Home(tmp_path / "home")
    yield made
    if launcher.is_running(made):
        launcher.stop(made)
    if (made.path / "local").exists():
        asyncio.run(LocalProvider(made.path / "local").stop())


def serve(home: Home, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A server in the foreground that is expected to end by itself."""
    command = [sys.executable, "-m", "everstep.server", "--home", str(home.path), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def serve_each(home: Home, orders: Sequence[tuple[Path, str, Sequence[str]]]) -> list[tuple[int, str]]:
    """One server after the other, each expected to end by itself: exit code and what it said on stderr, stdout empty.

    Each is a fork of one interpreter, because what a server imports takes a second.

    Args:
        orders: a file that is written before, for all to read, its text, and the arguments of the server.
    """
    command = [sys.executable, "-c", _FORKS]
    given = [(str(path), text, ["--home", str(home.path), *arguments]) for path, text, arguments in orders]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, timeout=60, check=True)
    ended = [(int(code), str(said)) for code, said in json.loads(done.stdout)]
    assert len(ended) == len(orders)
    return ended


_FORKS = """
import json, os, pathlib, sys, tempfile
from everstep.server.daemon import main

ended = []
for path, text, arguments in json.load(sys.stdin):
    pathlib.Path(path).write_text(text)
    os.chmod(path, 0o644)
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if child == 0:
            os.dup2(said.fileno(), 2)
            sys.exit(main(arguments))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        ended.append([code, said.read().decode()])
print(json.dumps(ended))
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- Without a process ------------------------------------------------------------------------------------------------


def test_the_token_is_made_once_and_private(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = installation.token(home)
    assert installation.token(home) == first == home.token()
    assert mode(home.token_file) == 0o600
    assert len(first) >= 40


@pytest.mark.parametrize("bits", [0o640, 0o604, 0o666, 0o660])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, bits: int) -> None:
    home = Home(tmp_path)
    installation.token(home)
    home.token_file.chmod(bits)
    for reader in (lambda: installation.token(home), home.token):
        with pytest.raises(UnsafeFile, match=r"can be read by others .*chmod 600"):
            reader()


def test_the_deployment_is_made_once_and_never_guessed_anew(tmp_path: Path) -> None:
    home = Home(tmp_path)
    first = installation.deployment(home)
    assert installation.deployment(home) == first
    home.deployment_file.write_text("garbage")
    with pytest.raises(UnsafeFile, match="does not hold the UUID"):
        installation.deployment(home)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.org"])
def test_listening_elsewhere_needs_tls_or_a_word(host: str) -> None:
    with pytest.raises(BadInput, match="can be reached from other machines"):
        listening.check_exposure(host, tls=False, insecure=False)
    listening.check_exposure(host, tls=False, insecure=True)
    listening.check_exposure(host, tls=True, insecure=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    listening.check_exposure(host, tls=False, insecure=False)


def test_a_chosen_port_is_none_that_callers_are_given() -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with listening.bind_anywhere("127.0.0.1") as found:
        assert found.getsockname()[1] < lowest
        with pytest.raises(PortTaken, match="taken by another program"):
            listening._listen("127.0.0.1", found.getsockname()[1])


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    for name in ("c", "k"):
        (tmp_path / name).write_text("nonsense")
    with pytest.raises(BadInput, match="are not a certificate and its key"):
        listening.check_tls(Tls(tmp_path / "c", tmp_path / "k"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots: x", "hots: unknown key; did you mean 'host'?"),
        ("port: true", "port: expected a whole number"),
        ("port: 70000", "port: expected a port from 1 to 65535"),
        ("host: 3", "host: expected a text"),
        ("insecure: maybe", "insecure: expected true or false"),
        ("providers: [local]", "providers: expected a mapping of provider names to their options"),
        ("buckets: s3://b", "buckets: expected a mapping of URLs to their options"),
        ("buckets: {'s3://b': {region: 1}}", "buckets: expected a mapping of URLs to their options"),
        ("- a", "expected a mapping of keys to values"),
        ("a: [", "config.yaml:1: is not YAML"),
    ],
)
def test_a_faulty_configuration_is_one_clear_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(BadInput) as caught:
        options.parse(["--home", str(tmp_path)])
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_command_line_wins_over_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("host: ::1\nport: 7\nproviders:\n  local:\n")
    given = options.parse(["--home", str(tmp_path), "--port", "8", "--insecure"])
    assert (given.host, given.port, given.providers) == ("::1", 8, {"local": {}})
    assert given.told == {"--port": "8", "--insecure": ""}


def test_buckets_need_no_options(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("buckets:\n  s3://a:\n  s3://b/c: {region: eu-west-1}\n")
    assert options.parse(["--home", str(tmp_path)]).buckets == {"s3://a": {}, "s3://b/c": {"region": "eu-west-1"}}


# --- As a process -----------------------------------------------------------------------------------------------------


@pytest.mark.e2e
def test_one_life_of_a_server(home: Home) -> None:
    info = launcher.start_background(home)
    assert launcher.start_background(home) == info
    assert launcher.status(home).healthy
    assert [mode(p) for p in (home.token_file, home.server_file, home.log_file)] == [0o600] * 3
    assert json.loads(home.server_file.read_text())["pid"] == info.pid
    assert info.options == {"--host": "127.0.0.1", "--port": info.url.rpartition(":")[2]}
    second = serve(home)
    assert (second.returncode, second.stdout) == (3, "")
    assert f"another server (pid {info.pid}) at {info.url} runs for {home.path}" in second.stderr
    assert len(second.stderr.splitlines()) == 1

    os.kill(info.pid, signal.SIGKILL)
    while launcher.is_running(home):
        time.sleep(0.01)
    again = launcher.start_background(home)
    assert (again.url, again.deployment) == (info.url, info.deployment)
    assert again.pid != info.pid

    os.kill(again.pid, signal.SIGTERM)
    while launcher.is_running(home):
        time.sleep(0.01)
    assert not home.server_file.exists()
    assert launcher.stop(home) is False
    assert launcher.start_background(home).url == info.url
    assert launcher.stop(home) is True


@pytest.mark.e2e
def test_a_server_whose_folder_is_deleted_ends(home: Home) -> None:
    info = launcher.start_background(home)
    process = psutil.Process(info.pid)
    home.path.rename(home.path.with_name("deleted"))
    process.wait(timeout=30)
    assert (
        "was deleted; nothing can be recorded any more"
        in (home.path.with_name("deleted") / home.log_file.name).read_text()
    )


@pytest.mark.e2e
def test_a_secret_is_nowhere_but_in_the_job_and_its_private_file(home: Home) -> None:
    launcher.start_background(home)
    answers: list[str] = []
    with Client(home=home) as client:
        # Split, so that the text of the task itself does not hold it.
        command = f'test "$KEY" = {SECRET[:7]}"{SECRET[7:]}" && echo it is $KEY'
        task = Task(name="t", run=command, secret_names=("KEY",))
        job = client.submit(task, secrets={"KEY": SECRET})
        kept = home.path / "secrets" / f"{job}.json"
        assert SECRET in kept.read_text()
        assert mode(kept) == 0o600
        detail = client.wait(job, timeout_s=60)
        log = "".join(part.text for part in client.logs(job))
        paths = [
            f"/api/v1/jobs/{job}{p}" for p in ("", "/events", "/why", "/cost", "/logs", "/checkpoints", "/outputs")
        ]
        answers = [json.dumps(client.wire.ask("GET", p)) for p in (*paths, "/api/v1/jobs?all=1", "/api/v1/health")]
        argv = [p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if _readable(p)]
    assert (detail.phase, detail.exit_code) == ("succeeded", 0)
    assert "it is" in log
    launcher.stop(home)
    for answer in answers:
        assert SECRET not in answer
    assert not [line for line in argv if SECRET.encode() in line]
    journal = b"".join(p.read_bytes() for p in home.path.glob("journal.db*"))
    assert job.encode() in journal
    assert SECRET.encode() not in journal
    for file in (home.log_file, home.address_file, *(home.path / "logs").rglob("*.log")):
        assert SECRET not in file.read_text(), file


def _readable(path: Path) -> bool:
    try:
        path.read_bytes()
    except OSError:
        return False
    return True


REFUSED = [
    ([], "buckets:\n  s3://a:\nfiles: s3://b/c\n", 2, "files: 's3://b/c' is in none of the 'buckets'"),
    (["--host", "0.0.0.0"], "", 2, "can be reached from other machines"),
    (["--tls-cert", "c.pem"], "", 2, "a certificate needs its key"),
    (["--cloud", "nowhere.yaml"], "", 2, "there is no file"),
    ([], "providers: {nimbus: }", 2, "there is no provider 'nimbus'"),
    ([], "providers: {local: {colour: red}}", 2, "providers.local.colour: unknown key"),
    (["--cloud", "WRONG"], "", 2, "zoness: unknown key; did you mean 'zones'?"),
    (["--store", "mystery://x"], "", 2, "no store is called 'mystery'"),
    (["--port", "TAKEN"], "", 1, "is taken by another program"),
]


@pytest.mark.e2e
def test_what_cannot_start_says_why_in_one_line(home: Home) -> None:
    home.path.mkdir()
    wrong = home.path / "wrong.yaml"
    wrong.write_text("zoness: {}")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        meant = {"WRONG": str(wrong), "TAKEN": str(taken.getsockname()[1])}
        orders = [
            (home.config_file, config, [meant.get(word, word) for word in given]) for given, config, *_ in REFUSED
        ]
        ended = serve_each(home, [*orders, (home.token_file, "t" * 43, [])])
    wanted = [*((code, text) for *_, code, text in REFUSED), (1, "can be read by others")]
    for (code, said), (wanted_code, text) in zip(ended, wanted, strict=True):
        assert (code, len(said.splitlines())) == (wanted_code, 1), said
        assert text in said
    assert left_behind(home) == "", "a cloud in a box was started for a server that cannot serve"
