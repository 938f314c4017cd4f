"""The boot script runs on a machine of the fake: it asks its metadata, fetches the agent it was told, becomes it."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import shutil
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.model import handshake as hs
from everstep.providers.aws.user_data import boot_script
from everstep.testing.booting import Machines
from everstep.testing.ec2 import FakeEc2
from tests.agent.conftest import until
from tests.providers.aws.conftest import MakeFake
from tests.testing.ec2.conftest import client, machine

AGENT = """
import json, os, sys
root = os.environ["EVERSTEP_ROOT"]
with open(root + "/new", "w") as file:
    json.dump({**os.environ, "python": list(sys.version_info[:2])}, file)
with open(root + "/starts", "a") as file:
    file.write("x")
os.rename(root + "/new", root + "/told")
"""
TOKENS = {"MetadataOptions": {"HttpTokens": "required"}}


class Server:
    """Gives the agent away, after as many wrong answers as it was told."""

    def __init__(self) -> None:
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("__main__.py", AGENT)
        self.agent = packed.getvalue()
        self.sha256 = hashlib.sha256(self.agent).hexdigest()
        self.lies = 0
        self.asked: list[tuple[str, str]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, format: str, *args: Any) -> None:
                pass

            def do_GET(self) -> None:
                outer.asked.append((self.path, str(self.headers)))
                good = self.path == f"{hs.PATH_AGENT}{outer.sha256}.pyz"
                outer.lies -= 1
                self.send_response(200 if good else 404)
                self.end_headers()
                self.wfile.write(b"" if not good else outer.agent if outer.lies < 0 else b"print('evil')")

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def image(tmp_path: Path) -> tuple[Path, ...]:
    """An image with the oldest Python that the agent runs on, if this computer has it; else the system's own."""
    found = shutil.which("python3.9")
    if found is None or subprocess.run([found, "--version"], capture_output=True, check=False).returncode:
        return ()
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "python3").symlink_to(found)
    return (bin_folder,)


@pytest.fixture
def fake(leak_guard: str, make_fake: MakeFake, tmp_path: Path, image: tuple[Path, ...]) -> FakeEc2:
    return make_fake(machines=Machines(tmp_path / "cloud", path=image))


def launch(fake: FakeEc2, script: str) -> str:
    return str(client(fake.url).run_instances(**machine(UserData=script, **TOKENS))["Instances"][0]["InstanceId"])


def described(ec2: Any, name: str, value: str) -> list[Any]:
    found: list[Any] = ec2.describe_instances(Filters=[{"Name": name, "Values": [value]}])["Reservations"]
    return found


def told_by(fake: FakeEc2, instance: str) -> dict[str, Any]:
    assert fake.machines is not None
    until(lambda: fake.machines is not None and fake.machines.booted(instance), "boot")
    root = fake.machines.root(instance)
    until((root / "told").exists, f"the agent of {instance}")
    found: dict[str, Any] = json.loads((root / "told").read_text())
    return found


def test_a_machine_boots_into_the_agent_it_was_told(fake: FakeEc2, server: Server, image: tuple[Path, ...]) -> None:
    tricky = 'it\'s $HOME `id` "quoted"'
    boot = {hs.BOOT_SERVER: server.url, hs.BOOT_TOKEN: tricky, hs.BOOT_AGENT_SHA256: server.sha256}
    server.lies = 1
    made = launch(fake, boot_script(boot))
    told = told_by(fake, made)
    assert (told[hs.BOOT_INSTANCE], told[hs.BOOT_TOKEN], told[hs.BOOT_SERVER]) == (made, tricky, server.url)
    assert told[hs.BOOT_METADATA] == f"aws={fake.metadata.url(made)}"
    assert not image or told["python"] == [3, 9]
    assert fake.machines is not None
    root = fake.machines.root(made)
    assert len(server.asked) == 2, "what is not the agent of the digest is not run, and fetched again"
    assert "evil" not in (root / "boot.log").read_text()
    assert all(tricky not in asked for _, asked in server.asked), "the token is not for whoever serves the agent"
    assert (root / "boot.py").stat().st_mode & 0o077 == 0


def test_a_machine_that_reboots_has_its_agent_already(fake: FakeEc2, server: Server) -> None:
    made = launch(fake, boot_script({hs.BOOT_SERVER: server.url, hs.BOOT_AGENT_SHA256: server.sha256}))
    told_by(fake, made)
    assert fake.machines is not None
    starts = fake.machines.root(made) / "starts"
    fake.reboot(made)
    until(lambda: starts.read_text() == "xx", "the second start of the agent")
    assert len(server.asked) == 1
    (starts.parent / "agent.pyz").write_bytes(b"torn")
    fake.reboot(made)
    until(lambda: starts.read_text() == "xxx", "the third start of the agent")
    assert len(server.asked) == 2


def test_a_disk_is_formatted_once_and_mounted_by_its_serial_number(fake: FakeEc2, server: Server) -> None:
    ec2 = client(fake.url)
    disk = ec2.create_volume(AvailabilityZone="us-east-1a", Size=8)["VolumeId"]
    boot = {hs.BOOT_SERVER: server.url, hs.BOOT_AGENT_SHA256: server.sha256}
    assert fake.machines is not None
    for turn in ("x", "xx"):
        made = launch(fake, boot_script(boot, volume=disk))
        until(lambda: described(ec2, "instance-state-name", "running"), "a machine that runs")
        ec2.attach_volume(VolumeId=disk, InstanceId=made, Device="/dev/sdf")
        told_by(fake, made)
        folder = fake.machines.root(made) / "volume"
        assert folder.is_dir()
        with (folder / "turns").open("a") as file:
            file.write("x")
        assert (folder / "turns").read_text() == turn
        ec2.terminate_instances(InstanceIds=[made])
        until(lambda: ec2.describe_volumes(VolumeIds=[disk])["Volumes"][0]["State"] == "available", "the free disk")
        assert not fake.machines.processes(made)


@pytest.mark.parametrize(("says", "formatted"), [(0, False), (2, True), (4, False), (8, False), (127, False)])
def test_only_a_disk_that_was_found_blank_is_formatted(tmp_path: Path, says: int, formatted: bool) -> None:
    for name, act in (("blkid", f"exit {says}"), ("mkfs.ext4", "touch formatted"), ("mount", "touch mounted; exit 32")):
        tool = tmp_path / "bin" / name
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f"#!/bin/sh\ncd {tmp_path}\n{act}\n")
        tool.chmod(0o755)
    (tmp_path / "nvme-Amazon_Elastic_Block_Store_vol1").touch()
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "EVERSTEP_DEVICES": str(tmp_path), hs.BOOT_ROOT: str(tmp_path)}
    subprocess.run(["sh", "-c", boot_script({}, volume="vol-1")], env=env, check=True)
    until((tmp_path / "mounted").exists, "the mount")
    assert (tmp_path / "formatted").exists() is formatted


@pytest.mark.parametrize("boot", [{"A B": "1"}, {"LONG": "x" * 17_000}])
def test_what_cannot_be_a_script_is_refused(boot: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"cannot be the name of a variable|EC2 takes 16384"):
        boot_script(boot)
