"""Run every check, all of them even when one fails, and say at the end which did: ``make check``."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from scripts.source_tree import REPOSITORY

BIN = Path(sys.executable).parent
PYTHON = sys.executable

#: Name -> command, cheapest first.
CHECKS: dict[str, list[str]] = {
    "sizes": [PYTHON, "-m", "scripts.check_sizes"],
    "names": [PYTHON, "-m", "scripts.check_names"],
    "purity": [PYTHON, "-m", "scripts.check_purity"],
    "floor": [PYTHON, "-m", "scripts.check_floor"],
    "lint": [str(BIN / "ruff"), "check", "--output-format", "concise", "."],
    "format": [str(BIN / "ruff"), "format", "--check", "--output-format", "concise", "."],
    "imports": [str(BIN / "lint-imports"), "--no-cache"],
    "types": [str(BIN / "mypy")],
}


def main(names: list[str]) -> int:
    """Run the named checks, or all; the exit status."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        print(f"no check called {', '.join(unknown)}; there are: {', '.join(CHECKS)}")
        return 2
    failed = []
    for name in names or CHECKS:
        started = time.monotonic()
        done = subprocess.run(CHECKS[name], cwd=REPOSITORY, capture_output=True, text=True, check=False)
        verdict = "ok" if done.returncode == 0 else "FAILED"
        print(f"{name:<8} {verdict:<7} {time.monotonic() - started:5.1f} s", flush=True)
        if done.returncode:
            failed.append(name)
            print((done.stdout + done.stderr).rstrip(), end="\n\n", flush=True)
    print(f"failed: {', '.join(failed)}" if failed else "every check passed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
