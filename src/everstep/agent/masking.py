"""Takes secret values out of text before it is written, also when a value is torn over two reads."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = b"***"
_SHORTEST = 3  # a shorter "secret" would eat ordinary text
_SHORTEST_LINE = 8  # lines of a secret of several lines (a key) are masked one by one from this length on


def patterns(values: Iterable[str]) -> list[bytes]:
    """What to look for, longest first: every value, and the lines of values of several lines."""
    found = set()
    for value in values:
        if len(value) >= _SHORTEST:
            found.add(value.encode())
        if "\n" in value:
            found.update(line.strip().encode() for line in value.splitlines() if len(line.strip()) >= _SHORTEST_LINE)
    return sorted(found, key=lambda item: (-len(item), item))


class Masker:
    """Masks a stream of bytes. What :meth:`feed` returned never holds a whole secret, nor does the joined stream."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._patterns = patterns(secrets)
        self._regex = re.compile(b"|".join(re.escape(item) for item in self._patterns)) if self._patterns else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Next piece of the stream; returns what may be written now (a possible beginning of a secret is held back)."""
        if self._regex is None:
            return data
        text = self._held + data
        keep = self._possible_start(text)
        # A match that begins before `keep` but ends behind it is complete already: it is not held.
        out: list[bytes] = []
        at = 0
        for match in self._regex.finditer(text):
            if match.start() >= keep:
                break
            out += [text[at : match.start()], MASK]
            at = match.end()
        keep = max(keep, at)
        out.append(text[at:keep])
        self._held = text[keep:]
        return b"".join(out)

    def flush(self) -> bytes:
        """End of the stream: what was held back, masked if it is a secret after all."""
        rest, self._held = self._held, b""
        return rest if self._regex is None else self._regex.sub(MASK, rest)

    def _possible_start(self, text: bytes) -> int:
        """Index from which the end of ``text`` may be the beginning of a longer secret."""
        longest = len(self._patterns[0])
        for start in range(max(0, len(text) - longest + 1), len(text)):
            rest = text[start:]
            if any(len(item) > len(rest) and item.startswith(rest) for item in self._patterns):
                return start
        return len(text)


def mask_text(text: str, secrets: Iterable[str]) -> str:
    """``text`` with every secret replaced."""
    masker = Masker(secrets)
    data = text.encode(errors="replace")
    return (masker.feed(data) + masker.flush()).decode(errors="replace")
