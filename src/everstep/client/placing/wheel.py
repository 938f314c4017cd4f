"""The everstep that runs here as one wheel, so that a server elsewhere runs the very same code.

Built from the installed package itself: it needs no source tree and no build tool. The same files give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import everstep
from everstep.model.errors import EverstepError

_EPOCH = (1980, 1, 1, 0, 0, 0)
_LEFT_OUT = ("__pycache__",)


def build_wheel() -> tuple[str, bytes]:
    """File name and bytes of the wheel.

    Raises:
        EverstepError: this everstep was not installed by a package manager, so nobody knows what it needs.
    """
    try:
        installed = distribution("everstep")
    except PackageNotFoundError:
        raise EverstepError("everstep is not installed here as a package; install it with pip first") from None
    info = f"everstep-{installed.version}.dist-info"
    files = _package(Path(everstep.__file__).parent)
    files[f"{info}/METADATA"] = (installed.read_text("METADATA") or "").encode()
    files[f"{info}/entry_points.txt"] = (installed.read_text("entry_points.txt") or "").encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: everstep\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,", ""]).encode()
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return f"everstep-{installed.version}-py3-none-any.whl", held.getvalue()


def _package(folder: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder.parent)
        if path.is_file() and not set(inside.parts) & set(_LEFT_OUT):
            found[inside.as_posix()] = path.read_bytes()
    return found


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
