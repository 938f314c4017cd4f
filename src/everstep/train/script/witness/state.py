"""What a training process had in memory at its end, by name.

`Seen.digests` gives:

    optimizers   the last eight that stepped here, in order of their first steps: ``kind``, ``shapes`` of the
                 parameters, and digests (`digest.Digests`) of ``parameters``, ``state``, ``groups``, and of the
                 ``buffers`` of the modules around
    globals      modules and tensors among the globals of the script, for scripts without an optimizer
    random       states of the random number generators
    random_at_first_step
                 the same just before the first step; empty where there was none
    cuda         whether a GPU was in use
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import sys
import zipfile
from typing import Any

from .digest import Digests, combined, flatten

_FILE_AT_MOST = 1 << 30
#: A script may make optimizers without end (folds, trials); their models must not all be kept alive.
_KEPT = 8


class Seen:
    """The optimizers that stepped and the modules around their parameters, kept alive until the end."""

    def __init__(self) -> None:
        self._count = 0
        self._numbers: dict[int, int] = {}
        self._optimizers: list[_Optimizer] = []
        self._random_at_first_step: dict[str, str] = {}

    def begin(self) -> None:
        """Just before the first step: from now on it is the training that draws random numbers."""
        self._random_at_first_step = _random_states()

    def optimizer(self, optimizer: Any) -> int:
        """Note that it stepped; its number, from 0 in order of first steps."""
        number = self._numbers.get(id(optimizer))
        if number is None:
            number = self._numbers[id(optimizer)] = self._count
            self._count += 1
            self._optimizers.append(_Optimizer(optimizer))
            if len(self._optimizers) > _KEPT:
                # Its id may come again.
                del self._numbers[id(self._optimizers.pop(0).optimizer)]
        for known in self._optimizers:
            if known.optimizer is optimizer:
                known.look()
        return number

    def digests(self) -> dict[str, Any]:
        """Everything, as plain data (see above). Changes nothing and draws nothing."""
        torch: Any = sys.modules.get("torch")
        return {
            "random": _random_states(),
            "random_at_first_step": self._random_at_first_step,
            "optimizers": [optimizer.digests() for optimizer in self._optimizers],
            "globals": {} if torch is None or self._optimizers else _globals(torch),
            "cuda": bool(torch is not None and torch.cuda.is_initialized()),
        }

    def torch_files(self, work: str) -> dict[str, str]:
        """Digests of the content of files that ``torch.save`` wrote, by relative path.

        Their bytes depend on which equal strings are one object, which says nothing about what is in them.
        """
        torch: Any = sys.modules.get("torch")
        found: dict[str, str] = {}
        for folder, _, names in os.walk(work) if torch is not None else ():
            for name in names:
                path = os.path.join(folder, name)
                if os.path.islink(path) or not _is_torch_file(path):
                    continue
                content: Digests = {}
                try:
                    flatten(torch.load(path, map_location="cpu", weights_only=False), "", content)
                except Exception:
                    # Then its bytes are compared.
                    continue
                found[os.path.relpath(path, work)] = combined(content)
        return found


class _Optimizer:
    """One optimizer, and the outermost modules that hold its parameters."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self._parameters: list[int] = []
        self._roots: list[Any] = []

    def look(self) -> None:
        """At each of its steps: layers may have come since the last. A resumed process knows their names at once."""
        parameters = [id(p) for group in self.optimizer.param_groups for p in group["params"]]
        if parameters != self._parameters:
            self._parameters, self._roots = parameters, roots(set(parameters))

    def digests(self) -> dict[str, Any]:
        names = self._names()
        parameters: Digests = {}
        state: Digests = {}
        groups: Digests = {}
        for at, group in enumerate(self.optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                name = names.get(id(parameter), f"{place} of group {at}")
                flatten(parameter, name, parameters)
                flatten(self.optimizer.state.get(parameter, {}), name, state)
            flatten({key: value for key, value in group.items() if key != "params"}, f"group {at}", groups)
        return {
            "kind": type(self.optimizer).__name__,
            "shapes": [entry["kind"] for entry in parameters.values()],
            "parameters": parameters,
            "state": state,
            "groups": groups,
            "buffers": self._buffers(),
        }

    def _names(self) -> dict[int, str]:
        return {id(p): name for root in reversed(self._roots) for name, p in root.named_parameters()}

    def _buffers(self) -> Digests:
        found: Digests = {}
        for root in reversed(self._roots):
            for name, buffer in root.named_buffers():
                flatten(buffer, name, found)
        return found


def roots(parameters: set[int]) -> list[Any]:
    """Modules alive that hold one of the parameters and lie in no other such module; the largest first."""
    torch = sys.modules["torch"]
    # type(), not isinstance(): proxies among all the objects alive may run code when asked for their class.
    modules = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    held = {id(m): names for m in modules if (names := _held(m, parameters))}
    inner = {id(child) for m in modules if id(m) in held for child in list(m.modules())[1:]}
    roots = [m for m in modules if id(m) in held and id(m) not in inner]
    return sorted(roots, key=lambda m: (-len(held[id(m)]), type(m).__name__, held[id(m)]))


def _held(module: Any, parameters: set[int]) -> list[str]:
    try:
        return [name for name, p in module.named_parameters() if id(p) in parameters]
    except Exception:
        # A module that is being made.
        return []


def _globals(torch: Any) -> Digests:
    found: Digests = {}
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if isinstance(value, torch.nn.Module):
            flatten(value.state_dict(), name, found)
        elif isinstance(value, torch.Tensor) and value.requires_grad:
            flatten(value, name, found)
        elif isinstance(value, (list, tuple, dict)):
            inner = list(value.values()) if isinstance(value, dict) else list(value)
            if inner and all(isinstance(thing, torch.Tensor) for thing in inner):
                flatten(value, name, found)
    return found


def _random_states() -> dict[str, str]:
    states: dict[str, str] = {"python": _sha256(repr(random.getstate()).encode())}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and hasattr(numpy, "random"):
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = _sha256(repr((kind, keys.tobytes(), *rest)).encode())
    if torch is not None:
        states["torch"] = _sha256(bytes(torch.get_rng_state().tolist()))
        if torch.cuda.is_initialized():
            for device, state in enumerate(torch.cuda.get_rng_state_all()):
                states[f"cuda:{device}"] = _sha256(bytes(state.tolist()))
    return states


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_torch_file(path: str) -> bool:
    try:
        if os.path.getsize(path) > _FILE_AT_MOST or not zipfile.is_zipfile(path):
            return False
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith("/data.pkl") for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False
