"""What decides the next step and is in no ``state_dict``: gradients to be added to, ``requires_grad``, train or eval.

Gradients are saved where they may count. Behind an optimizer's step they are spent if the script sets them to None
before it uses them again, as most do: two passes in a row have to show it (one may be the turn of a script that does so
each n-th time), and a single pass that has used them, in this attempt or in one before it, shows the contrary for good.
What is not spent is part of the state, and is copied at the boundary.

A script may change its habit, or read the gradient of the step before. So something stands in the place of each
gradient that was not saved, and refuses any use of it (`_Missing`).
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.weak import TensorWeakRef

_SHOWN = 2
"""So many passes in a row show that gradients are set to None."""


class Beside:
    """Watches and restores that of the attached objects.

    Args:
        objects: what is attached.
        refuse: makes what is raised when a gradient is used that was not saved, of a text.
        gradients: save them in any case.
    """

    def __init__(
        self, objects: Mapping[str, Any], refuse: Callable[[str], BaseException], *, gradients: bool = False
    ) -> None:
        self._objects = objects
        self._refuse = refuse
        self._always = gradients
        _gradients.watch()

    def state(self) -> dict[str, Any]:
        """All of it, as it is now: per object lists in the order of its parameters and modules."""
        self._always |= _gradients.is_adding({id(p) for thing in self._objects.values() for p in _parameters(thing)})
        always = self._always
        spent = set() if always else _gradients.spent()
        gradients: dict[str, dict[int, torch.Tensor]] = {}
        missing: dict[str, list[int]] = {}
        done: set[int] = set()
        for name, thing in self._objects.items():
            for number, parameter in enumerate(_parameters(thing)):
                if parameter.grad is None or id(parameter) in done:
                    continue
                done.add(id(parameter))
                if id(parameter) in spent or type(parameter.grad) is _Missing:
                    missing.setdefault(name, []).append(number)
                else:
                    gradients.setdefault(name, {})[number] = parameter.grad
        return {
            "gradients": gradients,
            "missing": missing,
            "adding": always,
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
        self._always |= saved.get("adding", False)
        standing = []
        for name, thing in self._objects.items():
            gradients, missing = saved["gradients"].get(name, {}), set(saved.get("missing", {}).get(name, ()))
            for number, trained in enumerate(_parameters(thing)):
                if number in gradients:
                    trained.grad = gradients[number].to(device=trained.device)
                elif number in missing:
                    trained.grad = _Missing.of(trained, functools.partial(_used, weakref.ref(self), name, number))
                    standing.append(trained)
        _gradients.miss(standing)

    def refused(self, name: str, number: int) -> BaseException:
        """What is raised where the gradient of a parameter is used that was not saved."""
        return self._refuse(
            f"the script uses the gradient of parameter {number} of {name} that an earlier step had used: it was not "
            "saved, since the steps before the save set theirs to None; attach(gradients=True) saves all of them from "
            "the start"
        )

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


def _used(beside: Callable[[], Beside | None], name: str, number: int) -> NoReturn:
    # A parameter keeps its gradient alive where the garbage collector does not see it: no circle through that.
    alive = beside()
    raise RuntimeError("a gradient that was not saved is used") if alive is None else alive.refused(name, number)


class _Missing(torch.Tensor):
    """Stands for a gradient that was not saved. It may be looked at from outside, and replaced."""

    _use: Callable[[], NoReturn]
    _writes: int

    @classmethod
    def of(cls, parameter: torch.Tensor, use: Callable[[], NoReturn]) -> _Missing:
        """For one parameter; takes no memory. ``use`` is called when it is used, and raises."""
        nothing = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
        made: _Missing = torch.Tensor._make_subclass(cls, nothing)
        made._use, made._writes = use, made._version
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ not in _OUTSIDE:
            for one in _flat((args, kwargs or {})):
                if type(one) is _Missing:
                    one._use()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


_OUTSIDE = frozenset(["__get__", "size", "dim", "stride", "numel", "is_floating_point", "is_complex", "storage_offset"])
"""What compilers ask of the gradients of parameters that they see."""


def _flat(given: Any) -> Iterator[Any]:
    if isinstance(given, list | tuple):
        for one in given:
            yield from _flat(one)
    elif isinstance(given, dict):
        yield from _flat(list(given.values()))
    else:
        yield given


class _Gradients:
    """Knows of each optimizer of the process what becomes of the gradients that its steps have used."""

    def __init__(self) -> None:
        self._watching = False
        self._passes = 0
        # Whose gradients nobody was seen to empty, or to use, since its last step; and how many passes there were then.
        self._stepped: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        # What the last pass found of them and left alone, as one of the discriminator finds those of the generator.
        self._left: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Left] = weakref.WeakKeyDictionary()
        self._emptied: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = weakref.WeakKeyDictionary()
        self._adding: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._missing: list[TensorWeakRef] = []

    def watch(self) -> None:
        """Begin, once in a process. ``Tensor.backward`` looks the function up at each call."""
        if self._watching:
            return
        self._watching = True
        backward = torch.autograd.backward

        def watched(*args: Any, **kwargs: Any) -> None:
            left = self._look()
            self._passes += 1
            try:
                backward(*args, **kwargs)
            except RuntimeError:
                # What stands for a gradient cannot be added to.
                self._look_at_missing(failed=True)
                raise
            self._look_at_missing()
            self._judge(left)

        watched.__wrapped__ = backward  # type: ignore[attr-defined]
        watched.__doc__ = backward.__doc__
        torch.autograd.backward = watched
        register_optimizer_step_pre_hook(lambda optimizer, *_: self._before(optimizer))
        register_optimizer_step_post_hook(lambda optimizer, *_: self._after(optimizer))

    def miss(self, parameters: list[torch.Tensor]) -> None:
        """What stands for their gradients must not be used."""
        self._missing = [TensorWeakRef(parameter) for parameter in parameters]

    def is_adding(self, parameters: Container[int]) -> bool:
        """Whether a gradient of these (ids) that a step had used was used again."""
        return any(id(parameter) in parameters for optimizer in self._adding for parameter in _parameters(optimizer))

    def spent(self) -> set[int]:
        """The ids of parameters whose gradient was used by a step, and will be set to None before it counts again."""
        found: set[int] = set()
        for optimizer, passes in self._stepped.items():
            if self._emptied.get(optimizer, 0) < _SHOWN:
                continue
            if passes == self._passes:
                found.update(map(id, _parameters(optimizer)))
            else:
                found.update(id(one.parameter) for one in self._left.get(optimizer, ()) if one.is_still())
        return found

    def _look(self) -> list[tuple[torch.optim.Optimizer, _Left]]:
        """What a pass finds of gradients that were used."""
        found = []
        for optimizer in list(self._stepped):
            left = [_Gradient(p, p.grad) for p in _parameters(optimizer) if p.grad is not None]
            if left:
                found.append((optimizer, left))
            else:
                self._emptied[optimizer] = self._emptied.get(optimizer, 0) + 1
                del self._stepped[optimizer]
        return found

    def _judge(self, found: list[tuple[torch.optim.Optimizer, _Left]]) -> None:
        """Behind the pass."""
        for optimizer, left in found:
            if all(one.is_still() for one in left):
                self._left[optimizer] = left
            else:
                self._note_adding(optimizer)

    def _look_at_missing(self, *, failed: bool = False) -> None:
        left = []
        for reference in self._missing:
            gradient = None if (parameter := reference()) is None else parameter.grad
            if type(gradient) is _Missing:
                if gradient._version != gradient._writes or (failed and gradient.numel() > 1):
                    self._missing = []
                    gradient._use()
                left.append(reference)
        self._missing = left

    def _before(self, optimizer: torch.optim.Optimizer) -> None:
        passes = self._stepped.get(optimizer)
        if passes is None:
            return
        if passes == self._passes:
            again = any(parameter.grad is not None for parameter in _parameters(optimizer))
        else:
            again = any(one.is_still() for one in self._left.get(optimizer, ()))
        if again:
            self._note_adding(optimizer)

    def _after(self, optimizer: torch.optim.Optimizer) -> None:
        self._left.pop(optimizer, None)
        if optimizer not in self._adding:
            self._stepped[optimizer] = self._passes

    def _note_adding(self, optimizer: torch.optim.Optimizer) -> None:
        self._adding.add(optimizer)
        self._stepped.pop(optimizer, None)
        self._left.pop(optimizer, None)


class _Gradient:
    """One that a step has used, as a pass finds it. It is not kept alive, nor is its parameter."""

    __slots__ = ("_gradient", "_parameter", "_writes")

    def __init__(self, parameter: torch.Tensor, gradient: torch.Tensor) -> None:
        self._parameter = TensorWeakRef(parameter)
        self._gradient = TensorWeakRef(gradient)
        self._writes = gradient._version

    @property
    def parameter(self) -> torch.Tensor | None:
        found: torch.Tensor | None = self._parameter()
        return found

    def is_still(self) -> bool:
        """Whether it is there, and nobody wrote to it."""
        parameter = self._parameter()
        gradient = None if parameter is None else parameter.grad
        return gradient is not None and gradient is self._gradient() and gradient._version == self._writes


_Left = list[_Gradient]

_gradients = _Gradients()
