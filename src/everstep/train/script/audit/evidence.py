"""What a process holds some steps after a save, as checksums by name; and the first thing in which two differ."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass
from typing import Any

import torch

from everstep.train.script.checksums import checksum
from everstep.train.script.witness.process import fingerprint
from everstep.train.script.witness.state import roots

_DEEPEST = 8

Entries = list[tuple[str, str, str]]
"""Key (the same in both processes), name for people, checksum."""


@dataclass(frozen=True)
class Difference:
    """Where two processes differ.

    Attributes:
        object: what differs first; parameters come before buffers, optimizers and random states.
        step: the first step behind which a look at a few values of the parameters told it; None: it did not.
        objects: all that differs, up to 50.
    """

    object: str
    step: int | None
    objects: list[str]


class Trail:
    """The steps behind a save, and what there is at their end.

    Args:
        begin: steps done at the save.
        steps: how many to go.
    """

    def __init__(self, begin: int, steps: int) -> None:
        self._begin = begin
        self._steps = steps
        self.done = 0
        self._marks: list[int] = []
        self._optimizers: dict[int, Any] = {}

    def stepped(self, optimizer: Any) -> bool:
        """A step was taken, by an optimizer or (None) by a pass backward; true behind the last one to go."""
        self.done += 1
        if optimizer is not None:
            self._optimizers[id(optimizer)] = optimizer
        # On a GPU this is 0: looking would stop the device.
        self._marks.append(0 if optimizer is None else fingerprint(optimizer))
        return self.done >= self._steps

    def gather(self) -> dict[str, Any]:
        """Everything, as plain data. One pass over the memory of parameters, buffers and optimizer state."""
        entries: Entries = []
        optimizers = [*self._optimizers.values()]
        held = {id(p): p for one in optimizers for group in one.param_groups for p in group["params"]}
        modules = roots(set(held)) if held else []
        names = {id(p): name for root in reversed(modules) for name, p in root.named_parameters()}
        for number, optimizer in enumerate(optimizers):
            _parameters(optimizer, number, names, entries)
        for root in reversed(modules):
            for name, buffer in root.named_buffers():
                entries.append((f"buffer {name}", f"buffer {name}", checksum(buffer)))
        for number, optimizer in enumerate(optimizers):
            _state(optimizer, number, names, entries)
        if not optimizers:
            _globals(entries)
        _random(entries)
        # The script may be done with them long before the audit is.
        self._optimizers.clear()
        return {"begin": self._begin, "steps": self.done, "marks": self._marks, "entries": entries}


def difference(run: dict[str, Any], audit: dict[str, Any]) -> Difference | None:
    """The first difference between what the run and what its audit gathered; None if there is none."""
    marks = zip(run["marks"], audit["marks"], strict=False)
    step = next((run["begin"] + at for at, (mine, theirs) in enumerate(marks, 1) if mine != theirs), None)
    there = {key: value for key, _, value in audit["entries"]}
    differing = [
        name for key, name, value in run["entries"] if there.get(key, None if _needed(key) else value) != value
    ]
    if run["steps"] != audit["steps"]:
        differing.append(f"the number of steps ({run['steps']} here, {audit['steps']} in the audit)")
    if not differing:
        return None
    return Difference(differing[0], step, differing[:50])


def _needed(key: str) -> bool:
    """Modules that wait for the garbage collector, and generators of libraries, may be there in one process only."""
    return not key.startswith(("buffer ", "random "))


def _parameters(optimizer: Any, number: int, names: dict[int, str], into: Entries) -> None:
    for at, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            name = f"parameter {_name(parameter, names, at, place)}"
            into.append((f"{number}.{at}.{place}", f"{name} ({type(optimizer).__name__})", checksum(parameter)))


def _state(optimizer: Any, number: int, names: dict[int, str], into: Entries) -> None:
    kind = type(optimizer).__name__
    for at, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            name = f"{kind} state of {_name(parameter, names, at, place)}"
            _flatten(optimizer.state.get(parameter, {}), (f"{number}.{at}.{place} state", name), into, 0)
        settings = {key: value for key, value in group.items() if key != "params"}
        _flatten(settings, (f"{number}.{at} settings", f"{kind} group {at}"), into, 0)


def _name(parameter: Any, names: dict[int, str], group: int, place: int) -> str:
    return names.get(id(parameter), f"{place} of group {group}")


def _flatten(value: Any, called: tuple[str, str], into: Entries, depth: int) -> None:
    key, name = called
    if isinstance(value, dict) and depth < _DEEPEST:
        for inner, content in value.items():
            _flatten(content, (f"{key}.{inner}", f"{name}: {inner}"), into, depth + 1)
    elif isinstance(value, (list, tuple)) and depth < _DEEPEST:
        for at, content in enumerate(value):
            _flatten(content, (f"{key}.{at}", f"{name} {at}"), into, depth + 1)
    else:
        into.append((key, name, checksum(value)))


def _globals(into: Entries) -> None:
    """For scripts that move their weights by hand."""
    for name, value in list(vars(sys.modules["__main__"]).items()):
        if isinstance(value, torch.nn.Module):
            value = value.state_dict()
        inner = [*value.values()] if isinstance(value, dict) else value
        inner = inner if isinstance(inner, (list, tuple)) else [inner]
        if inner and all(isinstance(one, torch.Tensor) for one in inner):
            _flatten(value, (f"global {name}", f"global {name}"), into, 0)


def _random(into: Entries) -> None:
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        states["numpy"] = numpy.random.get_state()
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        states.update((f"cuda:{at}", state) for at, state in enumerate(cuda.get_rng_state_all()))
    for name, state in states.items():
        into.append((f"random {name}", f"random numbers of {name}", checksum(state)))
