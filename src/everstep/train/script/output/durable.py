"""Small files that are complete or absent, whatever happens meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def write(path: Path, contents: bytes) -> None:
    """Write a file and sync it, under a temporary name until it is whole. Its folder must be there."""
    temporary = path.with_name(f".tmp-{path.name}")
    with temporary.open("wb") as file:
        file.write(contents)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def sync_folder(folder: Path) -> None:
    """Make durable which files a folder has; of a file, what is in it."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
