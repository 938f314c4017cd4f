"""Objects of training frameworks that cannot be resumed exactly by their ``state_dict`` alone: one honest line each."""

from __future__ import annotations

from typing import Any

import torch

_OWN_LOOP = "runs the training loop itself, so its steps are not seen here; exact resume of it is not supported yet"
_SHARDED = (
    "is sharded over the ranks; exact resume of sharded state is not supported yet: "
    "use DistributedDataParallel, or the framework's own checkpoints"
)
_FOREIGN = (
    # (module that defines the class, its name or "" for any, what to say)
    (
        "lightning.pytorch.trainer",
        "Trainer",
        f"a Lightning Trainer {_OWN_LOOP}; attach the model and optimizer of a loop of your own",
    ),
    (
        "pytorch_lightning.trainer",
        "Trainer",
        f"a Lightning Trainer {_OWN_LOOP}; attach the model and optimizer of a loop of your own",
    ),
    (
        "lightning.fabric",
        "",
        "an object of Lightning Fabric is not supported yet; attach the model and optimizer it wraps",
    ),
    (
        "transformers.trainer",
        "Trainer",
        f"a Trainer of transformers {_OWN_LOOP}; its own resume_from_checkpoint is exact",
    ),
    (
        "accelerate",
        "",
        "an object of Accelerate is not supported yet; attach the unwrapped model and the bare optimizer",
    ),
    ("deepspeed", "", "a DeepSpeed engine is not supported yet; use its own checkpoints"),
    ("torch.distributed.fsdp", "", f"an FSDP module {_SHARDED}"),
)


def unsupported(thing: Any) -> str:
    """Why an object cannot be attached, as one line; empty if nothing speaks against it."""
    for ancestor in type(thing).__mro__:
        for module, name, text in _FOREIGN:
            defined_in = f"{ancestor.__module__}."
            if defined_in.startswith(f"{module}.") and name in ("", ancestor.__name__):
                return text
    if any(_is_sharded(tensor) for tensor in _tensors(thing)):
        return f"a model of DTensors {_SHARDED}"
    return ""


def _tensors(thing: Any) -> list[torch.Tensor]:
    if isinstance(thing, torch.nn.Module):
        return [*thing.parameters()]
    if isinstance(thing, torch.optim.Optimizer):
        return [tensor for group in thing.param_groups for tensor in group["params"]]
    return []


def _is_sharded(tensor: torch.Tensor) -> bool:
    return any(kind.__name__ == "DTensor" for kind in type(tensor).__mro__)
