"""What the benchmark needs of a system under test."""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.recover.marks import Recovery, Trail
from benchmarks.recover.net import Net

TRAINEE = Path(__file__).with_name("trainee.py")


class Fault(enum.Enum):
    """What is done to a system."""

    WORKER = "worker killed"
    CHILD = "child host lost"
    MASTER = "master host lost"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a system runs: an empty folder, the network of its hosts (None = everything on the loopback), boot time."""

    folder: Path
    net: Net | None
    boot_s: float

    @property
    def marks(self) -> Path:
        """The file of marks."""
        return self.folder / "marks.jsonl"

    def command(self, checkpoints: Path) -> list[str]:
        """The training, the same for every system."""
        return [sys.executable, str(TRAINEE), "--marks", str(self.marks), "--dir", str(checkpoints)]


class System(Protocol):
    """One system, running one training."""

    name: str
    trail: Trail

    def start(self) -> None:
        """Begins the training afresh; returns at once."""
        ...

    def settled(self) -> bool:
        """Whether everything is as it should be, as far as the system itself tells."""
        ...

    def strike(self, fault: Fault, turn: int) -> tuple[float, float]:
        """Does it; (UTC seconds of the fault, seconds of boot that follow from it). Even and odd turns differ."""
        ...

    def tick(self) -> str:
        """Called many times a second after a fault; tells why it cannot recover any more, or nothing."""
        ...

    def parts(self, fault_at: float, recovery: Recovery) -> dict[str, float]:
        """Where the time went, seconds; boot is a part of its own."""
        ...

    def stop(self) -> None:
        """Ends everything it started."""
        ...
