"""What a machine does when it boots: fetch the agent from the server, mount its disk, run.

The script needs a POSIX shell, a Python from 3.9 on and nothing else. It holds one secret, the one-time join token,
and no credential of the cloud.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from everstep.model import handshake as hs

AGENT_PATH = "/agent/v1/agent.pyz"
"""Where the server gives the agent away, without asking who it is: it holds no secret."""
ROOT = "/var/lib/everstep"
METADATA_URL = "http://169.254.169.254"
LIMIT_BYTES = 16_384
"""EC2 takes no more, before it is encoded: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/user-data.html"""

# In a machine's own words: its id by IMDSv2, then the agent, checked against the pinned certificate.
_FETCH = r"""
import hashlib, os, socket, ssl, sys, time, urllib.parse, urllib.request
base = os.environ["EVERSTEP_METADATA"].partition("=")[2]
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
def tell(path, method="GET", **headers):
    named = {k.replace("_", "-"): v for k, v in headers.items()}
    made = urllib.request.Request(base + path, method=method, headers=named)
    return direct.open(made, timeout=5).read().decode()
def patiently(act):
    for pause in [1] * 10 + [5] * 120:
        try:
            return act()
        except Exception as error:
            print("everstep:", type(error).__name__, error, file=sys.stderr)
            time.sleep(pause)
    sys.exit("everstep: given up")
def own_id():
    token = tell("/latest/api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="300")
    return tell("/latest/meta-data/instance-id", X_aws_ec2_metadata_token=token)
def agent():
    server = os.environ["EVERSTEP_SERVER"].rstrip("/")
    pinned = os.environ["EVERSTEP_CA_SHA256"].replace(":", "").lower()
    context = None
    if server.startswith("https:"):
        url = urllib.parse.urlsplit(server)
        context = ssl.create_default_context()
        if pinned:
            plain = ssl.create_default_context()
            plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
            with socket.create_connection((url.hostname, url.port or 443), 10) as raw:
                with plain.wrap_socket(raw, server_hostname=url.hostname) as made:
                    shown = made.getpeercert(True)
            if hashlib.sha256(shown).hexdigest() != pinned:
                raise SystemExit("everstep: the server shows another certificate than the pinned one")
            context = ssl.create_default_context(cadata=ssl.DER_cert_to_PEM_cert(shown))
            context.check_hostname = False
    return urllib.request.urlopen(server + "@AGENT_PATH@", timeout=60, context=context).read()
os.environ["EVERSTEP_INSTANCE_ID"] = patiently(own_id)
path = os.path.join(os.environ["EVERSTEP_ROOT"], "agent.pyz")
if not os.path.exists(path):
    with open(path + ".part", "wb") as file:
        file.write(patiently(agent))
    os.rename(path + ".part", path)
os.execv(sys.executable, [sys.executable, path])
"""

# EBS shows a volume under its id without the dash; a blank one gets a file system, a used one is left as it is.
_MOUNT = r"""
device=/dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_@SERIAL@
for _ in $(seq 600); do [ -e "$device" ] && break; [ -e /dev/xvdf ] && device=/dev/xvdf && break; sleep 1; done
blkid "$device" >/dev/null 2>&1 || mkfs.ext4 -q "$device"
mkdir -p "$EVERSTEP_ROOT/volume"
mountpoint -q "$EVERSTEP_ROOT/volume" || mount "$device" "$EVERSTEP_ROOT/volume"
"""


def boot_script(boot: Mapping[str, str], *, volume: str | None = None) -> str:
    """The script, a file that cloud-init runs at every boot.

    Args:
        boot: ``BOOT_*`` environment of the agent.
        volume: id of the disk to mount as ``volume`` below the agent's folder.

    Raises:
        ValueError: a name that no shell can set, or longer than EC2 takes.
    """
    wanted = {hs.BOOT_ROOT: ROOT, hs.BOOT_METADATA: f"aws={METADATA_URL}", hs.BOOT_CA_FINGERPRINT: "", **boot}
    for name in wanted:
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} cannot be the name of a variable")
    # What a test machine says about itself goes before what the script says: only root sets variables of cloud-init.
    lines = ["#cloud-boothook", "#!/bin/sh", "set -eu", "umask 077"]
    lines += [f'export {name}="${{{name}:-}}"' for name in sorted(wanted)]
    lines += [f'[ -n "${name}" ] || {name}={shlex.quote(value)}' for name, value in sorted(wanted.items())]
    lines += [f'mkdir -p "${hs.BOOT_ROOT}"', f"cat >\"${hs.BOOT_ROOT}/boot.py\" <<'EVERSTEP_END'"]
    lines += [_FETCH.replace("@AGENT_PATH@", AGENT_PATH).strip(), "EVERSTEP_END"]
    lines += ["everstep_boot() {", f'cd "${hs.BOOT_ROOT}"']
    if volume is not None:
        lines.append(_MOUNT.replace("@SERIAL@", volume.replace("-", "")).strip())
    lines += [f'exec python3 "${hs.BOOT_ROOT}/boot.py"', "}"]
    # A boot hook must return, or the rest of the boot would wait for the agent.
    lines.append(f'everstep_boot >>"${hs.BOOT_ROOT}/boot.log" 2>&1 </dev/null &')
    text = "\n".join(lines) + "\n"
    if len(text.encode()) > LIMIT_BYTES:
        raise ValueError(f"the boot script has {len(text.encode())} bytes; EC2 takes {LIMIT_BYTES}")
    return text
