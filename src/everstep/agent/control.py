"""The control file: what the agent wants of the ranks of one attempt."""

from __future__ import annotations

from pathlib import Path

from everstep.agent import atomic
from everstep.model import handshake as hs


class ControlFile:
    """Written atomically; ranks look at it at each step boundary. Methods raise OSError when the disk is full."""

    def __init__(self, path: Path, hazard_per_h: float) -> None:
        self.path = path
        self._seq = 0
        self._save = False
        self._save_by: float | None = None
        self._stop = False
        self._hazard_per_h = hazard_per_h

    @property
    def save_by(self) -> float | None:
        """The deadline of the latest save that was asked for."""
        return self._save_by

    def write(self) -> None:
        """Write what is wanted now."""
        atomic.write_json(
            self.path,
            {
                hs.CONTROL_SEQ: self._seq,
                hs.CONTROL_SAVE: self._save,
                hs.CONTROL_SAVE_BY: self._save_by,
                hs.CONTROL_STOP: self._stop,
                hs.CONTROL_HAZARD_PER_H: self._hazard_per_h,
            },
            mode=0o644,
        )

    def ask_save(self, by: float | None) -> None:
        """Save at the next boundary, and again shortly before ``by``."""
        self._seq += 1
        self._save, self._save_by = True, by
        self.write()

    def ask_stop(self) -> None:
        """Save at the next boundary and exit."""
        self._seq += 1
        self._save = self._stop = True
        self.write()

    def tell_hazard(self, hazard_per_h: float) -> None:
        """A new expectation of losses; asks for nothing."""
        if hazard_per_h != self._hazard_per_h:
            self._hazard_per_h = hazard_per_h
            self.write()
