"""The oldest Python each part runs on: the agent and the handshake 3.9, the training library 3.10.

What counts is everything that loading a part really loads: the files of the part, the modules of ours they import, and
the ``__init__.py`` of every package on the way. vermin judges the syntax and the standard library that each uses.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from scripts.source_tree import PACKAGE, Finding, Source, imports, report, sources

#: Part of everstep -> minor version of Python 3 it must still run on.
FLOORS = {"agent": 9, "model.handshake": 9, "train": 10, "model.pacing": 10}


def check(root: Path) -> list[Finding]:
    """Files that a part loads and that need a newer Python than the part promises."""
    by_module = {source.module: source for source in sources(root)}
    floors: dict[str, int] = {}
    for part, minor in FLOORS.items():
        for module in loaded_by(f"{PACKAGE}.{part}", by_module):
            floors[module] = min(minor, floors.get(module, minor))
    findings = []
    for minor in sorted(set(floors.values())):
        files = [by_module[module] for module, floor in floors.items() if floor == minor]
        findings += _vermin(root, files, minor)
    return findings


def loaded_by(part: str, by_module: dict[str, Source]) -> set[str]:
    """Modules of ours that are executed when `part` and everything below it is imported."""
    loaded: set[str] = set()
    waiting = [name for name in by_module if name == part or name.startswith(part + ".")]
    while waiting:
        name = waiting.pop()
        if name in loaded or name not in by_module:
            continue
        loaded.add(name)
        waiting.append(name.rpartition(".")[0])
        for found in imports(by_module[name], typing_only=False):
            waiting.append(found.module)
            if found.name:
                waiting.append(f"{found.module}.{found.name}")
    return loaded


def _vermin(root: Path, files: list[Source], minor: int) -> list[Finding]:
    vermin = Path(sys.executable).parent / "vermin"
    command = [str(vermin), f"-t=3.{minor}-", "--violations", "--no-tips", "--format", "parsable"]
    done = subprocess.run([*command, *(str(f.path) for f in files)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return []
    findings = []
    for line in done.stdout.splitlines():
        path, number, _column, _python2, python3, text = line.split(":", 5)
        if number:
            shown = Path(path).resolve().relative_to(root).as_posix()
            findings.append(Finding(shown, int(number), f"{text} needs Python {python3}, this must run on 3.{minor}"))
    return findings or [Finding("vermin", 1, (done.stdout + done.stderr).strip())]


if __name__ == "__main__":
    raise SystemExit(report(check))
