"""When the next save is due without anybody asking: fixed seconds, or the local rule on measured costs."""

from __future__ import annotations

import math

from everstep.model.pacing import local_interval_s

DEFAULT_HAZARD_PER_H = 0.1
"""Expected losses of the gang per hour where nobody knows: what public traces show for a spot machine, roughly."""
_LONGEST_S = 1800.0
_FIRST_SAVE_S = 0.0
_BLEND = 0.5
_BACKGROUND_SHARE = 0.1


class Pace:
    """Decides when a save is due. Only rank 0's decision counts; times are monotonic seconds.

    Args:
        every_s: fixed seconds between saves; None: by the local rule from the measured cost of a save and the hazard.
        hazard_per_h: expected losses of the gang per hour.
        now: monotonic seconds.
        save_cost_s: cost of a save, measured by an earlier attempt; None: not known yet.

    Attributes:
        save_cost_s: what a save costs the training: the stall, and a tenth of the time that it works in the background,
            an allowance for the processor and disk that it takes from training meanwhile; None: not known yet.
        save_s: from the beginning of a save to its publication.
    """

    def __init__(self, every_s: float | None, hazard_per_h: float, *, now: float, save_cost_s: float | None) -> None:
        self._every_s = every_s
        self._hazard_per_h = hazard_per_h
        self._since = now
        self._boundary_at: float | None = None
        self.save_cost_s = save_cost_s
        self.save_s = save_cost_s
        self.step_s = 0.0

    @property
    def each_step(self) -> bool:
        """True if every step is to be saved before the next one begins."""
        return self._every_s == 0.0

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

    def due(self, now: float, *, pending: bool = False) -> bool:
        """True at a step boundary where a save should be made.

        Args:
            now: monotonic seconds.
            pending: a save was under way when training came here. It is the one that was due, even if it ends here:
                the interval to the next one is counted from its end on.
        """
        if self._boundary_at is not None:
            step_s = now - self._boundary_at
            self.step_s = step_s if self.step_s == 0.0 else self.step_s + _BLEND * (step_s - self.step_s)
        self._boundary_at = now
        return not pending and now - self._since >= self.interval_s()

    def saved(self, since: float, stall_s: float, *, save_s: float | None = None) -> None:
        """A save, or the failed try of one, is over.

        Args:
            since: when training went on after it was begun; the next one is due an interval later.
            stall_s: how long training stood still for it.
            save_s: how long all of it took; None: no longer than the stall.
        """
        took_s = stall_s if save_s is None else max(save_s, stall_s)
        self.save_cost_s = _blend(self.save_cost_s, stall_s + _BACKGROUND_SHARE * (took_s - stall_s))
        self.save_s = _blend(self.save_s, took_s)
        self._since = since
        if self._boundary_at is not None:
            # A step that begins behind a save made on the spot does not contain it.
            self._boundary_at = max(self._boundary_at, since)

    def again(self) -> None:
        """The last try gave nothing, and the next one will not fail for the same reason: it is due at once."""
        self._since = -math.inf

    def margin_s(self, *, pending: bool = False) -> float:
        """How long before a deadline the last save must begin: a step may be under way, and a save may be slow.

        Args:
            pending: a save is under way, and will be waited for.
        """
        saves = 3.0 if pending else 2.0
        return saves * (self.save_s if self.save_s is not None else 2.0) + 2.0 * self.step_s + 0.3


def _blend(known: float | None, value: float) -> float:
    return value if known is None else known + _BLEND * (value - known)


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
