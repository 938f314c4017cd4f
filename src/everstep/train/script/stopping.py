"""SIGTERM while a script runs: save at the next safe point and end; asked twice, end at once."""

from __future__ import annotations

import os
import signal
from types import FrameType

from everstep.train.requests import Terminations


class Stopping(Terminations):
    """Raises `asked` at the first SIGTERM; at the second the process ends as it would have without us."""

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)
            return
        super()._on_signal(number, frame)
