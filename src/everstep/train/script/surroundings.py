"""What a relaunch must have in common with the first start, beside sources and objects."""

from __future__ import annotations

import contextvars
import decimal
import importlib
import logging
import math
import os
import platform
import random
import signal
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch.utils._device import DeviceContext

from everstep.train import randomness
from everstep.train.script import counted, descriptors, logs, shown


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
    logs.begin()
    counted.begin()
    descriptors.begin()


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
        "errors of numpy": _numpy_errors(),
        "default device": _default_device(),
        "handlers of signals": _signal_handlers(),
        **counted.counts(),
        "finalizers": _finalizers(),
        "levels of logs": logs.levels(),
        "handlers of logs": logs.handlers(_is_of_the_user),
        "log files": _log_files(),
        "warnings": _warning_filters(),
        "warnings that were shown": shown.capture(),
    }


_PLAIN = (bool, int, float, str)
_DENORMAL = torch.tensor([1e-310], dtype=torch.float64)
_at_start: dict[str, str] = {}
_OF_THE_PROCESS = ("EVERSTEP_", "MASTER_", "TORCHELASTIC_", "WANDB_", "LOCAL_", "GROUP_", "ROLE_")
"""Variables that tell of one process, and not of the script."""


def _default_device() -> str:
    # Not `torch.get_default_device`, which makes a tensor to know: that tells nothing where modes are not asked.
    stack: Any = torch.overrides._get_current_function_mode_stack
    modes: list[Any] = stack()
    return next((str(mode.device) for mode in reversed(modes) if isinstance(mode, DeviceContext)), "cpu")


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
        importlib.import_module("numpy").set_printoptions(**saved["numpy"])


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _environment() -> dict[str, str | None]:
    """What the script has changed, or removed (None)."""
    now = dict(os.environ)
    names = {n for n in (*now, *_at_start) if now.get(n) != _at_start.get(n) and not n.startswith(_OF_THE_PROCESS)}
    return {name: now.get(name) for name in sorted(names)}


def _numpy_errors() -> dict[str, str]:
    numpy = sys.modules.get("numpy")
    return {} if numpy is None else dict(numpy.geterr())


def _set_numpy_errors(saved: Mapping[str, str]) -> None:
    if saved:
        importlib.import_module("numpy").seterr(**saved)


def _signal_handlers() -> dict[int, tuple[str, str]]:
    """By number, module and qualified name; of the script's own only."""
    found = {}
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        module = str(getattr(handler, "__module__", ""))
        if isinstance(handler, FunctionType | MethodType) and _is_of_the_user(module):
            found[int(number)] = (module, handler.__qualname__)
    return found


def _log_files() -> dict[str, list[str]]:
    """Names of the files that loggers write to, by logger; their folder may be another one now."""
    found = {}
    for name, logger in [("", logging.root), *logging.root.manager.loggerDict.items()]:
        if isinstance(logger, logging.Logger):
            files = [os.path.basename(h.baseFilename) for h in logger.handlers if isinstance(h, logging.FileHandler)]
            if files:
                found[name] = files
    return found


def _warning_filters() -> list[Any]:
    """What is done with warnings; without those of the script's own kinds."""
    return [entry for entry in warnings.filters if not _is_of_the_user(entry[2].__module__)]


def _set_warning_filters(saved: list[Any]) -> None:
    mine = [entry for entry in warnings.filters if _is_of_the_user(entry[2].__module__)]
    filters: Any = warnings.filters
    filters[:] = [*mine, *saved]
    getattr(warnings, "_filters_mutated", lambda: None)()


def _is_of_the_user(module: str) -> bool:
    return "__everstep__" in vars(sys.modules.get(module, math))


def _finalizers() -> list[str]:
    """What `weakref.finalize` is to call: by functions of the script's, and for objects of classes of the script's."""
    registry: Any = getattr(weakref.finalize, "_registry", {})
    found = []
    for entry in list(registry.values()):
        thing, function = entry.weakref(), entry.func
        modules = (getattr(function, "__module__", None), type(thing).__module__)
        if any(_is_of_the_user(str(module)) for module in modules):
            found.append(f"{getattr(function, '__qualname__', function)} for {type(thing).__qualname__}")
    return sorted(found)


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
    "errors of numpy": _set_numpy_errors,
    "default device": torch.set_default_device,
    "warnings": _set_warning_filters,
    "levels of logs": logs.set_levels,
    # Behind the filters: a change of these makes all registries void.
    "warnings that were shown": shown.restore,
}


_FIXED = (
    "inference", "autocast", "handlers of signals", *counted.KINDS, "finalizers", "log files", "handlers of logs",
)  # fmt: skip
"""What cannot be set as it was: the setup of the script has to."""


def set_modes(saved: Mapping[str, Any]) -> str:
    """Set what a skipped part of the script had set; what belongs to a ``with``, or to the setup, must be as it was.

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
    differs = [name for name in _FIXED if name in saved and now[name] != saved[name]]
    return "; ".join(f"{name}: it was {saved[name]}, now it is {now[name]}" for name in differs)


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
