"""The two ways in which we end a process: it refuses to go on, or it stopped after a save.

Both leave by ``os._exit``: no ``except:`` or ``finally:`` of the script can swallow the end or change a file behind it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from everstep.model import handshake
from everstep.train.script.rewrite import MARKER

_tell: Callable[[str], None] | None = None


def tell_with(tell: Callable[[str], None]) -> None:
    """Who is told why we refuse; it puts the text on stderr. Without, the text goes there directly."""
    global _tell
    _tell = tell


def refuse(text: str) -> NoReturn:
    """End at once with exit code 76.

    Args:
        text: one line with object, file and line, and what helps.
    """
    # Data-loader workers and other children ended with code 76 would look as if they had a say.
    if _tell is not None:
        _tell(text)
    else:
        print(f"everstep: {text}", file=sys.stderr, flush=True)
    leave(handshake.EXIT_REFUSED)


def refuse_use(text: str) -> NoReturn:
    """As `refuse`, led by the line of a user module that is running: it has used what could not be restored."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and MARKER not in frame.f_globals:
        frame = frame.f_back
    refuse(text if frame is None else f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}: {text}")


def leave(code: int) -> NoReturn:
    """End at once; children that ``multiprocessing`` made, data-loader workers above all, go too."""
    end_children()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)


def end_children() -> None:
    """Kill what ``multiprocessing`` has started."""
    for child in multiprocessing.active_children():
        with contextlib.suppress(Exception):
            child.kill()
