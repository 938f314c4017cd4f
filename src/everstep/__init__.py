"""everstep: train deep-learning models on spot capacity as if it were reliable.

Everything public is reachable from here and loaded on first use, so that ``import everstep`` stays fast (under
100 ms), needs no extra, and costs nothing in a training script that wants ``everstep.train`` alone.

This file runs wherever the agent and the training script run: Python 3.9, standard library only.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

#: Public name -> the module that defines it. A name that equals the last part of its module is that module itself.
#: An entry here is a promise to users: its surface is pinned by ``tests/test_namespace.py``.
_EXPORTS: dict[str, str] = {
    "Client": "everstep.client.api",
    "Task": "everstep.model.task",
    "load_task": "everstep.client.taskfile",
    "run": "everstep.client.api",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    """Load a public name on first use (PEP 562)."""
    module_name = _EXPORTS.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(module_name)
    value = module if module_name.rpartition(".")[2] == name else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
