"""What a relaunch must have in common with the first start, beside sources and objects."""

from __future__ import annotations

import os
import platform
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from everstep.train import randomness


def versions() -> dict[str, str]:
    """What decides on the bits of a result: versions and processor, by a name for people."""
    found = {
        "Python": platform.python_version(),
        "torch": str(torch.__version__),
        "processor": platform.machine(),
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "random"),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        found["numpy"] = str(numpy.__version__)
    return found


def difference(saved: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What changed, for people; "" if nothing that matters did."""
    changed = [
        f"{name} was {saved[name]}, now it is {now[name]}"
        for name in saved
        if now.get(name, saved[name]) != saved[name]
    ]
    return "; ".join(changed)


def initial() -> dict[str, Any]:
    """What a script finds when it starts: random states and numbers of threads."""
    return {"random": randomness.capture(), "threads": torch.get_num_threads(), "argv": list(sys.argv)}


def set_initial(state: Mapping[str, Any]) -> None:
    """Make a relaunch find the same."""
    randomness.restore(state["random"])
    if torch.get_num_threads() != state["threads"]:
        # Sums are split among threads: another number gives other bits.
        torch.set_num_threads(state["threads"])


def modes() -> dict[str, Any]:
    """The switches of torch that change results, as they are now."""
    return {
        "default dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "deterministic warn only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "cudnn": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
        "matmul precision": torch.get_float32_matmul_precision(),
        "autocast": {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")
        },
        "threads": torch.get_num_threads(),
        "folder": os.getcwd(),
        "recursion": sys.getrecursionlimit(),
    }


_SETTABLE: dict[str, Callable[[Any], object]] = {
    "default dtype": torch.set_default_dtype,
    "gradients": torch.set_grad_enabled,
    "matmul precision": torch.set_float32_matmul_precision,
    "threads": torch.set_num_threads,
    "folder": os.chdir,
    "recursion": sys.setrecursionlimit,
}


def set_modes(saved: Mapping[str, Any]) -> str:
    """Set what a skipped part of the script had set; what belongs to a ``with`` must be as it was.

    Returns:
        What differs and cannot be set; "" if nothing.
    """
    now = modes()
    for name, put in _SETTABLE.items():
        if now[name] != saved[name]:
            put(saved[name])
    torch.use_deterministic_algorithms(saved["deterministic"], warn_only=saved["deterministic warn only"])
    backend: Any = torch.backends.cudnn
    backend.enabled, backend.benchmark, backend.deterministic = saved["cudnn"]
    torch.autograd.set_detect_anomaly(saved["anomaly"])
    fixed = ("inference", "autocast")
    return "; ".join(f"{name} was {saved[name]}, now it is {now[name]}" for name in fixed if now[name] != saved[name])


def seed_python() -> None:
    """Draw once where nobody seeded: python seeds itself from the system, and that must be ours to note."""
    random.seed(int.from_bytes(os.urandom(16), "little"))
