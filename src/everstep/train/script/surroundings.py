"""What a relaunch must have in common with the first start, beside sources and objects."""

from __future__ import annotations

import contextvars
import decimal
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
    _begin()
    return {"random": randomness.capture(), "threads": torch.get_num_threads(), "argv": list(sys.argv)}


def set_initial(state: Mapping[str, Any]) -> None:
    """Make a relaunch find the same."""
    _begin()
    randomness.restore(state["random"])
    if torch.get_num_threads() != state["threads"]:
        # Sums are split among threads: another number gives other bits.
        torch.set_num_threads(state["threads"])


def _begin() -> None:
    _at_start.clear()
    _at_start.update(os.environ)


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
        "denormal numbers": _denormal(),
        "printing": _printing(),
        "decimal": decimal.getcontext().copy().__reduce__()[1],
        "umask": _umask(),
        "environment": _environment(),
    }


_PLAIN = (bool, int, float, str)
_DENORMAL = torch.tensor([1e-310], dtype=torch.float64)
_at_start: dict[str, str] = {}
_OF_THE_PROCESS = ("EVERSTEP_", "MASTER_", "TORCHELASTIC_", "WANDB_", "LOCAL_", "GROUP_", "ROLE_")
"""Variables that tell of one process, and not of the script."""


def _denormal() -> bool:
    return bool((_DENORMAL * 1.0).item())


def _printing() -> dict[str, Any]:
    options = {"torch": dict(vars(torch._tensor_str.PRINT_OPTS))}
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return options
    told = {k: v for k, v in numpy.get_printoptions().items() if isinstance(v, _PLAIN)}
    return {**options, "numpy": told}


def _set_printing(saved: Mapping[str, Any]) -> None:
    vars(torch._tensor_str.PRINT_OPTS).update(saved["torch"])
    if "numpy" in saved:
        import numpy

        numpy.set_printoptions(**saved["numpy"])


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _environment() -> dict[str, str | None]:
    """What the script has changed, or removed (None)."""
    now = dict(os.environ)
    names = {n for n in (*now, *_at_start) if now.get(n) != _at_start.get(n) and not n.startswith(_OF_THE_PROCESS)}
    return {name: now.get(name) for name in sorted(names)}


def _set_environment(saved: Mapping[str, str | None]) -> None:
    for name, value in saved.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


_SETTABLE: dict[str, Callable[[Any], object]] = {
    "default dtype": torch.set_default_dtype,
    "gradients": torch.set_grad_enabled,
    "matmul precision": torch.set_float32_matmul_precision,
    "threads": torch.set_num_threads,
    "folder": os.chdir,
    "recursion": sys.setrecursionlimit,
    "denormal numbers": lambda kept: torch.set_flush_denormal(not kept),
    "printing": _set_printing,
    "decimal": lambda made_of: decimal.setcontext(decimal.Context(*made_of)),
    "umask": os.umask,
    "environment": _set_environment,
}


def set_modes(saved: Mapping[str, Any]) -> str:
    """Set what a skipped part of the script had set; what belongs to a ``with`` must be as it was.

    Returns:
        What differs and cannot be set; "" if nothing.
    """
    now = modes()
    for name, put in _SETTABLE.items():
        if name in saved and now[name] != saved[name]:
            put(saved[name])
    # Setting what is set already is not free: torch loads its compiler for one of these.
    if any(now[name] != saved[name] for name in ("deterministic", "deterministic warn only")):
        torch.use_deterministic_algorithms(saved["deterministic"], warn_only=saved["deterministic warn only"])
    if now["cudnn"] != saved["cudnn"]:
        backend: Any = torch.backends.cudnn
        backend.enabled, backend.benchmark, backend.deterministic = saved["cudnn"]
    if now["anomaly"] != saved["anomaly"]:
        torch.autograd.set_detect_anomaly(saved["anomaly"])
    fixed = ("inference", "autocast")
    return "; ".join(f"{name} was {saved[name]}, now it is {now[name]}" for name in fixed if now[name] != saved[name])


def set_context_variable(modules: Mapping[str, Any]) -> str:
    """A context variable of the script's that has a value, by its name; "" if none has.

    Args:
        modules: of the user, by name.
    """
    context = contextvars.copy_context()
    for name, module in modules.items():
        for variable, value in vars(module).items():
            if type(value) is contextvars.ContextVar and value in context:
                return f"{name}.{variable}"
    return ""


def seed_python() -> None:
    """Draw once where nobody seeded: python seeds itself from the system, and that must be ours to note."""
    random.seed(int.from_bytes(os.urandom(16), "little"))
