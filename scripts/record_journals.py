"""Record the journals that today's code leaves for the scripted worlds, as fixtures of ``tests/parity``.

Run it for each release, and never over the files of an older one: what they prove is that journals of old are still
understood. ``python -m scripts.record_journals v0.1`` writes ``tests/parity/journals/v0.1-<world>.jsonl``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from everstep.testing.recording import to_text
from everstep.testing.scripted_run import record
from tests.parity.worlds import BY_NAME

FOLDER = Path(__file__).resolve().parent.parent / "tests" / "parity" / "journals"
RECORDED = (
    "calm",
    "child_lost_with_notice",
    "master_lost_without_notice",
    "drought_then_on_demand",
    "user_errors_until_failed",
    "pause_unpause",
    "retry_after_cancel",
    "disks_with_outputs",
)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print("usage: python -m scripts.record_journals RELEASE", file=sys.stderr)
        return 2
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in RECORDED:
        path = FOLDER / f"{arguments[0]}-{name}.jsonl"
        if path.exists():
            print(f"{path.name}: exists already; remove it first if that release was never published", file=sys.stderr)
            return 1
    for name in RECORDED:
        path = FOLDER / f"{arguments[0]}-{name}.jsonl"
        path.write_text(to_text(record(BY_NAME[name])))
        print(f"{path.name}: {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
