"""When the next save is due without anybody asking: fixed seconds, or the local rule on measured costs."""

from __future__ import annotations

import math

from everstep.model.pacing import local_interval_s

DEFAULT_HAZARD_PER_H = 0.1
"""Expected losses of the gang per hour where nobody knows: what public traces show for a spot machine, roughly."""
_LONGEST_S = 1800.0
_FIRST_SAVE_S = 0.0
_BLEND = 0.5


class Pace:
    """Decides when a save is due. Only rank 0's decision counts; times are monotonic seconds.

    Args:
        every_s: fixed seconds between saves; None: by the local rule from the measured cost of a save and the hazard.
        hazard_per_h: expected losses of the gang per hour.
        now: monotonic seconds.
        save_cost_s: cost of a save, measured by an earlier attempt; None: not known yet.
    """

    def __init__(self, every_s: float | None, hazard_per_h: float, *, now: float, save_cost_s: float | None) -> None:
        self._every_s = every_s
        self._hazard_per_h = hazard_per_h
        self._since = now
        self._boundary_at: float | None = None
        self.save_cost_s = save_cost_s
        self.step_s = 0.0

    def expect(self, hazard_per_h: float | None) -> None:
        """Learn a new hazard; None changes nothing."""
        if hazard_per_h is not None and hazard_per_h >= 0 and math.isfinite(hazard_per_h):
            self._hazard_per_h = hazard_per_h

    def interval_s(self) -> float:
        """Training time between two saves."""
        if self._every_s is not None:
            return self._every_s
        if self.save_cost_s is None:
            # The first save comes at once: it measures the cost, and shows early that saving works at all.
            return _FIRST_SAVE_S
        hazard_per_s = self._hazard_per_h / 3600.0
        return local_interval_s(self.save_cost_s, lambda age_s: age_s * hazard_per_s, longest_s=_LONGEST_S)

    def due(self, now: float) -> bool:
        """True at a step boundary where a save should be made."""
        if self._boundary_at is not None:
            step_s = now - self._boundary_at
            self.step_s = step_s if self.step_s == 0.0 else self.step_s + _BLEND * (step_s - self.step_s)
        self._boundary_at = now
        return now - self._since >= self.interval_s()

    def saved(self, now: float, cost_s: float) -> None:
        """A save, or the failed try of one, ended now and stopped training for ``cost_s``."""
        known = self.save_cost_s
        self.save_cost_s = cost_s if known is None else known + _BLEND * (cost_s - known)
        self._since = now
        self._boundary_at = now

    def margin_s(self) -> float:
        """How long before a deadline the last save must begin: a step may be under way, and a save may be slow."""
        return 2.0 * (self.save_cost_s if self.save_cost_s is not None else 2.0) + 2.0 * self.step_s + 0.3


def parse_every(text: str) -> float | None:
    """``auto`` (None) or seconds.

    Raises:
        ValueError: says what was expected.
    """
    if text.strip() in ("", "auto"):
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise ValueError(f"expected 'auto' or seconds >= 0, got {text!r}")
    return seconds
