"""The witness in its process: trail, random state, end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
import zlib
from typing import Any

from .imports import around_import
from .links import Links
from .state import Seen

_PR_SET_PDEATHSIG = 1
_VALUES = 4


class Witness:
    """One witnessed process.

    Args:
        wanted: what the variable says (see the package).
        rank: of this process.
    """

    def __init__(self, wanted: dict[str, Any], rank: int) -> None:
        self._wanted = wanted
        self._rank = rank
        self._began = time.monotonic()
        self._pid = os.getpid()
        path = os.path.join(wanted["folder"], f"rank-{rank}.trail")
        self._trail = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._seen = Seen()
        self._steps = 0
        self._base: int | None = None
        self._before = 0
        self._final: dict[str, Any] | None = None

    def install(self) -> None:
        """Put the hooks in place."""
        self._die_with_parent()
        self._note("started")
        links = Links(self._wanted["work"], self._wanted["linked"])
        links.guard()
        seed = self._wanted["seed"]
        if seed is not None:
            random.seed(seed)
            around_import("numpy", _nothing, lambda: sys.modules["numpy"].random.seed(seed % 2**32))
        around_import("torch", lambda: self._note("torch"), lambda: self._torch_is_there(links))
        atexit.register(self._end)

    def _die_with_parent(self) -> None:
        """Whoever kills the parent, however hard, leaves nothing behind."""
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)

    def _note(self, word: str, rest: str = "") -> None:
        os.write(self._trail, f"{time.monotonic():.6f} {word}{rest}\n".encode())

    def _torch_is_there(self, links: Links) -> None:
        torch: Any = sys.modules["torch"]
        self._note("ready")
        if self._wanted["seed"] is not None:
            # The one on the CPU begins elsewhere in every process; those of GPUs do not.
            torch.default_generator.manual_seed(self._wanted["seed"])
        # The package hides its modules.
        sys.modules["torch.optim.optimizer"].register_optimizer_step_pre_hook(self._stepping)
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(self._stepped)
        links.guard_torch_save(torch)
        backward = torch.Tensor.backward

        def counted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = backward(tensor, *args, **kwargs)
            if not self._steps and os.getpid() == self._pid:
                self._note("backward")
            return result

        counted.__doc__ = backward.__doc__
        torch.Tensor.backward = counted

    # --- steps --------------------------------------------------------------------------------------------------

    def _stepping(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if os.getpid() != self._pid:
            return
        if not self._steps:
            self._seen.begin()
        self._before = fingerprint(optimizer)

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if os.getpid() != self._pid:
            return
        number = self._seen.optimizer(optimizer)
        mark = fingerprint(optimizer)
        self._note("step", f" {number} {mark} {self._before}")
        self._steps += 1
        if self._enough(mark):
            # The state is looked at before the exit unwinds the script.
            self._final = self._gather(stopped=True)
            raise SystemExit(0)

    def _enough(self, mark: int) -> bool:
        seconds, steps = self._wanted["seconds"], self._wanted["steps"]
        if seconds is not None and time.monotonic() - self._began >= seconds:
            return True
        if steps is None:
            return False
        if self._base is None:
            self._base = self._find_base(mark)
        return self._base + self._steps >= int(steps)

    def _find_base(self, mark: int) -> int:
        """Number of steps that earlier processes did; 0 where nothing is known."""
        if self._wanted["reported"]:
            return self._reported_base()
        if not self._wanted["plain"] or not self._wanted["reached"]:
            return 0
        with open(self._wanted["plain"], encoding="ascii") as trail:
            marks = [int(words[3]) for words in map(str.split, trail) if words[1] == "step"]
        places = [at for at, known in enumerate(marks[: self._wanted["reached"] + 1]) if mark and known == mark]
        return places[-1] if places else self._reported_base()

    def _reported_base(self) -> int:
        """The step of the checkpoint that the runner or the library told to have restored."""
        path = os.path.join(os.environ.get("EVERSTEP_REPORT_DIR", ""), f"facts-{self._rank}.jsonl")
        base = None
        with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as facts:
            for fact in map(json.loads, facts):
                base = fact.get("base") if fact.get("kind") == "restored" else base
        return int(base.rpartition(":")[2]) if base else 0

    # --- end ----------------------------------------------------------------------------------------------------

    def _gather(self, *, stopped: bool) -> dict[str, Any]:
        final = self._seen.digests()
        final["steps"] = self._steps
        final["stopped"] = stopped
        final["attached"] = "everstep.train.opening" in sys.modules
        return final

    def _end(self) -> None:
        if os.getpid() != self._pid:
            return
        final = self._final if self._final is not None else self._gather(stopped=False)
        if self._rank == 0:
            final["torch_files"] = self._seen.torch_files(self._wanted["work"])
        path = os.path.join(self._wanted["folder"], f"rank-{self._rank}.json")
        with open(f"{path}.tmp", "w", encoding="utf-8") as file:
            json.dump(final, file)
        os.replace(f"{path}.tmp", path)


def fingerprint(optimizer: Any) -> int:
    """A few values of the first and the last parameter: cheap, and different after almost every step.

    0 where looking would stop the device, or cannot be done.
    """
    try:
        groups = optimizer.param_groups
        ends = (groups[0]["params"][0], groups[-1]["params"][-1])
        if any(end.device.type != "cpu" for end in ends):
            return 0
        values = [end.detach().reshape(-1)[:_VALUES].tolist() for end in ends]
    except Exception:
        return 0
    return zlib.crc32(repr(values).encode())


def _nothing() -> None:
    pass
