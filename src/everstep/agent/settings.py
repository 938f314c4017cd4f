"""What the agent is told at boot, and where it keeps things."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from everstep.model import handshake as hs


class SettingsError(Exception):
    """The boot environment is unusable; the text says which variable and why."""


@dataclass(frozen=True)
class Settings:
    """The ``BOOT_*`` variables, checked, and the folders below ``root``."""

    server: str
    token: str
    ca_sha256: str
    metadata: str
    address: str
    root: Path
    instance: str

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> Settings:
        """Read ``env``; raises :class:`SettingsError`."""
        server = env.get(hs.BOOT_SERVER, "").rstrip("/")
        if not server.startswith(("http://", "https://")):
            raise SettingsError(f"{hs.BOOT_SERVER}: expected http(s)://HOST:PORT, got {server!r}")
        root = env.get(hs.BOOT_ROOT, "")
        if not os.path.isabs(root):
            raise SettingsError(f"{hs.BOOT_ROOT}: expected an absolute path, got {root!r}")
        fingerprint = env.get(hs.BOOT_CA_FINGERPRINT, "").replace(":", "").lower()
        if fingerprint and (len(fingerprint) != 64 or set(fingerprint) - set("0123456789abcdef")):
            raise SettingsError(f"{hs.BOOT_CA_FINGERPRINT}: expected 64 hexadecimal digits")
        if fingerprint and not server.startswith("https://"):
            raise SettingsError(f"{hs.BOOT_CA_FINGERPRINT} is set, so {hs.BOOT_SERVER} must be https://")
        instance = env.get(hs.BOOT_INSTANCE, "")
        if not instance:
            raise SettingsError(f"{hs.BOOT_INSTANCE}: missing")
        return cls(
            server=server,
            token=env.get(hs.BOOT_TOKEN, ""),
            ca_sha256=fingerprint,
            metadata=env.get(hs.BOOT_METADATA, "") or "none",
            address=env.get(hs.BOOT_ADDRESS, ""),
            root=Path(root),
            instance=instance,
        )

    @property
    def state(self) -> Path:
        """The agent's own files."""
        return self.root / "agent"

    @property
    def objects(self) -> Path:
        """The socket on which ranks ask for signed URLs."""
        return self.state / "desk" / "objects.sock"

    @property
    def workdir(self) -> Path:
        """Where set-up and ranks run."""
        return self.root / "workdir"

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints of a job go that names no folder: on the lasting disk, if there is one."""
        volume = self.root / "volume"
        return (volume if volume.is_dir() else self.root) / "checkpoints"

    @property
    def logs(self) -> Path:
        """``<attempt>/<rank>.log``."""
        return self.root / "logs"

    def attempt_folder(self, attempt: int) -> Path:
        """Control file and reports of one attempt."""
        return self.root / "attempts" / str(attempt)


BOOT_NAMES = (
    hs.BOOT_SERVER,
    hs.BOOT_TOKEN,
    hs.BOOT_CA_FINGERPRINT,
    hs.BOOT_METADATA,
    hs.BOOT_ADDRESS,
    hs.BOOT_ROOT,
    hs.BOOT_INSTANCE,
    hs.BOOT_AGENT_SHA256,
    hs.BOOT_DEVICES,
)
"""Never passed on to what the user runs: the join token is ours."""
