"""State diagrams of the documentation, made from the tables themselves (mermaid)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from everstep.brain.lifecycle.gang import GANG_TABLE
from everstep.brain.lifecycle.instance import INSTANCE_TABLE
from everstep.brain.lifecycle.job import JOB_TABLE
from everstep.brain.lifecycle.table import Move
from everstep.model.events import Event
from everstep.model.job import GangPhase, InstancePhase, JobPhase

_PER_LINE = 3
_HEAD = """\
# States

*Made by `python -m scripts.state_diagrams` from the tables in `src/everstep/brain/lifecycle`; a test keeps it current.*

An arrow is a move that a table lists, with the events that may cause it. Events that always leave a phase as it is are
below each diagram. Whatever is not listed is refused: it raises in tests and in the simulator; live, it is journalled
as `Rejected` and quarantines that job alone. Messages of an older attempt never get as far as the tables.
"""
_INTRO = {
    "Job": "What an event does to a job follows from its goal, its attempt and its machines: one event may lead to\n"
    "several phases.",
    "Attempt": "One incarnation of the gang. `ended` is final; its cause is settled later.",
    "Machine": "From intent to end. `launching` may or may not cost money; everything up to `ended` or `refused` does.",
}


def page() -> str:
    """The whole page ``docs/states.md``."""
    parts = [
        _HEAD,
        _section("Job", JobPhase.ACQUIRING, [p for p in JobPhase if p.ended], JOB_TABLE),
        _section("Attempt", GangPhase.CHECKING, [GangPhase.ENDED], GANG_TABLE),
        _section("Machine", InstancePhase.LAUNCHING, [InstancePhase.ENDED, InstancePhase.REFUSED], INSTANCE_TABLE),
    ]
    return "\n".join(parts)


def diagram(start: StrEnum, ends: Iterable[StrEnum], table: Mapping[tuple[Any, type[Event]], Move[Any, Any]]) -> str:
    """One mermaid state diagram: an arrow for each pair of phases, labelled with its events."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (phase, event), move in table.items():
        for target in move.to:
            if target is not phase:
                arrows.setdefault((phase.value, target.value), []).append(event.__name__)
    lines = ["stateDiagram-v2", f"    [*] --> {start.value}"]
    for (source, target), events in sorted(arrows.items()):
        lines.append(f"    {source} --> {target}: {_label(events)}")
    lines.extend(f"    {end.value} --> [*]" for end in ends)
    return "\n".join(lines)


def _label(events: list[str]) -> str:
    names = sorted(set(events))
    rows = [", ".join(names[i : i + _PER_LINE]) for i in range(0, len(names), _PER_LINE)]
    return "<br>".join(rows)


def _section(
    title: str, start: StrEnum, ends: list[StrEnum], table: Mapping[tuple[Any, type[Event]], Move[Any, Any]]
) -> str:
    quiet: dict[str, list[str]] = {}
    for (phase, event), move in table.items():
        if move.to == frozenset({phase}):
            quiet.setdefault(phase.value, []).append(event.__name__)
    stays = "\n".join(f"| {phase} | {', '.join(sorted(events))} |" for phase, events in sorted(quiet.items()))
    drawing = diagram(start, ends, table)
    return f"""\
## {title}

{_INTRO[title]}

```mermaid
{drawing}
```

| phase | events that leave it as it is |
|---|---|
{stays}
"""
