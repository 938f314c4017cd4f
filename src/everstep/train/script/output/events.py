"""TensorBoard's event files: flushed at a save, and each step in them once over all relaunches.

The writer of a relaunch begins a file of its own, with a header and what the setup wrote. The older files are put back
by the general rules; of the new one only the header stays, so that together they hold what an uninterrupted run wrote.
"""

from __future__ import annotations

import contextlib
import gc
import os
import struct
import sys

_WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")


def flush() -> None:
    """Let every ``SummaryWriter`` write out what it holds back. Does nothing where no such module was imported."""
    kinds = tuple(
        kind for name in _WRITERS if (kind := getattr(sys.modules.get(name), "SummaryWriter", None)) is not None
    )
    for thing in gc.get_objects() if kinds else ():
        if issubclass(type(thing), kinds):
            with contextlib.suppress(Exception):  # one that was closed
                thing.flush()


def is_events(path: str) -> bool:
    """``path`` is an event file, by its name."""
    return os.path.basename(path).startswith("events.out.tfevents.")


def keep_header(path: str) -> None:
    """Cut an event file behind its first record (8 bytes length, 4 checksum, data, 4 checksum)."""
    with open(path, "r+b") as file:
        length = file.read(8)
        if len(length) == 8:
            file.truncate(16 + struct.unpack("<Q", length)[0])
