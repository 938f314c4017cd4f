"""The boot script is run by a real shell: it asks the fake's metadata, fetches an agent and becomes it."""

from __future__ import annotations

import http.server
import io
import json
import os
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everstep.model import handshake as hs
from everstep.providers.aws.user_data import AGENT_PATH, boot_script
from everstep.testing.ec2 import FakeEc2
from tests.testing.ec2.conftest import client, machine

AGENT = "import json, os\nopen(os.environ['EVERSTEP_ROOT'] + '/new', 'w').write(json.dumps(dict(os.environ)))\n"
MOVE = "os.rename(os.environ['EVERSTEP_ROOT'] + '/new', os.environ['EVERSTEP_ROOT'] + '/told')\n"


@pytest.fixture
def server() -> Iterator[str]:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("__main__.py", AGENT + MOVE)

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            good = self.path == AGENT_PATH
            self.send_response(200 if good else 404)
            self.end_headers()
            self.wfile.write(packed.getvalue() if good else b"")

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{served.server_address[1]}"
    served.shutdown()
    served.server_close()


def test_a_machine_boots_into_the_agent(fake: FakeEc2, server: str, tmp_path: Path, leak_guard: str) -> None:
    tricky = 'it\'s $HOME `id` "quoted"'
    script = boot_script({hs.BOOT_SERVER: server, hs.BOOT_TOKEN: tricky})
    tokens = {"MetadataOptions": {"HttpTokens": "required"}}
    made = client(fake.url).run_instances(**machine(UserData=script, **tokens))["Instances"][0]["InstanceId"]
    booted = fake.cloud.machines[made].user_data
    assert booted == script
    root = tmp_path / "root"
    environment = {
        "PATH": os.environ["PATH"],
        hs.BOOT_ROOT: str(root),
        hs.BOOT_METADATA: f"aws={fake.metadata.url(made)}",
        "EVERSTEP_TEST_RUN": leak_guard,
    }
    subprocess.run(["sh", "-c", booted], env=environment, check=True, timeout=60)
    for _ in range(600):
        if (root / "told").exists():
            break
        time.sleep(0.05)
    else:
        pytest.fail((root / "boot.log").read_text())
    told = json.loads((root / "told").read_text())
    assert (told[hs.BOOT_INSTANCE], told[hs.BOOT_TOKEN], told[hs.BOOT_SERVER]) == (made, tricky, server)
    assert told[hs.BOOT_METADATA] == environment[hs.BOOT_METADATA]
    assert (root / "boot.py").stat().st_mode & 0o077 == 0


def test_a_disk_is_mounted_by_its_serial_number() -> None:
    script = boot_script({}, volume="vol-0123456789abcdef0")
    assert "nvme-Amazon_Elastic_Block_Store_vol0123456789abcdef0" in script
    assert "mkfs.ext4" in script
    subprocess.run(["sh", "-n", "-c", script], check=True)


@pytest.mark.parametrize("boot", [{"A B": "1"}, {"LONG": "x" * 17_000}])
def test_what_cannot_be_a_script_is_refused(boot: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"cannot be the name of a variable|EC2 takes 16384"):
        boot_script(boot)
