"""The random number generators of a process: python, numpy where the script uses it, torch, CUDA where it is in use."""

from __future__ import annotations

import importlib
import random
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """The states of all generators, picklable. Draws nothing."""
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: dict[str, Any]) -> None:
    """Put every generator that ``state`` knows where it was.

    CUDA states are set for the devices that are there: a rank draws on its own device, whose number it keeps.
    """
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state:
        # The script that saved uses numpy; that it has not come to its own import yet must not lose the state.
        importlib.import_module("numpy").random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        for device, cuda_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(cuda_state, device)
