"""How an attempt ended on this node, from what its processes did and what they were asked."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass

from everstep.model import handshake as hs


@dataclass(frozen=True)
class Exit:
    """End of one rank; ``rc`` is negative for a signal."""

    rank: int
    rc: int

    @property
    def signal(self) -> int | None:
        """The signal it died of; a shell's 128 + n counts, as the shell only passes on what its child died of."""
        if self.rc < 0:
            return -self.rc
        return self.rc - 128 if self.rc - 128 in set(signals.Signals) else None


@dataclass(frozen=True)
class Circumstances:
    """What the agent did and saw besides exit codes.

    Attributes:
        ranks: how many were started.
        asked: they were asked or made to stop.
        signalled: a script without our library was lately sent a signal that means "save and go".
        saved: a checkpoint was published after they were asked.
        complete: the last progress says that all steps are done.
    """

    ranks: int
    asked: bool
    signalled: bool
    saved: bool
    complete: bool


def outcome_of(exits: Sequence[Exit], seen: Circumstances) -> tuple[str, Exit | None]:
    """(OUTCOME_*, the exit that decided it or None). ``exits`` in the order in which they happened.

    A clean exit after a "save and go" signal is not the end of the job: many scripts save and exit 0 on SIGTERM.
    Counting it as stopped costs one short restart if the script was in fact done; counting it as done would lose the
    rest.
    """
    bad = [one for one in exits if one.rc not in (0, hs.EXIT_SAVED)]
    kept = [one for one in exits if one.rc == hs.EXIT_SAVED]
    stopped = hs.OUTCOME_SAVED if kept or seen.saved else hs.OUTCOME_STOPPED
    if len(exits) == seen.ranks and not bad:
        if kept:
            return hs.OUTCOME_SAVED, kept[0]
        if seen.signalled and not seen.complete:
            return stopped, None
        return hs.OUTCOME_OK, None
    if seen.asked:
        return stopped, bad[0] if bad else None
    return hs.OUTCOME_FAILED, bad[0] if bad else None


_RANK_REFUSED = re.compile(rf"^\s*exitcode\s*:\s*{hs.EXIT_REFUSED}\b", re.MULTILINE)
"""How torchrun tells, in its last words, with which code the first rank that failed had left."""


def refused(decisive: Exit | None, tail: str) -> bool:
    """Whether a rank refused to go on, be it one that torchrun had started; ``tail``: the last lines of its log."""
    if decisive is None or decisive.rc == 0:
        return False
    return decisive.rc == hs.EXIT_REFUSED or _RANK_REFUSED.search(tail) is not None
