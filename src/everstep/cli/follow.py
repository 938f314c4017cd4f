"""Following a job: its output as it is written, and one live line with step, loss and cost.

The job does not need us: whatever happens here (Ctrl-C, a closed terminal, a server that restarts), it goes on.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from everstep.cli import link, wording
from everstep.cli.lines import Joiner
from everstep.client.home import NoServer
from everstep.client.wire import NotOurServer

if TYPE_CHECKING:
    from everstep.client.results import JobDetail

_POLL_S = 1.0
#: How long the last lines of a job that has ended may take to arrive.
_LAST_WORDS_S = 10.0
#: The same for one whose machines are kept: its output does not end before they go.
_KEPT_WORDS_S = 2.0


def follow(job: str) -> int:
    """Print the job's output until it ends; its exit code, or 1 if it ended badly without one.

    Machines that are kept after a failure (``--keep-on-failure``) are not waited for: they are there to be looked at.

    Raises:
        KeyboardInterrupt: the user wants to leave; the job goes on.
    """
    lines = _Lines(job)
    lines.start()
    with _screen() as show:
        view = _watch(job, lines, show)
    _say(_last_line(view))
    if view.keep_until is not None:
        _say(_kept(view))
    elif view.task.get("outputs") and view.phase != "cancelled":
        _say(f"outputs: everstep outputs {view.job} --to DIR")
    return exit_code(view)


def exit_code(view: JobDetail) -> int:
    """What ``everstep run`` exits with when the job has ended as ``view`` says."""
    return 0 if view.phase == "succeeded" else view.exit_code or 1


def live_line(view: JobDetail) -> str:
    """``running  step 1200/5000  loss 1.832  2/2 machines  spot $0.40/h  $0.0123 so far``."""
    parts = [view.phase]
    if view.step is not None:
        parts.append(f"step {wording.progress(view)}")
    parts += [f"{name} {value:.4g}" for name, value in list(view.metrics.items())[:3]]
    parts.append(wording.machines_in_words(view))
    if view.price_usd_per_h:
        parts.append(f"{wording.market(view)} {wording.price(view.price_usd_per_h)}")
    parts.append(f"{wording.money(view.cost_usd)} so far")
    if view.wait:
        parts.append(f"waits for {view.wait}")
    return "  ".join(parts)


def _watch(job: str, lines: _Lines, show: Callable[[str, str], None]) -> JobDetail:
    """Poll the job and drain its output until both have ended; the last view."""
    view: JobDetail | None = None
    ended_at: float | None = None
    told = ("", "")
    most_usd = 0.0
    with link.connected() as client:
        while True:
            try:
                view = client.status(job)
                if not view.ended:
                    # A machine that is gone may turn out cheaper than it seemed; only the final bill may show less.
                    most_usd = max(most_usd, view.cost_usd)
                    view = replace(view, cost_usd=most_usd)
                status = live_line(view)
            except NotOurServer:
                raise
            except NoServer:
                status = "the server does not answer; the job goes on, trying again"
                client.close()  # a restarted server may have another address
            show(lines.drain(), status)
            if view is not None and (view.phase, view.wait) != told and not sys.stdout.isatty():
                _say(live_line(view))
                told = (view.phase, view.wait)
            if view is not None and (view.ended or view.keep_until is not None):
                ended_at = ended_at or time.monotonic()
                patience_s = _LAST_WORDS_S if view.ended else _KEPT_WORDS_S
                if lines.done.is_set() or time.monotonic() - ended_at > patience_s:
                    show(lines.drain(), status)
                    return view
            lines.done.wait(_POLL_S) if ended_at else lines.wait(_POLL_S)


@dataclass(slots=True)
class _Lines:
    """The job's output, fetched by a thread of its own, since a stream blocks."""

    job: str
    done: threading.Event = field(default_factory=threading.Event)
    parts: queue.SimpleQueue[str] = field(default_factory=queue.SimpleQueue)
    arrived: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        threading.Thread(target=self._fetch, name="everstep-logs", daemon=True).start()

    def wait(self, timeout_s: float) -> None:
        self.arrived.wait(timeout_s)
        self.arrived.clear()

    def drain(self) -> str:
        taken = []
        while not self.parts.empty():
            taken.append(self.parts.get_nowait())
        return "".join(taken)

    def _fetch(self) -> None:
        joiner = Joiner()
        try:
            with link.connected() as client:
                for part in client.logs(self.job, follow=True):
                    self.parts.put(joiner.take(part))
                    self.arrived.set()
        except Exception as error:
            # The output is a convenience here: without it the state is still followed, and `everstep logs` has it all.
            self.parts.put(f"[everstep: no more output here: {error}; see: everstep logs -f {self.job}]\n")
        finally:
            self.parts.put(joiner.rest())
            self.done.set()
            self.arrived.set()


def _screen() -> AbstractContextManager[Callable[[str, str], None]]:
    """Where output goes, and the live line: Rich on a terminal, plain lines elsewhere."""
    if not sys.stdout.isatty():
        return nullcontext(_plain)
    return _RichScreen()


def _plain(text: str, status: str) -> None:
    del status
    sys.stdout.write(text)
    sys.stdout.flush()


class _RichScreen(AbstractContextManager["Callable[[str, str], None]"]):
    """Output scrolls by above one line that stays."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(highlight=False), transient=True, refresh_per_second=4)

    def __enter__(self) -> Callable[[str, str], None]:
        self._live.start()
        return self._show

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def _show(self, text: str, status: str) -> None:
        from rich.text import Text

        if text:
            self._live.console.print(Text(text.rstrip("\n")))
        self._live.update(Text(status, style="bold", overflow="ellipsis", no_wrap=True))


def _kept(view: JobDetail) -> str:
    kept = f"kept until {wording.clock(view.keep_until)}, billed at {wording.price(view.price_usd_per_h)}"
    return f"{kept}. Look around: everstep exec {view.job} -- CMD   End it: everstep cancel {view.job}"


def _last_line(view: JobDetail) -> str:
    parts = [
        f"{view.job} {'failed' if view.keep_until is not None else view.phase}",
        f"step {wording.progress(view)}" if view.step is not None else "",
        f"cost {wording.money(view.cost_usd)}",
        f"survived {wording.count(view.preemptions, 'preemption')}" if view.preemptions else "",
        wording.first_line(view.why) if view.phase != "succeeded" else "",
    ]
    return ", ".join(part for part in parts if part)


def _say(text: str) -> None:
    # Our own words go to stderr, so that a pipe receives the job's output and nothing else.
    print(text, file=sys.stderr, flush=True)
