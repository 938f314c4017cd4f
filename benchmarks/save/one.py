"""``python -m benchmarks.save.one WHAT JSON``: one measurement in a process of its own; its result as JSON."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from benchmarks.save.training import Training, passes_for
from benchmarks.save.ways import WAYS, DcpSave
from everstep import train


def throughput(order: dict[str, Any]) -> dict[str, Any]:
    """Steps and saves of one way."""
    training = Training.of(order["state_bytes"], order["passes"], order["device"])
    with tempfile.TemporaryDirectory(dir=order["folder"]) as folder:
        for _ in range(3):
            training.step()
        way = WAYS[order["way"]](training, Path(folder), order["every_s"])
        steps_s = []
        for _ in range(order["steps"]):
            began = time.perf_counter()
            training.step()
            way.boundary()
            steps_s.append(time.perf_counter() - began)
        way.finish()
    return {
        "steps_s": steps_s,
        "stalls_s": way.stalls,
        "state_bytes": training.state_bytes,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "device": torch.cuda.get_device_name() if order["device"] != "cpu" else "cpu",
    }


def restore(order: dict[str, Any]) -> dict[str, Any]:
    """Seconds to have the state back in model and optimizer, against reading the bytes; in turns."""
    taken: dict[str, list[float]] = {"read": [], "everstep": [], "torch.load": [], "dcp.load": []}
    with tempfile.TemporaryDirectory(dir=order["folder"]) as name:
        folder = Path(name)
        training = Training.of(order["state_bytes"], 1, order["device"])
        objects = {"model": training.model, "optimizer": training.optimizer}
        run = train.attach(dir=folder / "saves", every=3600, **objects)
        training.step()
        run.step_done()
        run.finish()
        torch.save(training.state(), folder / "state.pt")
        dcp_way = DcpSave(training, folder, 0.0)
        dcp_way.save(folder / "dcp")
        # A process does not go on in a folder in which it has trained: to it, this is another one.
        saves = (folder / "saves").rename(folder / "again")
        shard = next(saves.rglob("*.pt"))
        for _ in range(order["turns"]):
            for what, act in {
                "read": lambda: shard.read_bytes(),
                "everstep": lambda: train.attach(dir=saves, every=3600, **objects).step,
                "torch.load": lambda: _load(training, torch.load(folder / "state.pt", map_location="cpu")),
                "dcp.load": lambda: _dcp_load(training, folder / "dcp"),
            }.items():
                began = time.perf_counter()
                act()
                taken[what].append(time.perf_counter() - began)
    return {"taken_s": taken, "state_bytes": training.state_bytes}


def _load(training: Training, state: dict[str, Any]) -> None:
    training.model.load_state_dict(state["model"])
    training.optimizer.load_state_dict(state["optimizer"])


def _dcp_load(training: Training, place: Path) -> None:
    state: dict[str, Any] = training.state()
    dcp.load(state, checkpoint_id=place)
    _load(training, state)


def main(argv: list[str]) -> int:
    what, order = argv[0], json.loads(argv[1])
    # What libraries print must not mix with the result.
    out = os.dup(1)
    os.dup2(2, 1)
    if what == "passes":
        result: Any = passes_for(order["step_s"], order["device"])
    else:
        result = {"throughput": throughput, "restore": restore}[what](order)
    if dist.is_initialized():
        dist.destroy_process_group()
    with os.fdopen(out, "w") as file:
        json.dump(result, file)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
