"""No folder and no module is called by a word that says nothing about what is in it."""

from __future__ import annotations

from pathlib import Path

from scripts.source_tree import Finding, report

FORBIDDEN = frozenset(
    {"utils", "util", "common", "helpers", "helper", "core", "base", "services", "service", "manager"}
)
TREES = ("src", "tests", "benchmarks", "examples", "scripts")


def check(root: Path) -> list[Finding]:
    """Python files whose own name, or that of a folder on the way to them, is one of the forbidden words."""
    findings = []
    for tree in TREES:
        for path in sorted((root / tree).rglob("*.py")):
            shown = path.relative_to(root)
            for word in shown.with_suffix("").parts:
                if word in FORBIDDEN:
                    findings.append(Finding(shown.as_posix(), 1, f"'{word}' names nothing: use a word of the domain"))
    return findings


if __name__ == "__main__":
    raise SystemExit(report(check))
