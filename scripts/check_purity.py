"""What each island may import and call, beyond what import-linter can say.

* ``brain`` decides and does nothing else: standard library from an allowlist, no clock, no IO, no global randomness,
  nothing that differs from process to process. Chance comes in as a `random.Random` or a seed, time as an argument.
* ``model`` and ``ports`` are vocabulary: standard library alone, no clock, no IO.
* ``agent`` and ``train`` run where our dependencies do not exist, so they may import almost nothing of ours.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.source_tree import Finding, Import, Source, imports, report, sources

BRAIN_STDLIB = frozenset(
    [
        "__future__",
        "abc",
        "bisect",
        "collections",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "fractions",
        "functools",
        "hashlib",
        "heapq",
        "itertools",
        "json",
        "math",
        "operator",
        "random",
        "re",
        "statistics",
        "string",
        "types",
        "typing",
    ]
)
# The vocabulary may need more than the brain (say, `base64` for an id), so here the list is of what it may not use.
OUTSIDE_WORLD = frozenset(
    [
        "asyncio",
        "concurrent",
        "ctypes",
        "fcntl",
        "getpass",
        "glob",
        "http",
        "importlib",
        "io",
        "logging",
        "mmap",
        "multiprocessing",
        "os",
        "pathlib",
        "platform",
        "queue",
        "secrets",
        "select",
        "selectors",
        "shutil",
        "signal",
        "socket",
        "socketserver",
        "sqlite3",
        "ssl",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
    ]
)
ANY_STDLIB = frozenset(sys.stdlib_module_names)


@dataclass(frozen=True)
class Island:
    """Rules for one folder or module. `ours` names the parts of everstep it may import, itself not included."""

    name: str
    stdlib: frozenset[str]
    packages: frozenset[str] = frozenset()
    ours: frozenset[str] = frozenset()
    pure: bool = False


# The most specific name wins: `model.handshake` is judged by its own line, not by that of `model`.
ISLANDS = (
    Island(
        "brain",
        BRAIN_STDLIB,
        packages=frozenset({"numpy", "scipy", "clarabel", "highspy"}),
        ours=frozenset({"model", "ports"}),
        pure=True,
    ),
    Island("model", ANY_STDLIB - OUTSIDE_WORLD, pure=True),
    Island("model.handshake", ANY_STDLIB - OUTSIDE_WORLD, pure=True),
    Island("model.pacing", ANY_STDLIB - OUTSIDE_WORLD, pure=True),
    Island("ports", ANY_STDLIB - OUTSIDE_WORLD, ours=frozenset({"model"}), pure=True),
    Island("agent", ANY_STDLIB, ours=frozenset({"model.handshake"})),
    Island("train", ANY_STDLIB, packages=frozenset({"torch"}), ours=frozenset({"model.handshake", "model.pacing"})),
)

IMPURE_BUILTINS = {
    "open": "does IO",
    "print": "does IO",
    "input": "does IO",
    "exec": "hides what it does",
    "eval": "hides what it does",
    "__import__": "hides an import",
    "hash": "differs between processes for text (use hashlib)",
    "id": "differs between processes",
}
CLOCKS = frozenset(f"datetime.{name}" for name in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today"))
# Fine when given a seed (or bits from one), global entropy without.
SEEDED = frozenset(
    {"random.Random"}
    | {f"numpy.random.{name}" for name in ("default_rng", "SeedSequence", "PCG64", "Philox", "Generator")}
)


def check(root: Path) -> list[Finding]:
    """Every import and call below ``root/src/everstep`` that its island does not allow."""
    findings = []
    for source in sources(root):
        island = _island(source)
        if island:
            findings += [Finding(source.shown, line, text) for line, text in _check_imports(source, island)]
            if island.pure:
                findings += [Finding(source.shown, line, text) for line, text in _check_calls(source)]
    return findings


def _island(source: Source) -> Island | None:
    inner = source.module.partition(".")[2]
    fitting = [island for island in ISLANDS if _within(inner, island.name)]
    return max(fitting, key=lambda island: len(island.name), default=None)


def _within(module: str, folder: str) -> bool:
    return module == folder or module.startswith(folder + ".")


def _check_imports(source: Source, island: Island) -> Iterator[tuple[int, str]]:
    for found in imports(source):
        top = found.module.partition(".")[0]
        if top == "everstep":
            if not _may_import_ours(found, island):
                yield (
                    found.line,
                    f"{island.name} may not import {found.module}" + (f".{found.name}" if found.name else ""),
                )
        elif top in ANY_STDLIB:
            if top not in island.stdlib:
                yield found.line, f"{island.name} may not import {top} of the standard library"
        elif top not in island.packages:
            yield found.line, f"{island.name} may not import the package {top}"


def _may_import_ours(found: Import, island: Island) -> bool:
    # A handshake or pacing module stands alone: it is shipped without the rest of its folder.
    allowed = island.ours if "." in island.name else island.ours | {island.name}
    # `from everstep.model import handshake` names the module in its second half.
    candidates = [found.module] + ([f"{found.module}.{found.name}"] if found.name else [])
    return any(_within(name.partition(".")[2], part) for name in candidates for part in allowed)


def _check_calls(source: Source) -> Iterator[tuple[int, str]]:
    names = _bound_names(source)
    called = {id(node.func): node for node in ast.walk(source.tree) if isinstance(node, ast.Call)}
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Name | ast.Attribute):
            continue
        dotted = _dotted(node, names)
        call = called.get(id(node))
        if call and isinstance(node, ast.Name) and node.id in IMPURE_BUILTINS and node.id not in names:
            yield node.lineno, f"{node.id}() {IMPURE_BUILTINS[node.id]}"
        elif dotted in CLOCKS:
            yield node.lineno, f"{dotted} reads the clock: time is an argument"
        elif call and dotted in SEEDED and not (call.args or call.keywords):
            yield node.lineno, f"{dotted}() without a seed is global randomness"
        elif call and dotted and dotted not in SEEDED and dotted.startswith(("random.", "numpy.random.")):
            yield node.lineno, f"{dotted}() is global randomness: take a random.Random"


def _bound_names(source: Source) -> dict[str, str]:
    """Local name -> what it was imported as: ``{"np": "numpy", "shuffle": "random.shuffle"}``."""
    names = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


def _dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        left = _dotted(node.value, names)
        return f"{left}.{node.attr}" if left else None
    return None


if __name__ == "__main__":
    raise SystemExit(report(check))
