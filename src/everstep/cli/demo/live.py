"""The live view: machines, attempts, step, loss, dollars. Rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from everstep.cli import wording
from everstep.cli.demo.driver import Show, Sight
from everstep.cli.follow import live_line

if TYPE_CHECKING:
    from rich.console import RenderableType

_PROGRESS_EVERY_S = 10.0
_TOLD_LINES = 9


@contextmanager
def live() -> Iterator[Show]:
    """How to show what the driver sees."""
    if not sys.stdout.isatty():
        yield Plain()
        return
    from rich.live import Live

    with Live(refresh_per_second=4) as screen:
        yield lambda sight: screen.update(drawn(sight))


class Plain:
    """One line for whatever happens, and one with the progress now and then."""

    def __init__(self) -> None:
        self._told = 0
        self._last_progress = 0.0

    def __call__(self, sight: Sight) -> None:
        """Print what is new."""
        for at, text, ours in sight.told[self._told :]:
            print(f"{at - sight.began_at:6.1f} s  {'** ' if ours else ''}{text}", flush=True)
        self._told = len(sight.told)
        now = time.monotonic()
        if sight.detail is not None and now - self._last_progress >= _PROGRESS_EVERY_S:
            self._last_progress = now
            print(f"{time.time() - sight.began_at:6.1f} s  {_headline(sight)}", flush=True)


def _headline(sight: Sight) -> str:
    if sight.detail is None:
        return "waiting for the first word"
    away = "  (no server; training goes on)" if sight.away else ""
    return f"attempt {sight.detail.attempt}  {live_line(sight.detail)}{away}"


def drawn(sight: Sight) -> RenderableType:
    """The whole view."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    machines = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("machine", "zone", "market", "$/h", "", "notice"):
        machines.add_column(title, min_width=10)
    detail = sight.detail
    for machine in detail.machines if detail is not None else ():
        gone = machine.ended_at is not None
        cells = (
            machine.instance or "asked for",
            machine.zone,
            wording.market(machine),
            wording.price(machine.price_usd_per_h),
            wording.words(machine.end) if gone else machine.phase,
            "" if gone else wording.words(machine.notice),
        )
        machines.add_row(*(Text(cell) for cell in cells), style="dim" if gone else "red" if machine.notice else "")
    told = [
        Text(f"{at - sight.began_at:6.1f} s  {text}", style="bold yellow" if ours else "")
        for at, text, ours in sight.told[-_TOLD_LINES:]
    ]
    elapsed = Text(f"{time.time() - sight.began_at:6.1f} s  {_headline(sight)}", style="bold")
    return Group(elapsed, _bar(sight), Text(), machines, Text(), *told)


def _bar(sight: Sight) -> RenderableType:
    from rich.progress_bar import ProgressBar

    detail = sight.detail
    return ProgressBar(
        total=(detail.total if detail else None) or 1, completed=(detail.step if detail else None) or 0, width=72
    )
