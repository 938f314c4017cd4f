"""A save is handed over: links to its files in the audit's folder, and a child that begins there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep.model import handshake
from everstep.train.lineage import Position
from everstep.train.script.audit.order import SAVES, STDERR, AuditOrder

_STRIPPED = (
    handshake.ENV_ATTEMPT,
    handshake.ENV_BASE,
    handshake.ENV_BASE_SINCE,
    handshake.ENV_CHECKPOINT_AUDIT,
    handshake.ENV_CHECKPOINT_DIR,
    handshake.ENV_CONTROL_FILE,
    handshake.ENV_REPORT_DIR,
)
# First of all: a child whose parent is gone already shall not begin, and one that has begun goes with it.
_START = """
import ctypes, importlib.util, os, pathlib, sys
job, parent, folder = sys.argv[1:]
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() != int(parent): os._exit(1)
if importlib.util.find_spec("everstep") is None: sys.path.append(folder)
from everstep.train.script.audit.child import main
main(pathlib.Path(job))
"""


@dataclass(frozen=True)
class Script:
    """What runs here, as it was started.

    Attributes:
        target: a file or a module.
        is_module: which of the two.
        arguments: of the script.
        roots: the folders of the launch by name, ``work`` among them; real paths.
        env: variables, before the script changed any.
        attempt: number of this attempt.
    """

    target: str
    is_module: bool
    arguments: tuple[str, ...]
    roots: dict[str, str]
    env: dict[str, str]
    attempt: int


class NotFit(Exception):
    """This run cannot be audited; the text says why."""


def hand_over(script: Script, folder: Path, job: Path, how: tuple[Position, int, float]) -> subprocess.Popen[bytes]:
    """Start the child.

    Args:
        script: what runs here.
        folder: the checkpoint folder, as a real path.
        job: the audit's folder in it; what is there goes.
        how: which save, for how many steps, seconds that it may take.

    Raises:
        NotFit: this run cannot be audited.
        OSError: the disk's, or the system's.
    """
    _check(script, folder)
    position, steps, timeout_s = how
    shutil.rmtree(job, ignore_errors=True)
    (job / SAVES).mkdir(parents=True)
    try:
        _link(folder, position, job / SAVES)
    except OSError as error:
        raise NotFit(f"{folder} does not take hard links ({error.strerror or error})") from error
    AuditOrder(
        target=script.target if script.is_module else _inside(script.target, script.roots["work"]),
        is_module=script.is_module,
        arguments=list(script.arguments),
        roots=script.roots,
        checkpoints=str(folder),
        begin=position.step,
        steps=steps,
        ends_at=time.monotonic() + timeout_s,
    ).write(job)
    return _start(script, job)


def _check(script: Script, folder: Path) -> None:
    work = script.roots.get("work")
    if work is None:
        raise NotFit("the script works in the root folder, which cannot be copied")
    if (work + os.sep).startswith(str(folder) + os.sep):
        raise NotFit("the script works in the checkpoint folder itself; give another --dir")
    torch: Any = sys.modules["torch"]
    if torch.cuda.is_initialized():
        free = torch.cuda.mem_get_info()[0]
        needed = int(1.2 * torch.cuda.max_memory_reserved()) + (1 << 30)
        if free < needed:
            raise NotFit(f"the GPU has {free >> 20} MiB left, a second process may need {needed >> 20} MiB")


def _link(folder: Path, position: Position, saves: Path) -> None:
    """Exactly this save, as the only one of a checkpoint folder. Links stay when the run collects its own."""
    (saves / "attempts").mkdir()
    (saves / position.folder).mkdir(parents=True)
    for path in (folder / position.folder).iterdir():
        if not path.name.startswith("."):
            os.link(path, saves / position.folder / path.name)
    for path in (folder / "attempts").glob("*.json"):
        os.link(path, saves / "attempts" / path.name)
    os.link(folder / "initial-00000.pickle", saves / "initial-00000.pickle")
    names = saves / position.folder / "files-0.json"
    if names.exists():
        pieces = saves / "files" / "0"
        pieces.mkdir(parents=True)
        for name in json.loads(names.read_bytes()):
            os.link(folder / "files" / "0" / name, pieces / name)


def _start(script: Script, job: Path) -> subprocess.Popen[bytes]:
    env = {name: value for name, value in script.env.items() if name not in _STRIPPED}
    package = str(Path(handshake.__file__).parents[2])
    command = [sys.executable, *_options(), "-c", _START, str(job), str(os.getpid()), package]
    with open(job / STDERR, "wb") as stderr:
        return subprocess.Popen(
            command, cwd=job, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
        )


def _options() -> list[str]:
    """The options of this interpreter, as they stand on its command line."""
    found: list[str] = []
    words = iter(sys.orig_argv[1:])
    for word in words:
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            break
        found.append(word)
        if word in ("-W", "-X"):
            found.append(next(words, ""))
    return found


def _inside(target: str, work: str) -> str:
    """The script as seen from the working folder; its real path where it lies outside."""
    path = os.path.join(os.path.realpath(os.path.join(work, os.path.dirname(target))), os.path.basename(target))
    return os.path.relpath(path, work) if path.startswith(work + os.sep) else path
