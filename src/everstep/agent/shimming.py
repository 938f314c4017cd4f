"""Puts the start-up shim (``everstep.agent.shim``) and the training library where what the user runs finds them.

The library travels with the agent, so that the user's Python needs torch and nothing of ours, and every attempt of a
job is run by the same version on every machine.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import operator
import os
import shutil
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from everstep.agent.shim.act import ENV_SHIM, why_not
from everstep.agent.shim.command import foreign_roots
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

LIBRARY = ("everstep/train", "everstep/model/handshake.py", "everstep/model/pacing.py")
"""What of everstep a script needs that is run from outside, beside empty ``__init__.py``."""
_PACKAGES = ("everstep/__init__.py", "everstep/model/__init__.py")
_PATH = "PYTHONPATH"


def install(folder: Path) -> Path | None:
    """Write the hook and the library below ``folder``, unless they are there; None, with a warning, if that fails."""
    files = dict(_files())
    digest = hashlib.sha256(b"\0".join(name.encode() + b"\0" + data for name, data in sorted(files.items())))
    place = folder / digest.hexdigest()[:16]
    if place.is_dir():
        return place
    temporary = folder / f".{place.name}.{os.getpid()}"
    try:
        for name, data in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        os.replace(temporary, place)
    except OSError as error:
        log.warning("scripts are not resumed automatically: cannot write to %s: %s", folder, error)
        shutil.rmtree(temporary, ignore_errors=True)
        return None
    return place


def variables(place: Path | None, mode: str, env: Mapping[str, str]) -> dict[str, str]:
    """What has to change in an environment so that Pythons started with it pass by the shim."""
    if place is None or mode not in (hs.MODE_AUTO, hs.MODE_SCRIPT):
        return {}
    others = env.get(_PATH, "")
    hook = str(place / "hook")
    return {ENV_SHIM: str(place), _PATH: f"{hook}{os.pathsep}{others}" if others else hook}


def runs(script: Path, env: Mapping[str, str]) -> bool:
    """Whether the shim will most likely run a script that is started with ``env``; the last word is with the shim."""
    if ENV_SHIM not in env:
        return False
    mode = env.get(hs.ENV_CHECKPOINT_MODE, "")
    return why_not(str(script), [str(script.resolve().parent)], mode, foreign_roots()) == ""


def _files() -> Iterator[tuple[str, bytes]]:
    """(path below the folder, content) of everything, from the source tree or from the ``.pyz``."""
    top: Any = resources.files("everstep")
    for name, data in _sources(top / "agent" / "shim", "hook/everstep_shim"):
        yield ("hook/sitecustomize.py" if name.endswith("/startup.py") else name), data
    for name in _PACKAGES:
        yield f"library/{name}", b""
    for wanted in LIBRARY:
        yield from _sources(functools.reduce(operator.truediv, wanted.split("/")[1:], top), f"library/{wanted}")


def _sources(source: Any, name: str) -> Iterator[tuple[str, bytes]]:
    if source.is_file():
        if name.endswith(".py"):
            yield name, source.read_bytes()
        return
    for one in sorted(source.iterdir(), key=lambda item: str(item.name)):
        if one.name != "__pycache__":
            yield from _sources(one, f"{name}/{one.name}")
