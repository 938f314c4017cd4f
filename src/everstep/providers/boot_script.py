"""What a machine does when it boots: fetch the agent from the server, mount its disk, run. The same on every cloud.

The script needs a POSIX shell, a Python from 3.9 on and nothing else. It holds one secret, the one-time join token,
and no credential of the cloud. A cloud adds how a machine learns its own id, and under which name a disk shows.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from everstep.model import handshake as hs

ROOT = "/var/lib/everstep"

# In a machine's own words: its id by the metadata service, then the agent, by its digest.
_FETCH = r"""
import hashlib, os, ssl, sys, time, urllib.request
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
@OWN_ID@
def good(data):
    return hashlib.sha256(data).hexdigest() == wanted
def agent():
    # Whoever answers: what is run is what the digest names, and nothing secret is sent.
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    url = os.environ["EVERSTEP_SERVER"].rstrip("/") + "@AGENT_PATH@" + wanted + ".pyz"
    data = urllib.request.urlopen(url, timeout=60, context=anyone).read()
    if not good(data):
        raise ValueError("this is not the agent with the digest " + wanted)
    return data
wanted = os.environ["EVERSTEP_AGENT_SHA256"]
os.environ["EVERSTEP_INSTANCE_ID"] = patiently(own_id)
path = os.path.join(os.environ["EVERSTEP_ROOT"], "agent.pyz")
if not os.path.exists(path) or not good(open(path, "rb").read()):
    with open(path + ".part", "wb") as file:
        file.write(patiently(agent))
    os.rename(path + ".part", path)
os.execv(sys.executable, [sys.executable, path])
"""

# A blank disk gets a file system, a used one is left as it is. Blank is what blkid looked at and found nothing on (2):
# a blkid that is missing or fails says nothing about the disk.
_MOUNT = r"""
device="${EVERSTEP_DEVICES:-/dev/disk/by-id}"/@DEVICE@
for _ in $(seq 3000); do [ -e "$device" ] && break; @OR_ELSE@sleep 0.2; done
found=0; blkid "$device" >/dev/null 2>&1 || found=$?
[ "$found" -ne 2 ] || mkfs.ext4 -q "$device"
mkdir -p "$EVERSTEP_ROOT/volume"
mountpoint -q "$EVERSTEP_ROOT/volume" || mount "$device" "$EVERSTEP_ROOT/volume"
"""


def mounted(device: str, *, or_else: str = "") -> str:
    """Shell text that mounts a disk as ``volume`` below the agent's folder.

    Args:
        device: its name below ``/dev/disk/by-id``.
        or_else: another path under which it may show.
    """
    other = f"[ -e {or_else} ] && device={or_else} && break; " if or_else else ""
    return _MOUNT.replace("@DEVICE@", device).replace("@OR_ELSE@", other).strip()


def script(boot: Mapping[str, str], *, first: Sequence[str], own_id: str, volume: str, limit: tuple[str, int]) -> str:
    """The script.

    Args:
        boot: ``BOOT_*`` environment of the agent, the metadata service included.
        first: lines that it begins with.
        own_id: Python text of a function ``own_id()``, which asks by ``tell(path, method, **headers)``.
        volume: shell text that makes ``volume`` below the agent's folder, or empty.
        limit: the vendor, and how many bytes it takes.

    Raises:
        ValueError: a name that no shell can set, or longer than the limit.
    """
    wanted = {hs.BOOT_ROOT: ROOT, hs.BOOT_CA_FINGERPRINT: "", **boot}
    for name in wanted:
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"{name!r} cannot be the name of a variable")
    # What a test machine says about itself goes before what the script says: only root sets variables of a boot.
    lines = [*first, "set -eu", "umask 077"]
    lines += [f'export {name}="${{{name}:-}}"' for name in sorted(wanted)]
    lines += [f'[ -n "${name}" ] || {name}={shlex.quote(value)}' for name, value in sorted(wanted.items())]
    lines += [f'mkdir -p "${hs.BOOT_ROOT}"', f"cat >\"${hs.BOOT_ROOT}/boot.py\" <<'EVERSTEP_END'"]
    fetch = _FETCH.replace("@AGENT_PATH@", hs.PATH_AGENT).replace("@OWN_ID@", own_id.strip())
    lines += [fetch.strip(), "EVERSTEP_END", "everstep_boot() {", f'cd "${hs.BOOT_ROOT}"']
    lines += [volume] if volume else []
    lines += [f'exec python3 "${hs.BOOT_ROOT}/boot.py"', "}"]
    # The script must return, or the rest of the boot would wait for the agent.
    lines.append(f'everstep_boot >>"${hs.BOOT_ROOT}/boot.log" 2>&1 </dev/null &')
    text = "\n".join(lines) + "\n"
    vendor, most = limit
    if len(text.encode()) > most:
        raise ValueError(f"the boot script has {len(text.encode())} bytes; {vendor} takes {most}")
    return text
