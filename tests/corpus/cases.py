"""The table of scripts: what each stands for, how it is started, what is expected of it."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "scripts"
LIBRARY = HERE / "library"
TABLE = HERE / "expectations.toml"

Expectation = Literal["exact", "may_refuse"]


@dataclass(frozen=True, slots=True)
class Case:
    """One script of the corpus; the keys are explained on top of ``expectations.toml``."""

    name: str
    shape: str
    expect: Expectation
    reason: str = ""
    path: str = ""
    args: tuple[str, ...] = ()
    module: str = ""
    library: bool = False
    unseeded: bool = False
    nproc: int = 1
    exit: int = 0
    slow: bool = False
    folder: Path = SCRIPTS

    @property
    def script(self) -> Path:
        """The file, or for a module its package's folder."""
        return self.folder / (self.path or (self.module if self.module else f"{self.name}.py"))

    @property
    def target(self) -> list[str]:
        """What follows ``python`` in a plain run."""
        start = ["-m", self.module] if self.module else [str(self.script)]
        return [*start, *self.args]

    @property
    def python_path(self) -> list[Path]:
        """Folders in which the script's imports are looked for, besides its own."""
        return [LIBRARY] if self.library else []


def load(table: Path = TABLE) -> dict[str, Case]:
    """All cases by name, in the order of the table.

    Raises:
        TypeError: a key that nobody knows.
        ValueError: an expectation that nobody knows, or a refusal without its reason.
    """
    cases = {}
    for name, entry in tomllib.loads(table.read_text()).items():
        case = Case(name=name, **{**entry, "args": tuple(entry.get("args", ()))})
        if case.expect not in ("exact", "may_refuse"):
            raise ValueError(f"{table.name}: [{name}] expect is {case.expect!r}")
        if (case.expect == "may_refuse") != bool(case.reason):
            raise ValueError(f"{table.name}: [{name}] a reason goes with may_refuse, and only with it")
        cases[name] = case
    return cases
