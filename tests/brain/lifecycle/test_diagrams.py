from __future__ import annotations

from pathlib import Path

from everstep.brain.lifecycle.diagrams import diagram, page
from everstep.brain.lifecycle.instance import INSTANCE_TABLE
from everstep.model.job import InstancePhase


def test_the_page_in_the_docs_is_the_one_that_the_tables_give(repository: Path) -> None:
    written = (repository / "docs" / "states.md").read_text(encoding="utf-8")
    assert written == page(), "run: python -m scripts.state_diagrams"


def test_an_arrow_names_the_events_that_cause_it() -> None:
    drawing = diagram(InstancePhase.LAUNCHING, [InstancePhase.ENDED], INSTANCE_TABLE)
    assert "    launching --> booting: LaunchSucceeded" in drawing.splitlines()
    assert "    [*] --> launching" in drawing.splitlines()
    assert "ended --> booting" not in drawing
