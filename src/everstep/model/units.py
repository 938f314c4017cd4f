"""Durations, sizes, instants and money as people write them, and back.

Parsers take what a task file or a command line holds and raise ``ValueError`` whose text says what was expected.
Formatters come in two kinds: ``format_*`` rounds for people, ``exact_*`` is read back by the parser to the same value.

Sizes are binary whatever their spelling (``GB`` = ``GiB`` = 2**30 bytes), as in the task files we are compatible with.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

MAX_DURATION_S = 10 * 365 * 86_400.0
"""Ten years: longer is a typing error."""
MAX_MONEY_USD = 1e9
MAX_SIZE_BYTES = 2**60

DURATION_EXPECTED = "a duration such as 90s, 10m, 1h30m or 2d"
SIZE_EXPECTED = "a size such as 512MB, 64GB or 1.5TB"
MONEY_EXPECTED = "an amount in US dollars such as 1.5 or $1.50"
INSTANT_EXPECTED = "a time with its zone such as 2030-01-31T18:00Z"

_SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
_UNIT_NAMES = {
    "w": ("w", "week", "weeks"),
    "d": ("d", "day", "days"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ms": ("ms",),
}
_UNIT_OF = {name: unit for unit, names in _UNIT_NAMES.items() for name in names}
_UNIT_ORDER = tuple(_UNIT_NAMES)

_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_PART = re.compile(rf"\s*({_NUMBER})\s*([a-z]+)\s*")
_PLAIN = re.compile(rf"{_NUMBER}(?:e[+-]?[0-9]+)?")
_ISO_DURATION = re.compile(
    rf"P(?:({_NUMBER})W)?(?:({_NUMBER})D)?(?:T(?=[0-9.])(?:({_NUMBER})H)?(?:({_NUMBER})M)?(?:({_NUMBER})S)?)?",
    re.IGNORECASE,
)
_SIZE = re.compile(rf"({_NUMBER})\s*(?:([kmgtpe]?)(i?b?))?", re.IGNORECASE)
_SIZE_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_MONEY = re.compile(rf"(\$)?\s*({_NUMBER}|[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]*)?)\s*(USD)?", re.IGNORECASE)


def parse_duration(text: str | int | float) -> float:
    """Seconds of ``90``, ``90s``, ``10m``, ``1h30m``, ``1 h 30 min``, ``2d`` or ``PT1H30M``; never negative.

    Raises:
        ValueError: not a duration, or above ten years.
    """
    value = _duration(_plain_text(text))
    if value is None or not math.isfinite(value):
        raise ValueError(f"expected {DURATION_EXPECTED}")
    if value > MAX_DURATION_S:
        raise ValueError("expected a duration of at most 10 years (3650d)")
    return value


def _duration(text: str) -> float | None:
    lowered = text.lower()
    if _PLAIN.fullmatch(lowered):
        return float(lowered)
    iso = _ISO_DURATION.fullmatch(text)
    if iso and any(iso.groups()):
        return sum(float(g) * _SECONDS[u] for g, u in zip(iso.groups(), "wdhms", strict=True) if g)
    total, position, last = 0.0, 0, -1
    while position < len(lowered):
        part = _PART.match(lowered, position)
        unit = _UNIT_OF.get(part[2]) if part else None
        # Units fall from large to small and none comes twice: `1m30m` is a slip, not 31 minutes.
        if part is None or unit is None or _UNIT_ORDER.index(unit) <= last:
            return None
        last = _UNIT_ORDER.index(unit)
        total += float(part[1]) * _SECONDS[unit]
        position = part.end()
    return total if last >= 0 else None


def parse_instant(text: str) -> float:
    """UTC seconds of an ISO 8601 time that names its zone.

    Raises:
        ValueError: not a time, or without a zone.
    """
    try:
        instant = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"expected {INSTANT_EXPECTED}") from None
    if instant.tzinfo is None:
        raise ValueError(f"expected {INSTANT_EXPECTED}; the zone is missing")
    try:
        return instant.timestamp()
    except OverflowError:
        raise ValueError(f"expected {INSTANT_EXPECTED}") from None


def parse_size(text: str | int | float, *, unit: str = "B") -> int:
    """Bytes of ``512MB``, ``64GB``, ``1.5 TiB``; a bare number counts in ``unit`` (``B``, ``MiB``, ``GiB``...).

    Raises:
        ValueError: not a size, or above one exbibyte.
    """
    found = _SIZE.fullmatch(_plain_text(text))
    # `64Gi` is how Kubernetes writes GiB: everyone understands it, and so do we. A lone `i` is a slip.
    if found is None or ((found[3] or "").lower() == "i" and not found[2]):
        raise ValueError(f"expected {SIZE_EXPECTED}")
    bare = not (found[2] or found[3])
    prefix = unit[0].lower() if bare and unit != "B" else (found[2] or "").lower()
    value = float(found[1]) * 1024.0 ** _SIZE_POWER[prefix]
    if value > MAX_SIZE_BYTES:
        raise ValueError("expected a size of at most 1024 PiB")
    return round(value)


def parse_money(text: str | int | float) -> float:
    """US dollars of ``1.5``, ``$1.5``, ``1.5 USD`` or ``$1,250``; never negative.

    Raises:
        ValueError: not an amount, or above a thousand million dollars.
    """
    found = _MONEY.fullmatch(_plain_text(text))
    if found is None:
        raise ValueError(f"expected {MONEY_EXPECTED}")
    value = float(found[2].replace(",", ""))
    if value > MAX_MONEY_USD:
        raise ValueError("expected at most $1,000,000,000")
    return value


def _plain_text(value: str | int | float) -> str:
    if isinstance(value, bool):
        return ""
    # repr() of 1e-07 is not what the parsers read; 1e16 and above is beyond every ceiling and may fail.
    if isinstance(value, float) and math.isfinite(value) and 0 <= value < 1e16:
        return format(value, "f") if "e" in repr(value) else repr(value)
    return str(value).strip()


def exact_duration(seconds: float) -> str:
    """``1h30m`` for 5400: the shortest text that ``parse_duration`` reads as the same number."""
    if seconds != int(seconds):
        return f"{seconds!r}s" if "e" not in repr(seconds) else f"{seconds:f}s"
    rest, parts = int(seconds), []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_duration(seconds: float) -> str:
    """For people, to two units: ``45 s``, ``1 h 30 min``, ``2 d 3 h``; a minus sign in front of negative ones."""
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    # Round to the smaller of the two units first, so that 59 min 59 s never becomes "60 min".
    for limit, step in ((3600, 1), (86_400, 60), (math.inf, 3600)):
        if whole < limit:
            whole = (whole + step // 2) // step * step
            break
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def format_size(count: float) -> str:
    """For people: ``812 B``, ``1.2 GiB``."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        # 1023.97 would print as 1024.0: that is already one of the next unit.
        if abs(value) < 1023.95:
            break
        value, unit = value / 1024.0, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def format_count(number: int, thing: str) -> str:
    """For people: ``1 machine``, ``2 machines``, ``1,200 files``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def format_money(usd: float) -> str:
    """For people: ``$12.34``, ``-$3.00``, ``$1,234.50``; amounts below ten cents keep four decimals (``$0.0123``)."""
    sign, value = ("-" if usd < 0 else ""), abs(usd)
    text = f"{value:.4f}" if 0 < value < 0.09995 else f"{value:,.2f}"
    return f"{sign if float(text.replace(',', '')) else ''}${text}"


def format_price(usd_per_h: float) -> str:
    """For people: ``$1.23/h``."""
    return f"{format_money(usd_per_h)}/h"


def format_instant(utc_s: float) -> str:
    """ISO 8601 in UTC, to the second: ``2030-01-31T18:00:00Z``; read back by ``parse_instant``."""
    return datetime.fromtimestamp(round(utc_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
