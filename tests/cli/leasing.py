"""Fake clouds of whom ``everstep server up`` leases a machine: it boots, sshd and server on it are real."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from everstep.client.home import Home
from everstep.testing.booting import Machines
from tests.cli.sshd import needs_sshd, python_of_the_image


class Cloud(ABC):
    """A fake vendor and its machines.

    Attributes:
        logs: where logs of machines are, below the folder of all machines.
        packages: what the Python of the image has.
        machines: the hardware.
        fake: the vendor.
    """

    logs: ClassVar[tuple[str, ...]]
    fake: Any

    def __init__(self, folder: Path) -> None:
        needs_sshd()
        self.packages = python_of_the_image(folder)
        self.machines = Machines(folder / "cloud", path=(folder / "bin",))

    @abstractmethod
    def config(self) -> str:
        """``config.yaml`` of an installation that leases there."""

    def console(self) -> str:
        """What there is to know when a test fails."""
        logs = [path for place in self.logs for path in self.machines.home.glob(place)]
        told = "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-4000:]}" for path in logs)
        return f"{told}\nrefused: {list(self.fake.server.refused)[-10:]}"

    @contextlib.contextmanager
    def lent_python(self) -> Iterator[None]:
        """The server's environment has what pip would have brought, so that it starts without what set it up."""
        (venv,) = self.machines.home.glob("disks/*/server/venv/lib/python*/site-packages")
        (venv / "there.pth").write_text(f"{self.packages}\n")
        yield
        (venv / "there.pth").unlink()


C = TypeVar("C", bound=Cloud)


@contextlib.contextmanager
def leased_from(cloud: C, home: Home) -> Iterator[C]:
    """The cloud, started, which the installation at ``home`` leases of; nothing that it ran outlives the block."""
    cloud.fake.start()
    home.path.mkdir()
    home.config_file.write_text(cloud.config())
    try:
        yield cloud
    finally:
        told = [name for name in cloud.fake.stop() if name.startswith("process")]
    assert not told
    assert cloud.fake.power is not None
    assert not [*cloud.fake.server.crashes, *cloud.fake.power.crashes]
