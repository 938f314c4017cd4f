"""What a script is, from its source and that of the user's modules it imports: who shall save and resume it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence

from .command import is_users

_MOST_FILES = 200
_MOST_BYTES = 1 << 20

FRAMEWORKS = {
    "accelerate": "Accelerate",
    "composer": "Composer",
    "deepspeed": "DeepSpeed",
    "fastai": "fastai",
    "ignite": "Ignite",
    "lightning": "Lightning",
    "lightning_fabric": "Lightning Fabric",
    "pytorch_lightning": "Lightning",
}
"""Packages whose import says that the training loop is theirs."""

_TRAINERS = ("transformers", "trl")
"""Packages that matter only where one of their trainers is used."""

_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.launcher")
"""Modules that start ranks: a script that uses one is no rank itself."""


class Findings:
    """What was found in a script and the user's modules below it.

    Attributes:
        library: where ``everstep.train`` is used, as ``file:line``; "" if nowhere.
        framework: the framework with a loop of its own and where it is used; "" if none.
        torch: some of it imports torch.
        launches: it starts ranks by itself.
    """

    __slots__ = ("framework", "launches", "library", "torch")

    def __init__(self) -> None:
        self.library = ""
        self.framework = ""
        self.torch = False
        self.launches = False


def look(script: str, roots: Sequence[str], foreign: tuple[str, ...]) -> Findings:
    """Read a script and, as far as they are the user's, the modules it imports.

    Args:
        script: path of the file that runs as ``__main__``.
        roots: folders in which its modules are found, in order.
        foreign: folders of the interpreter, see `command.foreign_roots`.
    """
    found = Findings()
    waiting = [script]
    seen: set[str] = set()
    while waiting and len(seen) < _MOST_FILES:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        for line, level, name, names in _imports(path):
            if not level:
                _note(found, name, names, f"{os.path.basename(path)}:{line}")
            bases = [_up(path, level)] if level else roots
            waiting += [one for one in _files(name, names, bases) if is_users(one, foreign)]
    return found


def _note(found: Findings, name: str, names: Sequence[str], where: str) -> None:
    top = name.partition(".")[0]
    if top == "everstep":
        found.library = found.library or where
    elif top == "torch":
        found.torch = True
        found.launches = found.launches or name in _LAUNCHERS or f"{name}.{names[0] if names else ''}" in _LAUNCHERS
    elif top in FRAMEWORKS:
        found.framework = found.framework or f"{FRAMEWORKS[top]} ({where})"
    elif top in _TRAINERS and any(one.endswith("Trainer") for one in names):
        found.framework = found.framework or f"the Trainer of {top} ({where})"


def _imports(path: str) -> Iterator[tuple[int, int, str, list[str]]]:
    """(line, level, module, names taken from it) of each import; nothing for a file that Python cannot read."""
    try:
        if os.path.getsize(path) > _MOST_BYTES:
            return
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return  # the program shall fail by itself, in its own words
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name] = alias.name
                yield node.lineno, 0, alias.name, []
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, node.level, node.module or "", [alias.name for alias in node.names]
    for node in ast.walk(tree):
        # `transformers.Trainer(...)` is as good as `from transformers import Trainer`.
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = aliases.get(node.value.id, "")
            if module in _TRAINERS:
                yield node.lineno, 0, module, [node.attr]


def _up(path: str, level: int) -> str:
    for _ in range(level):
        path = os.path.dirname(path)
    return path


def _files(name: str, names: Sequence[str], bases: Sequence[str]) -> Iterator[str]:
    """Source files that an import may execute: the packages on the way, the module, and names that are modules."""
    parts = name.split(".") if name else []
    first = parts[0] if parts else ""
    for base in bases:
        top = os.path.join(base, first)
        if first and not (os.path.isdir(top) or os.path.isfile(top + ".py")):
            continue
        folder = base
        for part in parts:
            folder = os.path.join(folder, part)
            yield from _module(folder)
        for one in names:
            yield from _module(os.path.join(folder, one))
        return


def _module(path: str) -> Iterator[str]:
    for candidate in (path + ".py", os.path.join(path, "__init__.py")):
        if os.path.isfile(candidate):
            yield candidate
