"""SVG by hand: the few shapes the timeline needs."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


class Drawing:
    """A picture that grows shape by shape; ``text()`` is the whole SVG document.

    Args:
        width, height: of the picture, pixels.
        title: told to those who cannot see it.
    """

    def __init__(self, width: float, height: float, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
            f'height="{height:g}" role="img" font-family="system-ui, sans-serif" font-size="12">'
            f"<title>{escape(title)}</title>"
        )
        self._shapes = [f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>']

    def box(
        self, x: float, y: float, width: float, height: float, *, fill: str, tip: str = "", outline: str = ""
    ) -> None:
        """A rectangle; ``tip`` shows when pointed at."""
        stroke = f' stroke="{outline}"' if outline else ""
        tipped = f"<title>{escape(tip)}</title>" if tip else ""
        self._shapes.append(
            f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"{stroke}>'
            f"{tipped}</rect>"
        )

    def line(self, points: Sequence[tuple[float, float]], *, colour: str, width: float = 1.0, dash: str = "") -> None:
        """A line through ``points``."""
        path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}/>'
        )

    def words(
        self,
        x: float,
        y: float,
        text: str,
        *,
        anchor: str = "start",
        colour: str = "#222222",
        size: float = 12,
        halo: bool = False,
    ) -> None:
        """Text whose base line begins, is centred or ends (``anchor``: start, middle, end) at (x, y).

        ``halo``: readable also where a line runs through it.
        """
        outline = ' stroke="#ffffff" stroke-width="4" stroke-linejoin="round" paint-order="stroke"' if halo else ""
        self._shapes.append(
            f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="{colour}" font-size="{size:g}"{outline}>'
            f"{escape(text)}</text>"
        )

    def text(self) -> str:
        """The document."""
        return self._head + "\n" + "\n".join(self._shapes) + "\n</svg>\n"
