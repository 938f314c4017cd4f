"""The agent as machines fetch it at boot: one file, named by its digest.

Whoever asks gets it. It holds no secret (it is part of everstep), and a machine does not ask who answered: its boot
script carries the digest and runs nothing else. So the one-time token of a machine travels once, at join, over the
pinned connection of the agent, and the boot script needs neither a certificate nor a clock that is right.

Older files stay as long as machines that were launched with their digest may still boot.
"""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from everstep.agent.bundle import build_pyz

_KEPT_S = 30 * 86_400.0
_SUFFIX = ".pyz"


class AgentFiles:
    """The agents that machines of this server were told to run.

    Attributes:
        sha256: digest of the one that belongs to this everstep.
        size: its bytes.
    """

    def __init__(self, folder: Path) -> None:
        """Builds the agent into ``folder``; one of the same sources is found there again."""
        built = build_pyz(folder / f"new{_SUFFIX}")
        data = built.read_bytes()
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.size = len(data)
        self._folder = folder
        built.replace(folder / f"{self.sha256}{_SUFFIX}")
        for path in folder.glob(f"*{_SUFFIX}"):
            if path.stat().st_mtime < time.time() - _KEPT_S:
                path.unlink(missing_ok=True)

    def file(self, name: str) -> Path | None:
        """The file ``<sha256>.pyz``; None if there is none, or the name is another."""
        digest = name.removesuffix(_SUFFIX)
        if digest == name or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
            return None
        path = self._folder / name
        return path if path.is_file() else None
