"""A server on another machine, by a real sshd and a real Python environment there."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest

from everstep.client import launcher, remote
from everstep.client.home import Home, UnsafeFile
from everstep.client.placing import over_there
from everstep.client.placing.placing import Wish
from everstep.client.placing.wheel import build_wheel
from everstep.client.remote import RemoteServer
from everstep.providers.local import LocalProvider
from everstep.server.listening import bind_anywhere
from tests.cli.conftest import Cli
from tests.cli.sshd import Machine, sshd

ELSEWHERE = RemoteServer(
    kind="ssh",
    url="https://127.0.0.1:9",
    fingerprint="ab" * 32,
    token="not-for-everybody",
    deployment="d-1",
    host="box",
    folder="/srv/everstep",
    since=1_900_000_000.0,
    usd_per_h=0.5,
)


@pytest.fixture
def machine(tmp_path: Path, leak_guard: str) -> Iterator[Machine]:
    folder = tmp_path / "sshd"
    folder.mkdir()
    with sshd(folder) as made:
        yield made
        there = Home(made.folder / ".everstep-server" / "home")
        if launcher.is_running(there):
            launcher.stop(there)
        if (there.path / "local").exists():
            asyncio.run(LocalProvider(there.path / "local").stop())


def free_port() -> str:
    with bind_anywhere("127.0.0.1") as free:
        return str(free.getsockname()[1])


# --- The whole of it --------------------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.expensive(family="clouds end to end")
def test_up_run_kill_up_down(cli: Cli, home: Home, machine: Machine, one_wheel: None) -> None:
    home.path.mkdir()
    home.config_file.write_text("lease_s: 500\nhost: 10.9.9.9\nadvertise: http://nobody:1\n")
    up = ("server", "up", "ssh", "box", "--ssh-config", str(machine.config), "--port", free_port(), "--no-unit")
    bucket = f"file://{machine.folder / 'bucket'}"
    done = cli(*up, "--usd-per-h", "0.25", "--backup", bucket)
    assert done.code == 0, done.err
    there = machine.folder / ".everstep-server"
    first = remote.find(home)
    assert first is not None
    assert (first.host, first.folder) == ("box", str(there))
    assert stat.S_IMODE(home.remote_file.stat().st_mode) == 0o600
    assert [oct(stat.S_IMODE(p.stat().st_mode)) for p in (there, there / "home" / "token")] == ["0o700", "0o600"]
    said = done.out + done.err + (machine.folder.parent / "log").read_text()
    assert first.token not in said

    shown = json.loads(cli("server", "status", "-o", "json").out)
    assert shown["deployment"] == first.deployment
    assert (shown["remote"]["host"], shown["remote"]["usd_per_h"]) == ("box", 0.25)
    assert first.token not in json.dumps(shown)
    assert "$0.25/h" in cli("server", "status").out

    done = cli("run", "-y", "--", "echo it runs $EVERSTEP_JOB over there")
    assert (done.code, "over there" in done.out) == (0, True), done.err
    assert cli("server", "start").code == cli("server", "stop").code == 1

    job = cli("run", "-y", "-d", "--", "sleep 600").out.strip()
    os.kill(int((there / "home" / "server.lock").read_text()), signal.SIGKILL)
    assert cli("jobs").code == 3
    assert cli("server", "status").code == 3
    done = cli(*up, "--backup", bucket)
    assert done.code == 0, done.err
    assert "installing" not in done.err
    again = remote.find(home)
    assert again == first, "the same server: place, pin, token, since when, and what it costs"
    assert job in cli("jobs").out

    refused = cli("server", "down")
    assert (refused.code, "1 job lives" in refused.err) == (1, True), refused.err
    assert cli("server", "down", "--force").code == 0
    assert remote.find(home) is None
    assert (there / "home" / "journal.db").exists()
    assert cli("jobs").code == 3

    # The disk is lost; what is left is the backup that it made when it was stopped, and its machines.
    for path in (there / "home").iterdir():
        if path.name != "local":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = cli(*up, "--restore", bucket)
    assert done.code == 0, done.err
    back = remote.find(home)
    assert back is not None
    assert (back.deployment, back.fingerprint, back.token) == (first.deployment, first.fingerprint, first.token)
    assert job in cli("jobs").out
    again_and_again = cli(*up, "--restore", bucket)
    assert (again_and_again.code, "there is a journal already" in again_and_again.err) == (1, True)
    assert cli("cancel", job).code == 0
    deadline = time.monotonic() + 60.0
    while (refused := cli("server", "down")).code != 0:
        assert "lives" in refused.err
        assert time.monotonic() < deadline, refused.err
        time.sleep(0.2)


# --- What goes wrong --------------------------------------------------------------------------------------------------


def one_line(text: str) -> str:
    assert text.count("\n") == 1, text
    return text


def test_a_machine_without_a_new_python_is_named_in_one_line(cli: Cli, home: Home, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "sh").symlink_to(shutil.which("sh") or "/bin/sh")
    (tmp_path / "sshd").mkdir()
    with sshd(tmp_path / "sshd", path=str(tmp_path / "old")) as machine:
        done = cli("server", "up", "ssh", "box", "--ssh-config", str(machine.config))
    assert (done.code, one_line(done.err)) == (1, "everstep server up: box: the machine has no Python from 3.11 on\n")
    assert not home.remote_file.exists()
    assert not list(machine.folder.iterdir())


def test_a_machine_with_another_host_key_gets_nothing(cli: Cli, home: Home, machine: Machine) -> None:
    known = machine.config.with_name("known")
    known.write_text(known.read_text().replace(machine.config.with_name("host.pub").read_text(), "ssh-ed25519 AAAA"))
    done = cli("server", "up", "ssh", "box", "--ssh-config", str(machine.config))
    assert (done.code, "verification failed" in one_line(done.err)) == (1, True)
    assert not list(machine.folder.iterdir())


def test_a_machine_that_is_not_there(cli: Cli, home: Home, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host box\n HostName 127.0.0.1\n Port {free_port()}\n BatchMode yes\n")
    done = cli("server", "up", "ssh", "box", "--ssh-config", str(config))
    assert (done.code, "Connection refused" in one_line(done.err)) == (1, True)
    assert not home.remote_file.exists()


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "a b", "box;true", "$(id)", ""])
def test_no_name_of_a_machine(cli: Cli, host: str) -> None:
    done = cli("server", "up", "ssh", "--", host)
    assert (done.code, one_line(done.err)[:8]) == (2, "everstep")


def test_a_dead_server_elsewhere(cli: Cli, home: Home) -> None:
    remote.keep(home, ELSEWHERE)
    done = cli("server", "status")
    assert done.code == 3
    for words in ("https://127.0.0.1:9", "box (ssh), in /srv/everstep", "$0.50/h"):
        assert words in done.out
    shown = json.loads(cli("server", "status", "-o", "json").out)
    assert (shown["healthy"], shown["remote"]["host"]) == (False, "box")
    refused = cli("server", "down")
    assert (refused.code, "nobody knows whether jobs live; --force" in one_line(refused.err)) == (1, True)
    for told in (done, refused, cli("jobs"), cli("server", "start")):
        assert told.code != 0
        assert ELSEWHERE.token not in told.out + told.err


def test_a_machine_that_is_gone_can_be_forgotten(cli: Cli, home: Home, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host box\n HostName 127.0.0.1\n Port {free_port()}\n BatchMode yes\n")
    remote.keep(home, dataclasses.replace(ELSEWHERE, more={"ssh_config": str(config)}))
    done = cli("server", "down", "--force")
    assert (done.code, "--forget" in one_line(done.err)) == (1, True)
    assert cli("server", "down", "--forget").code == 0
    assert remote.find(home) is None
    done = cli("server", "down")
    assert (done.code, "everstep server stop" in one_line(done.err)) == (3, True)


def test_one_server_at_a_time(cli: Cli, home: Home, machine: Machine) -> None:
    remote.keep(home, dataclasses.replace(ELSEWHERE, host="another"))
    done = cli("server", "up", "ssh", "box", "--ssh-config", str(machine.config))
    assert (done.code, "everstep server down" in one_line(done.err)) == (1, True)
    assert not list(machine.folder.iterdir())


# --- Pieces -----------------------------------------------------------------------------------------------------------


def test_the_record_is_private_and_whole(home: Home) -> None:
    remote.keep(home, ELSEWHERE)
    assert remote.find(home) == ELSEWHERE
    assert ELSEWHERE.token not in repr(ELSEWHERE)
    home.remote_file.chmod(0o644)
    with pytest.raises(UnsafeFile, match="chmod 600"):
        remote.find(home)
    home.remote_file.chmod(0o600)
    for torn in (home.remote_file.read_text()[:40], "{}", "[]", ""):
        home.remote_file.write_text(torn)
        with pytest.raises(UnsafeFile, match="is not what everstep server up wrote"):
            remote.find(home)


def test_the_wheel_is_the_code_that_runs_here_and_always_the_same() -> None:
    name, data = build_wheel()
    assert (name, data) == build_wheel()
    with zipfile.ZipFile(BytesIO(data)) as archive:
        names = archive.namelist()
        assert archive.read("everstep/client/placing/wheel.py") == Path(build_wheel.__code__.co_filename).read_bytes()
        record = archive.read(next(n for n in names if n.endswith("RECORD"))).decode()
    assert {"everstep/client/taskfile/schema.json", "everstep/py.typed"} <= set(names)
    assert not [n for n in names if "__pycache__" in n]
    assert [line.partition(",")[0] for line in record.splitlines()] == names


def test_the_configuration_goes_along_but_for_where_it_listens() -> None:
    import yaml

    given = {"lease_s": 60, "host": "1.2.3.4", "tls_cert": "/x", "store": "sqlite:///x", "providers": {"aws": {"a": 1}}}
    wish = Wish(address="203.0.113.9", port=7000, config=given, backup="s3://b/x")
    assert yaml.safe_load(wish.config_text()) == {
        "lease_s": 60,
        "providers": {"aws": {"a": 1}},
        "host": "0.0.0.0",
        "port": 7000,
        "tls": True,
        "advertise": "https://203.0.113.9:7000",
        "backup": "s3://b/x",
    }
    assert yaml.safe_load(Wish(address="::1").config_text())["advertise"] == "https://[::1]:7443"


def over(folder: Path, request: dict[str, object], data: bytes) -> subprocess.CompletedProcess[bytes]:
    """What ssh starts over there."""
    sent = json.dumps({"do": "up", "folder": str(folder), **request}).encode() + b"\n" + data
    command = [sys.executable, over_there.__file__]
    return subprocess.run(command, input=sent, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("request_", "data", "text"),
    [
        ({"bytes": 100}, b"only a part", "the connection broke before everything was here"),
        ({"bytes": 0, "do": "down"}, b"", "there is no everstep server in "),
        ({}, b"", "bytes"),
    ],
)
def test_what_goes_wrong_over_there_is_an_answer(
    tmp_path: Path, request_: dict[str, object], data: bytes, text: str
) -> None:
    done = over(tmp_path / "there", request_, data)
    (line,) = done.stdout.decode().splitlines()
    assert text in json.loads(line.removeprefix(over_there.ANSWER))["error"]
    assert (done.returncode, done.stderr) == (1, b"")
    assert not (tmp_path / "there" / "home").exists()


def test_two_at_once_do_not_mix(tmp_path: Path) -> None:
    with over_there.Place(str(tmp_path)).alone():
        done = over(tmp_path, {"bytes": 0, "do": "down"}, b"")
        assert b"somebody else sets up or ends the server" in done.stdout
    assert b"there is no everstep server" in over(tmp_path, {"bytes": 0, "do": "down"}, b"").stdout


def test_an_installation_that_was_cut_off_is_not_taken_for_whole(tmp_path: Path) -> None:
    """The pip of this environment fails the first time."""
    place = over_there.Place(str(tmp_path))
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "pip").touch()
    (programs / "python").write_text(
        f"#!/bin/sh\n[ $1 = -c ] || [ -e {tmp_path}/net ] || {{ echo 'no network' >&2; exit 1; }}\n"
    )
    (programs / "python").chmod(0o700)
    with pytest.raises(over_there.Trouble, match="pip: no network"):
        place.install("e.whl", b"new", ["tls"])
    assert place.installed() == ""
    (tmp_path / "net").touch()
    assert place.install("e.whl", b"new", ["tls"])
    assert not place.install("e.whl", b"new", ["tls"])
    assert place.install("e.whl", b"new", ["aws", "tls"])
    (tmp_path / "net").unlink()
    with pytest.raises(over_there.Trouble):
        place.install("e.whl", b"newer", ["aws", "tls"])
    assert place.installed() == "", "half of one and half of the other"


SYSTEMCTL = """#!/bin/sh
# Does what systemd would: start runs ExecStart in the background, as long as the unit is there.
[ "$1" != --user ] || shift
echo "$*" >>{told}
[ "$1" != start ] || sh -c "$(sed -n 's/^ExecStart=//p' {unit}) >/dev/null 2>&1 &"
"""


def test_where_systemd_runs_a_unit_starts_it_now_and_at_every_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leak_guard: str
) -> None:
    """A stand-in for systemctl that really starts what the unit says."""
    place = over_there.Place(str(tmp_path / "it's 100% there"))
    (tmp_path / "bin").mkdir()
    Path(place.home).mkdir(parents=True)
    programs = Path(place.venv, "bin")
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    unit = over_there.Unit(place)
    unit.is_root = False
    unit.path = str(tmp_path / "units" / unit.name)
    told = tmp_path / "told"
    for name in ("systemctl", "loginctl"):
        (tmp_path / "bin" / name).write_text(SYSTEMCTL.format(told=told, unit=tmp_path / "plain"))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert unit.possible()
    assert unit.write()
    assert not unit.write(), "the same again changes nothing"
    text = Path(unit.path).read_text()
    assert "100%% there" in text, "systemd would read a specifier"
    (tmp_path / "plain").write_text(text.replace("%%", "%").replace(str(programs / "python"), sys.executable))
    try:
        unit.start()
        assert place.is_running()
    finally:
        launcher.stop(Home(Path(place.home)))
    unit.remove()
    assert not Path(unit.path).exists()
    said = told.read_text().splitlines()
    assert said == [
        "show-environment",
        "daemon-reload",
        f"enable {unit.name}",
        f"start {unit.name}",
        "enable-linger",
        f"disable {unit.name}",
        "daemon-reload",
    ]


def test_without_systemd_there_is_no_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not over_there.Unit(over_there.Place(str(tmp_path))).possible()
