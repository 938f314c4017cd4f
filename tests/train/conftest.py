from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.model import handshake
from everstep.train import opening
from everstep.train.requests import Terminations
from tests.train.zygote import Zygote, zygote


@pytest.fixture(scope="session")
def scripts() -> Iterator[Zygote]:
    """Starts training scripts as real processes; what is left of them at the end is killed."""
    with zygote() as started:
        yield started


@pytest.fixture(autouse=True)
def _as_if_started_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Relaunches of a script may be played in this process: it knows nothing of its earlier trainings."""
    monkeypatch.setattr(opening, "_refuse_another_training", lambda _: None)
    before = signal.getsignal(signal.SIGTERM)
    yield
    Terminations._listeners.clear()
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the library finds in the environment: folders for reports and saves, and nothing of other runs."""
    for name in list(os.environ):
        foreign = name.startswith(("EVERSTEP_CHECKPOINT", "AWS_"))
        if foreign or name in (handshake.ENV_ATTEMPT, handshake.ENV_BASE, handshake.ENV_BASE_SINCE, "WORLD_SIZE"):
            monkeypatch.delenv(name)
    (tmp_path / "reports").mkdir()
    monkeypatch.setenv(handshake.ENV_REPORT_DIR, str(tmp_path / "reports"))
    monkeypatch.setenv(handshake.ENV_CHECKPOINT_DIR, str(tmp_path / "saves"))
    return tmp_path


@pytest.fixture
def small_disk(place: Path) -> Iterator[Path]:
    """The folder for saves is a disk of 1 MB of its own."""
    disk = place / "saves"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs root, to mount a small disk")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
