"""Objects of frameworks get one honest line instead of a checkpoint that is not exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from everstep import train


def of(module: str, name: str, base: type = object) -> Any:
    """An object of a class with that name, defined in that module; the frameworks need not be installed."""
    return type(name, (base,), {"__module__": module, "state_dict": lambda self: {}, "load_state_dict": id})()


@pytest.mark.parametrize(
    ("thing", "text"),
    [
        (of("lightning.pytorch.trainer.trainer", "Trainer"), "a Lightning Trainer runs the training loop itself"),
        (of("pytorch_lightning.trainer.trainer", "Trainer"), "a Lightning Trainer runs the training loop itself"),
        (of("transformers.trainer", "Trainer"), "its own resume_from_checkpoint"),
        (of("mine", "Trainer", type(of("transformers.trainer", "Trainer"))), "a Trainer of transformers"),
        (of("accelerate.accelerator", "Accelerator"), "an object of Accelerate is not supported yet"),
        (of("accelerate.optimizer", "AcceleratedOptimizer"), "an object of Accelerate is not supported yet"),
        (of("deepspeed.runtime.engine", "DeepSpeedEngine"), "a DeepSpeed engine is not supported yet"),
        (of("torch.distributed.fsdp._fully_shard._fully_shard", "FSDPModule"), "is sharded over the ranks"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_each_is_named(thing: Any, text: str) -> None:
    with pytest.raises(TypeError, match=r"attach\(thing=\.\.\.\): ") as caught:
        train.attach(thing=thing)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_module_of_dtensors_is_named() -> None:
    class DTensor(torch.nn.Parameter):
        pass

    model = torch.nn.Linear(1, 1)
    model.weight = DTensor(model.weight.detach())
    with pytest.raises(TypeError, match="a model of DTensors is sharded"):
        train.attach(model=model)


def test_a_lightning_module_in_a_loop_of_ones_own_is_a_module(tmp_path: Any) -> None:
    kind = type("LightningModule", (torch.nn.Linear,), {"__module__": "lightning.pytorch.core.module"})
    assert train.attach(dir=tmp_path, model=kind(1, 1)).step == 0
