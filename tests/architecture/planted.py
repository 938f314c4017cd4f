"""A small everstep, written into a temporary folder, in which tests plant one violation and see it caught."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def plant(root: Path, files: dict[str, str]) -> Path:
    """Write `files` (path inside the package -> text) and the ``__init__.py`` they need below ``root/src/everstep``."""
    package = root / "src" / "everstep"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        for folder in path.parents:
            (folder / "__init__.py").touch()
            if folder == package:
                break
    return root


def lint_imports(root: Path) -> tuple[bool, str]:
    """Run this repository's import contracts over the planted tree: (kept, output)."""
    shutil.copy(REPOSITORY / "pyproject.toml", root / "pyproject.toml")
    shutil.copytree(REPOSITORY / "scripts", root / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    command = [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr
