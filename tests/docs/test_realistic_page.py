"""The page about the realistic simulator does what it shows."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from everstep.sim.world.conditions import Conditions, Workload
from everstep.sim.world.supply import Fallback
from tests.docs import pages


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.expensive(family="pages")
def test_the_page_does_what_it_shows(repository: Path, tmp_path: Path, leak_guard: str) -> None:
    assert pages.run(repository / "docs" / "realistic.md", tmp_path) >= 5


def test_the_table_names_every_key_with_its_default(repository: Path) -> None:
    text = (repository / "docs" / "realistic.md").read_text(encoding="utf-8")
    told: dict[str, str] = {}
    for row in text.splitlines():
        if row.startswith("| `"):
            _, keys, defaults, _ = row.split("|", 3)
            told |= dict(zip((k.strip(" `") for k in keys.split(",")), defaults.split(","), strict=True))
    parts = (Conditions(), Workload(steps=1), Fallback())
    known = {f.name: getattr(part, f.name) for part in parts for f in dataclasses.fields(part)}
    for name in ("billing", "speeds", "steps", "disk_usd_per_gib_h"):
        del known[name]
    for key, default in known.items():
        shown = "none" if default is None else str(default).lower() if isinstance(default, bool) else f"{default:g}"
        assert told[key].strip() == shown, key
    assert set(told) - set(known) == {"every_s", "budget_usd"}
