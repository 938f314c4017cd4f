"""What decides the next step and is in no ``state_dict``: gradients to be added to, ``requires_grad``, train or eval.

Gradients are saved only where they count. Behind an optimizer's step they are spent: the next pass sets them to None.
They are not where a backward pass came after the step (gradients are accumulated over several passes), where nobody
sets them to None in between, or where an attempt has made one step only and nobody knows; then they are part of the
state, and are copied at the boundary.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import TensorWeakRef

_LOOKED_AT = 8
_SMALL = 1 << 14


class Beside:
    """Watches and restores that of the attached objects.

    Args:
        objects: what is attached.
    """

    def __init__(self, objects: Mapping[str, Any]) -> None:
        self._objects = objects
        _gradients.watch()

    def state(self) -> dict[str, Any]:
        """All of it, as it is now: per object lists in the order of its parameters and modules."""
        spent = _gradients.spent()
        gradients: dict[str, dict[int, torch.Tensor]] = {}
        done: set[int] = set()
        for name, thing in self._objects.items():
            for number, parameter in enumerate(_parameters(thing)):
                if parameter.grad is None or id(parameter) in spent or id(parameter) in done:
                    continue
                done.add(id(parameter))
                gradients.setdefault(name, {})[number] = parameter.grad
        return {
            "gradients": gradients,
            "trained": {name: [p.requires_grad for p in m.parameters()] for name, m in self._modules()},
            "training": {name: [inner.training for inner in m.modules()] for name, m in self._modules()},
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Write it back, once all objects have their own state again."""
        for name, module in self._modules():
            # Lists of another length belong to a module that was built anew; what it took from its state_dict counts.
            flags = saved["trained"].get(name, [])
            parameters = list(module.parameters())
            if len(flags) == len(parameters):
                for parameter, flag in zip(parameters, flags, strict=True):
                    if parameter.requires_grad != flag:
                        parameter.requires_grad_(flag)
            modes = saved["training"].get(name, [])
            inner_modules = list(module.modules())
            if len(modes) == len(inner_modules):
                for inner, mode in zip(inner_modules, modes, strict=True):
                    inner.training = mode
        for name, gradients in saved["gradients"].items():
            for number, trained in enumerate(_parameters(self._objects[name])):
                if number in gradients:
                    trained.grad = gradients[number].to(device=trained.device)

    def _modules(self) -> Iterator[tuple[str, torch.nn.Module]]:
        for name, thing in self._objects.items():
            if isinstance(thing, torch.nn.Module):
                yield name, thing


def load_optimizer(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Like its own ``load_state_dict``, but what was kept in another precision than its parameter stays so.

    torch casts each floating tensor of the state to the type of its parameter: the 32-bit copy that an optimizer keeps
    of a 16-bit parameter would come back rounded.
    """
    optimizer.load_state_dict(dict(saved))
    if not ("state" in saved and "param_groups" in saved):
        return  # a class with a format of its own
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=False):
        now = optimizer.state.get(parameter, {})
        for key, value in saved["state"].get(number, {}).items():
            taken = now.get(key)
            if isinstance(value, torch.Tensor) and isinstance(taken, torch.Tensor) and taken.dtype != value.dtype:
                now[key] = value.to(device=taken.device)


def _parameters(thing: Any) -> Iterable[torch.Tensor]:
    if isinstance(thing, torch.nn.Module):
        return thing.parameters()
    if isinstance(thing, torch.optim.Optimizer):
        return (parameter for group in thing.param_groups for parameter in group["params"])
    return ()


class _Gradients:
    """Knows for each optimizer of the process whether there was a backward pass since its last step, and its habit."""

    def __init__(self) -> None:
        self._backwards = 0
        self._watching = False
        # Per optimizer: how many backward passes there were at its last step, and one gradient of then.
        self._steps: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Seen] = weakref.WeakKeyDictionary()
        # Whose gradients were set to None before they counted again, and never were not. Nothing is known at first.
        self._emptied: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._adding: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()

    def watch(self) -> None:
        """Begin, once in a process. ``Tensor.backward`` looks the function up at each call."""
        if self._watching:
            return
        self._watching = True
        backward = torch.autograd.backward

        def counted(*args: Any, **kwargs: Any) -> None:
            self._backwards += 1
            backward(*args, **kwargs)

        counted.__wrapped__ = backward  # type: ignore[attr-defined]
        counted.__doc__ = backward.__doc__
        torch.autograd.backward = counted
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._before(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._after(optimizer))

    def spent(self) -> set[int]:
        """The ids of parameters whose gradient was used by a step, and will be set to None before it counts again."""
        return {
            id(parameter)
            for optimizer, count in self._steps.items()
            if count == self._backwards and optimizer in self._emptied and optimizer not in self._adding
            for parameter in _parameters(optimizer)
        }

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        seen = self._seen.pop(optimizer, None)
        parameter = None if seen is None else seen.parameter()
        if seen is None or parameter is None:
            return
        if parameter.grad is not None and parameter.grad is seen.gradient():
            # It was not set to None since the last step: perhaps it was added to.
            self._adding.add(optimizer)
        else:
            self._emptied.add(optimizer)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        self._steps[optimizer] = self._backwards
        if optimizer not in self._adding:
            with_gradient = (p for p in _parameters(optimizer) if p.grad is not None)
            parameter = min(itertools.islice(with_gradient, _LOOKED_AT), key=torch.Tensor.numel, default=None)
            if parameter is not None and parameter.grad is not None:
                self._seen[optimizer] = _Seen(TensorWeakRef(parameter), _reference(parameter.grad))


@dataclass(frozen=True)
class _Seen:
    """A parameter, which is not kept alive, and its gradient."""

    parameter: Callable[[], torch.Tensor | None]
    gradient: Callable[[], torch.Tensor | None]


def _reference(gradient: torch.Tensor) -> Callable[[], torch.Tensor | None]:
    """Keeps a small one alive: that another one is no longer the same object does not hang on how torch wraps it."""
    if gradient.numel() > _SMALL or gradient.requires_grad:
        return TensorWeakRef(gradient)
    return lambda: gradient


_gradients = _Gradients()
