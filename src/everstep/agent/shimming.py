"""Puts the start-up shim (``everstep.agent.shim``) and the training library where what the user runs finds them.

The library travels with the agent, so that the user's Python needs torch and nothing of ours, and every attempt of a
job is run by the same version on every machine.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from everstep.agent.shim.act import ENV_SHIM
from everstep.model import handshake as hs

log = logging.getLogger(__name__)

LIBRARY = ("everstep/train/", "everstep/model/handshake.py", "everstep/model/pacing.py")
"""What of everstep a script needs that is run from outside, beside empty ``__init__.py``."""
_PACKAGES = ("everstep/__init__.py", "everstep/model/__init__.py")
_SHIM = "everstep/agent/shim"
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


def _files() -> Iterator[tuple[str, bytes]]:
    """(path below the folder, content) of everything."""
    for name in _PACKAGES:
        yield f"library/{name}", b""
    for name, data in _sources():
        if name.startswith(f"{_SHIM}/"):
            inner = name[len(_SHIM) + 1 :]
            yield ("hook/sitecustomize.py" if inner == "startup.py" else f"hook/everstep_shim/{inner}"), data
        else:
            yield f"library/{name}", data


def _sources() -> Iterator[tuple[str, bytes]]:
    """(name, content) of the shim's and the library's files, from the ``.pyz`` or from the source tree."""
    top = Path(__file__).resolve().parents[2]
    if top.is_file():
        with zipfile.ZipFile(top) as archive:
            for name in archive.namelist():
                if name.startswith((*LIBRARY, f"{_SHIM}/")):
                    yield name, archive.read(name)
        return
    for part in (*LIBRARY, _SHIM):
        path = top / part
        for source in path.rglob("*.py") if path.is_dir() else [path]:
            yield source.relative_to(top).as_posix(), source.read_bytes()
