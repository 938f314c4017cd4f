"""What the training library drags into the user's process: torch, the standard library, two small modules of ours."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
import everstep.train
print(*sorted(m for m in sys.modules if m.startswith("everstep") and not m.startswith("everstep.train")))
print(*sorted({m.partition(".")[0] for m in sys.modules} & {"fastapi", "httpx", "sqlalchemy", "typer", "obstore"}))
"""


def test_nothing_else_of_everstep_is_imported() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    ours, foreign = done.stdout.split("\n")[:2]
    assert ours.split() == ["everstep", "everstep.model", "everstep.model.handshake", "everstep.model.pacing"]
    assert foreign == ""
