"""What the machine that holds a server does at every boot: mount its disk, let its owner in, start what was there.

It needs a shell, OpenSSH's server and Python 3.11 or newer (with ``venv``, which is fetched on Debian and Ubuntu where
it is missing). Its sshd is one of its own, beside the image's: another port, one key, one user, a host key that the
owner knows beforehand, so that the first connection is as safe as the last. The script holds that host key, and no
credential of the cloud: these come to the machine as its role.
"""

from __future__ import annotations

from collections.abc import Sequence

from everstep.model import handshake as hs
from everstep.providers.hosting import SSH_PORT, Host

ROOT = "/var/lib/everstep"
FOLDER = f"${hs.BOOT_ROOT}/volume/server"
"""Of the server, on its disk; logins have the variable."""

# A test machine is processes of one user of somebody's computer: it makes no accounts and installs nothing there.
_SCRIPT = r"""
export @ROOT@="${@ROOT@:-/var/lib/everstep}"
here="${@ADDRESS@:-}"
mkdir -p "$@ROOT@/ssh"
chmod 711 "$@ROOT@" "$@ROOT@/ssh"
cat >"$@ROOT@/ssh/host" <<'EVERSTEP_END'
@HOST_KEY@
EVERSTEP_END
cat >"$@ROOT@/ssh/authorized" <<'EVERSTEP_END'
@LOGIN@
EVERSTEP_END
chmod 644 "$@ROOT@/ssh/authorized"
everstep_account() {
[ -z "$here" ] || { id -un; return; }
id everstep >/dev/null 2>&1 || useradd --create-home --shell /bin/sh --password '*' everstep
loginctl enable-linger everstep >&2 || true
python3 -c 'import ensurepip' 2>/dev/null || for _ in 1 2 3 4 5 6; do
apt-get -o DPkg::Lock::Timeout=300 update >&2 && DEBIAN_FRONTEND=noninteractive \
apt-get -o DPkg::Lock::Timeout=300 install -y python3-venv >&2 && break
sleep 10
done
echo everstep
}
everstep_host() {
cd "$@ROOT@"
user=$(everstep_account)
@MOUNT@
[ -n "$here" ] || chown "$user" "$@ROOT@/volume"
chmod 711 "$@ROOT@/volume/"
if [ -n "$here" ]; then
@HERE@
fi
cat >"$@ROOT@/ssh/config" <<EVERSTEP_END
Port @SSH_PORT@
ListenAddress ${here:-0.0.0.0}
HostKey $@ROOT@/ssh/host
PidFile none
UsePAM no
StrictModes no
AuthorizedKeysFile $@ROOT@/ssh/authorized
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers $user
SetEnv @ROOT@=$@ROOT@ PATH=$PATH${more:-}
EVERSTEP_END
[ "$(id -u)" -ne 0 ] || mkdir -p /run/sshd
sshd=$(command -v sshd || echo /usr/sbin/sshd)
"$sshd" -f "$@ROOT@/ssh/config"
start="$@ROOT@/volume/server/start"
if [ -x "$start" ]; then
if [ -n "$here" ]; then "$start"
elif [ ! -d /run/systemd/system ]; then su "$user" -c "$start"
fi
fi
}
everstep_host >>"$@ROOT@/boot.log" 2>&1 </dev/null &
"""


def script(host: Host, *, first: Sequence[str], mount: str, here: str, limit: tuple[str, int]) -> str:
    """The script.

    Args:
        host: whose keys it holds.
        first: lines that it begins with.
        mount: shell text that makes ``volume`` below the root.
        here: shell text for test machines, which have metadata services elsewhere; may set ``more``, for logins.
        limit: the vendor, and how many bytes it takes.

    Raises:
        ValueError: longer than the limit.
    """
    text = _SCRIPT.lstrip()
    parts = {
        "@MOUNT@": mount,
        "@HERE@": here.strip() or ":",
        "@HOST_KEY@": host.host_key.strip(),
        "@LOGIN@": host.login.strip(),
        "@SSH_PORT@": str(SSH_PORT),
        "@ROOT@": hs.BOOT_ROOT,
        "@ADDRESS@": hs.BOOT_ADDRESS,
    }
    for name, value in parts.items():
        text = text.replace(name, value)
    text = "\n".join([*first, "set -eu", "umask 077", text])
    vendor, most = limit
    if len(text.encode()) > most:
        raise ValueError(f"the boot script has {len(text.encode())} bytes; {vendor} takes {most}")
    return text
