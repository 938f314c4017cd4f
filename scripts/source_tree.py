"""What the checks share: files of the package, their syntax trees, what they import, and how findings are reported."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGE = "everstep"


@dataclass(frozen=True, order=True)
class Finding:
    """One broken rule at one place; prints as ``file:line: text`` so that editors jump to it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Source:
    """One Python file of the package. `module` is its dotted name, ``everstep.brain.plan``."""

    path: Path
    shown: str
    module: str
    is_package: bool
    tree: ast.Module
    lines: int


@dataclass(frozen=True)
class Import:
    """`module` is absolute; `name` is what ``from module import name`` took, or None for ``import module``."""

    module: str
    name: str | None
    line: int


def sources(root: Path) -> Iterator[Source]:
    """Every Python file below ``root/src/everstep``, sorted by path."""
    package = root / "src" / PACKAGE
    for path in sorted(package.rglob("*.py")):
        parts = (PACKAGE, *path.relative_to(package).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        text = path.read_text(encoding="utf-8")
        yield Source(
            path=path,
            shown=path.relative_to(root).as_posix(),
            module=".".join(parts[:-1] if is_package else parts),
            is_package=is_package,
            tree=ast.parse(text, filename=str(path)),
            lines=len(text.splitlines()),
        )


@functools.cache
def imports(source: Source, *, typing_only: bool = True) -> tuple[Import, ...]:
    """The imports of a file, wherever they stand; `typing_only=False` leaves out ``if TYPE_CHECKING:`` blocks."""
    return tuple(_imports(source, typing_only))


def _imports(source: Source, typing_only: bool) -> Iterator[Import]:
    for node in _walk(source.tree, typing_only):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, None, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(source, node)
            for alias in node.names:
                yield Import(module, alias.name, node.lineno)


def _walk(tree: ast.AST, typing_only: bool) -> Iterator[ast.AST]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if not typing_only and isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting.extend(node.orelse)
        else:
            waiting.extend(ast.iter_child_nodes(node))


def _absolute(source: Source, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    up = node.level - 1 if source.is_package else node.level
    base = parts[: len(parts) - up]
    return ".".join([*base, node.module] if node.module else base)


def report(check: Callable[[Path], list[Finding]]) -> int:
    """Run `check` over the tree named on the command line (default: this repository); the exit status."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else REPOSITORY
    findings = sorted(check(root))
    for finding in findings:
        print(finding)
    return 1 if findings else 0
