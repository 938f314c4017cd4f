"""Ceilings: a file has 500 lines, a function 60, and 5 parameters that may be passed by position.

``self`` and ``cls`` do not count, nor do keyword-only parameters. There is no list of exemptions, on purpose.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from scripts.source_tree import Finding, Source, report, sources

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check(root: Path) -> list[Finding]:
    """Everything below ``root/src/everstep`` that is over a ceiling."""
    return [finding for source in sources(root) for finding in _check_file(source)]


def _check_file(source: Source) -> Iterator[Finding]:
    if source.lines > MAX_FILE_LINES:
        yield Finding(source.shown, 1, f"file has {source.lines} lines, at most {MAX_FILE_LINES} are allowed")
    for function, in_class in _functions(source.tree, in_class=False):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > MAX_FUNCTION_LINES:
            text = f"{function.name}() has {lines} lines, at most {MAX_FUNCTION_LINES} are allowed"
            yield Finding(source.shown, function.lineno, text)
        positional = _positional(function, in_class)
        if positional > MAX_POSITIONAL:
            text = f"{function.name}() takes {positional} positional parameters, at most {MAX_POSITIONAL} are allowed"
            yield Finding(source.shown, function.lineno, f"{text}; make the rest keyword-only")


def _functions(node: ast.AST, *, in_class: bool) -> Iterator[tuple[Function, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, in_class
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, in_class=True)
        else:
            inside = in_class and not isinstance(child, Function | ast.Lambda)
            yield from _functions(child, in_class=inside)


def _positional(function: Function, in_class: bool) -> int:
    count = len(function.args.posonlyargs) + len(function.args.args)
    decorators = {ast.unparse(d) for d in function.decorator_list}
    bound = in_class and "staticmethod" not in decorators
    return count - 1 if bound and count else count


if __name__ == "__main__":
    raise SystemExit(report(check))
