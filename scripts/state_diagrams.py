"""Write ``docs/states.md`` from the state tables: ``python -m scripts.state_diagrams``."""

from __future__ import annotations

from everstep.brain.lifecycle.diagrams import page
from scripts.source_tree import REPOSITORY

PAGE = REPOSITORY / "docs" / "states.md"


def main() -> int:
    """Writes the page; the exit status."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(REPOSITORY)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
