"""Builds the agent as one file: ``python3.9 agent.pyz`` is all an instance needs.

The same sources give the same bytes, so that its digest can name it.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from pathlib import Path

from everstep.agent.shimming import LIBRARY

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = "import sys\nfrom everstep.agent.__main__ import main\nsys.exit(main())\n"


def build_pyz(path: Path) -> Path:
    """Write the agent's zip application to ``path`` (atomically, mode 0755) and return it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(b"#!/usr/bin/env python3\n")
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in sorted(_contents().items()):
                    info = zipfile.ZipInfo(name, _EPOCH)
                    info.external_attr = 0o644 << 16
                    info.compress_type = zipfile.ZIP_DEFLATED
                    archive.writestr(info, content)
        os.chmod(temporary, 0o755)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def _contents() -> dict[str, bytes]:
    package = Path(__file__).resolve().parent.parent
    found = {
        "__main__.py": _MAIN.encode(),
        "everstep/__init__.py": b"",
        "everstep/model/__init__.py": b"",
        "everstep/model/handshake.py": (package / "model" / "handshake.py").read_bytes(),
    }
    for source in (package / "agent").rglob("*.py"):
        if source.name != Path(__file__).name:
            found["everstep/" + source.relative_to(package).as_posix()] = source.read_bytes()
    # Passengers: never imported by the agent, written out for the user's Python.
    for part in LIBRARY:
        path = package.parent / part
        for source in path.rglob("*.py") if path.is_dir() else [path]:
            found[source.relative_to(package.parent).as_posix()] = source.read_bytes()
    return found


if __name__ == "__main__":
    print(build_pyz(Path(sys.argv[1])))
