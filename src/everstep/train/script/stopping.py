"""SIGTERM while a script runs: save at the next safe point and end; asked twice, end at once."""

from __future__ import annotations

from everstep.train.requests import Terminations, end_by_sigterm


class Stopping(Terminations):
    """Raises `asked` at the first SIGTERM; at the second the process ends as it would have without us."""

    def ask(self) -> None:
        """Raise the flag, or end."""
        if self.asked:
            end_by_sigterm()
        super().ask()
