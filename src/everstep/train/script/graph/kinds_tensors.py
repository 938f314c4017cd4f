"""Tensors and parameters, in place where a partner is; memory is shared as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from everstep.train.script.graph import kinds
from everstep.train.script.graph.kinds import Filling, Hopeless, Kind, Saving, Taken
from everstep.train.script.graph.memory import Place, Standing, extent
from everstep.train.script.graph.poison import Poison, use
from everstep.train.script.graph.state import State, state_of

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_PER_TENSOR = (torch.per_tensor_affine, torch.per_tensor_symmetric)


@dataclass(frozen=True)
class Form:
    """A strided tensor without its bytes; ``offset`` and ``strides`` count elements."""

    place: Place | None
    dtype: torch.dtype
    device: torch.device
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    requires_grad: bool
    crosses: bool
    flags: tuple[str, ...] = ()
    quantized: tuple[float, int] | None = None


class _TensorKind(Kind):
    """Strided tensors: class, attributes, ``.grad``, hooks."""

    name = "tensor"

    def pick(self, thing: Any) -> Kind:
        if thing.layout is torch.strided:
            return self
        return kinds.by_name("sparse tensor")

    def take(self, thing: Any, saving: Saving) -> Taken:
        _refuse_wrappers(thing)
        form = _form(thing, saving)
        state, values = state_of(thing)
        return (form, state), [type(thing), *_attached(thing), *values]

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        form: Form = extra[0]
        if form.crosses or fresh.grad_fn is not None or _wraps(fresh):
            return None
        if (fresh.dtype, fresh.device, tuple(fresh.shape), _flags(fresh)) != (
            form.dtype,
            form.device,
            form.shape,
            form.flags,
        ):
            return None
        if _quantization(fresh) != form.quantized:
            return None
        state: State = extra[1]
        return [type(fresh), *_attached(fresh), *state.values(fresh)]

    def first(self, extra: Any, refs: list[Any]) -> list[Any]:
        return refs[:1]

    def seat(self, extra: Any, fresh: torch.Tensor, filling: Filling) -> None:
        """Let the memory of a partner be the target of its region, if it may be."""
        form: Form = extra[0]
        if form.place is not None and tuple(fresh.stride()) == form.strides:
            filling.memory.offer(form.place, standing(fresh))

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        form: Form = extra[0]
        cls = filling.value(refs[0])
        made = _view(form, filling)
        if form.crosses:
            with torch.enable_grad():
                return _Crossing.apply(made.requires_grad_())  # type: ignore[no-untyped-call]
        if cls is torch.nn.Parameter:
            return torch.nn.Parameter(made, form.requires_grad)
        if cls is not torch.Tensor:
            made = made.as_subclass(cls)
        return made.requires_grad_(form.requires_grad) if form.requires_grad else made

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        form, state = extra
        if not form.crosses:
            self._reseat(thing, form, filling)
        grad, *hooks = (filling.value(code) for code in refs[1:4])
        if grad is not None or (thing.is_leaf and thing.grad is not None):
            thing.grad = grad
        for name, value in zip(_HOOKS, hooks, strict=True):
            if getattr(thing, name, None) is not value:
                setattr(thing, name, value)
        state.write(thing, [filling.value(code) for code in refs[4:]])

    def shown(self, extra: Any) -> tuple[Any, Place | None]:
        form: Form = extra[0]
        return (replace(form, place=None, offset=0), extra[1]), form.place

    def step(self, extra: Any, refs: list[Any], position: int) -> str:
        state: State = extra[1]
        return (
            (".__class__", ".grad", *(f".{name}" for name in _HOOKS))[position]
            if position < 4
            else state.step(position - 4)
        )

    def _reseat(self, thing: torch.Tensor, form: Form, filling: Filling) -> None:
        if form.place is not None:
            target, inside = filling.memory.storage(form.place)
            address = target.data_ptr() + inside if target.numel() else 0
            if form.place.length and (thing.data_ptr() != address or tuple(thing.stride()) != form.strides):
                thing.data = _view(form, filling)
        if thing.requires_grad != form.requires_grad:
            thing.requires_grad_(form.requires_grad)


class _SparseKind(Kind):
    """Sparse tensors: made of their index and value tensors."""

    name = "sparse tensor"
    whole = True

    def take(self, thing: Any, saving: Saving) -> Taken:
        if thing.grad_fn is not None:
            raise Hopeless(
                "a sparse tensor with a gradient function crosses the save; detach it before the loop goes on"
            )
        plain = thing.detach()
        extra = (str(thing.layout), tuple(thing.shape), thing.requires_grad, isinstance(thing, torch.nn.Parameter))
        if thing.layout is torch.sparse_coo:
            return (*extra, plain.is_coalesced()), [plain._indices(), plain._values(), thing.grad]
        if thing.layout in (torch.sparse_csr, torch.sparse_bsr):
            return (*extra, None), [plain.crow_indices(), plain.col_indices(), plain.values(), thing.grad]
        if thing.layout in (torch.sparse_csc, torch.sparse_bsc):
            return (*extra, None), [plain.ccol_indices(), plain.row_indices(), plain.values(), thing.grad]
        raise Hopeless(f"tensors of layout {thing.layout} are not supported")

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        layout, shape, requires_grad, parameter, coalesced = extra
        *parts, grad = (filling.value(code) for code in refs)
        made: torch.Tensor
        if coalesced is not None:
            indices, values = parts
            made = torch.sparse_coo_tensor(indices, values, shape, is_coalesced=coalesced, check_invariants=False)
        else:
            outer, inner, values = parts
            kind = getattr(torch, layout.removeprefix("torch."))
            made = torch.sparse_compressed_tensor(outer, inner, values, shape, layout=kind, check_invariants=False)
        if parameter:
            made = torch.nn.Parameter(made, requires_grad)
        elif requires_grad:
            made.requires_grad_()
        if grad is not None:
            made.grad = grad
        return made


class _GeneratorKind(Kind):
    """torch's random generators, in place."""

    name = "torch generator"

    def take(self, thing: Any, saving: Saving) -> Taken:
        return (str(thing.device), bytes(thing.get_state().numpy())), ()

    def align(self, extra: Any, refs: list[Any], fresh: Any) -> Sequence[object] | None:
        return () if str(fresh.device) == extra[0] else None

    def make(self, extra: Any, refs: list[Any], filling: Filling) -> Any:
        return torch.Generator(extra[0])

    def fill(self, thing: Any, extra: Any, refs: list[Any], filling: Filling) -> None:
        thing.set_state(torch.frombuffer(bytearray(extra[1]), dtype=torch.uint8))


class _Crossing(torch.autograd.Function):
    """Stands where a graph that was built before the save began: a gradient cannot go there any more."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        # A copy (the memory has its bytes by now): autograd forbids to change a view made by a function in place.
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        use(
            Poison(
                "a tensor", "torch.Tensor", "its gradient goes back to before the save; detach it at the end of a step"
            )
        )


def standing(fresh: torch.Tensor) -> Standing:
    """Where a tensor lies now."""
    storage = fresh.untyped_storage()
    start = storage.data_ptr()
    return Standing(str(fresh.device), fresh.data_ptr(), start, start + storage.nbytes(), storage)


def _wraps(tensor: Any) -> bool:
    return is_traceable_wrapper_subclass(tensor)


def _refuse_wrappers(tensor: torch.Tensor) -> None:
    if _wraps(tensor):
        raise Hopeless(f"tensors that wrap others ({type(tensor).__name__}) are not supported yet")
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        raise Hopeless("it belongs to a transformation of torch.func that is still going on")


def _form(tensor: torch.Tensor, saving: Saving) -> Form:
    plain = tensor.detach()
    place = None
    if tensor.device.type != "meta":
        claim, offset = saving.memory.tensor(plain)
        place = Place(claim, offset, extent(plain.shape, plain.stride(), plain.element_size()))
    return Form(
        place,
        tensor.dtype,
        tensor.device,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        int(tensor.storage_offset()),
        tensor.requires_grad,
        tensor.grad_fn is not None,
        _flags(tensor),
        _quantization(tensor),
    )


def _flags(tensor: torch.Tensor) -> tuple[str, ...]:
    flags = {"conj": tensor.is_conj(), "neg": tensor.is_neg(), "inference": tensor.is_inference()}
    return tuple(name for name, is_set in flags.items() if is_set)


def _quantization(tensor: torch.Tensor) -> tuple[float, int] | None:
    if not tensor.is_quantized:
        return None
    if tensor.qscheme() not in _PER_TENSOR:
        raise Hopeless("tensors that are quantized per channel are not supported")
    return tensor.q_scale(), tensor.q_zero_point()


def _view(form: Form, filling: Filling) -> torch.Tensor:
    """A tensor of this form over the memory of its region."""
    if form.place is None:
        return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device)
    target, inside = filling.memory.storage(form.place)
    if form.quantized is not None:
        scale, zero = form.quantized
        made: torch.Tensor = torch._empty_affine_quantized([0], scale=scale, zero_point=zero, dtype=form.dtype)
    else:
        with torch.inference_mode("inference" in form.flags):
            made = torch.empty(0, dtype=form.dtype, device=form.device)
    begin = target.data_ptr() - target.untyped_storage().data_ptr() + inside
    with torch.no_grad():
        made.set_(target.untyped_storage(), begin // made.element_size(), form.shape, form.strides)
    if "conj" in form.flags:
        torch._C._set_conj(made, True)
    if "neg" in form.flags:
        torch._C._set_neg(made, True)
    return made


def _attached(tensor: torch.Tensor) -> list[object]:
    grad = tensor.grad if tensor.is_leaf or tensor.retains_grad else None
    return [grad, *(getattr(tensor, name, None) for name in _HOOKS)]


def install() -> None:
    """Make these kinds known."""
    kinds.add(_TensorKind(), kinds.below(torch.Tensor))
    kinds.add(_SparseKind())
    kinds.add(_GeneratorKind(), kinds.exactly(torch.Generator))
