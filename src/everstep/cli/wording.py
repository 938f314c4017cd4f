"""Values of the API as people read them. What is unknown is shown as ``-``, never as a guess."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from everstep.model.units import format_count, format_duration, format_money, format_price

if TYPE_CHECKING:
    from everstep.client.results import JobView

UNKNOWN = "-"


def money(usd: Any) -> str:
    """``$12.34``."""
    return UNKNOWN if usd is None else format_money(float(usd))


def price(usd_per_h: Any) -> str:
    """``$1.23/h``; ``-`` for none, which is what a job without machines pays."""
    return format_price(float(usd_per_h)) if usd_per_h else UNKNOWN


def percent(fraction: Any) -> str:
    """``67 %``."""
    return UNKNOWN if fraction is None else f"{100 * float(fraction):.0f} %"


def duration(seconds: Any) -> str:
    """``1 h 30 min``."""
    return UNKNOWN if seconds is None else format_duration(float(seconds))


def ago(utc_s: Any, now: float | None = None) -> str:
    """``3 min ago``."""
    if utc_s is None:
        return UNKNOWN
    return f"{format_duration(max((time.time() if now is None else now) - float(utc_s), 0.0))} ago"


def instant(utc_s: Any) -> str:
    """Local time to the second, for people at this machine: ``2030-01-31 18:00:00``."""
    if utc_s is None:
        return UNKNOWN
    return datetime.fromtimestamp(float(utc_s), UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def clock(utc_s: Any) -> str:
    """Local time of day: ``18:00:00``."""
    return instant(utc_s)[-8:] if utc_s is not None else UNKNOWN


def progress(view: Any) -> str:
    """``1200/5000``, ``1200`` without a known total. ``view`` has ``step`` and perhaps ``total``."""
    total = getattr(view, "total", None)
    if view.step is None:
        return UNKNOWN
    return f"{view.step}/{total}" if total is not None else str(view.step)


def count(number: int, thing: str) -> str:
    """``1 machine``, ``2 machines``."""
    return format_count(number, thing)


def machines(view: JobView) -> str:
    """``2/2``: machines ready, of nodes asked for; ``2/2 +1`` while one more is there than places."""
    ready = view.instances.get("ready", 0)
    extra = ready - view.nodes
    return f"{view.nodes}/{view.nodes} +{extra}" if extra > 0 else f"{ready}/{view.nodes}"


def machines_in_words(view: JobView) -> str:
    """``1/2 machines``; ``3 machines for 2 places`` while a successor is there and the one it follows is too."""
    ready = view.instances.get("ready", 0)
    if ready > view.nodes:
        return f"{count(ready, 'machine')} for {count(view.nodes, 'place')}"
    return f"{ready}/{count(view.nodes, 'machine')}"


def market(view: Any) -> str:
    """``on-demand``, ``spot``, ``mixed``. ``view`` has ``market``."""
    return words(view.market) or UNKNOWN


def first_line(text: str) -> str:
    """The first line of a text; ``...`` tells that there are more."""
    first, _, rest = text.strip().partition("\n")
    return f"{first} ..." if rest else first


def words(name: str | None) -> str:
    """``node loss`` for ``node_loss``."""
    return (name or "").replace("on_demand", "on-demand").replace("_", " ")
