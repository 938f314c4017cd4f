"""Ways to save, each durable (synced) when it says so, each keeping the newest two."""

from __future__ import annotations

import json
import os
import shutil
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from benchmarks.save.training import Training
from everstep import train
from everstep.model import handshake

_KEEP = 2


class Way(Protocol):
    #: How long training stood still for each save that is durable, in seconds.
    stalls: list[float]

    def boundary(self) -> None: ...

    def finish(self) -> None: ...


class Nothing:
    def __init__(self, training: Training, folder: Path, every_s: float) -> None:
        self.stalls: list[float] = []

    def boundary(self) -> None:
        pass

    def finish(self) -> None:
        pass


class _Timed:
    """Saves every so often by `save`; what is old is deleted beside the training."""

    def __init__(self, training: Training, folder: Path, every_s: float) -> None:
        self.stalls: list[float] = []
        self._training = training
        self._folder = folder
        self._every_s = every_s
        self._last = time.monotonic()
        self._places: list[Path] = []
        self._deleting = ThreadPoolExecutor(1)

    def save(self, place: Path) -> None:
        raise NotImplementedError

    def boundary(self) -> None:
        began = time.monotonic()
        if began - self._last < self._every_s:
            return
        self._last = began
        place = self._folder / str(self._training.done)
        self.save(place)
        self.stalls.append(time.monotonic() - began)
        self._places.append(place)
        if len(self._places) > _KEEP + 1:
            self._deleting.submit(shutil.rmtree, self._places.pop(0), ignore_errors=True)

    def finish(self) -> None:
        self._deleting.shutdown()


class TorchSave(_Timed):
    def save(self, place: Path) -> None:
        place.mkdir()
        with (place / "new").open("wb") as file:
            torch.save(self._training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        (place / "new").rename(place / "state.pt")
        handle = os.open(place, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


class _Dcp(_Timed):
    def __init__(self, training: Training, folder: Path, every_s: float) -> None:
        super().__init__(training, folder, every_s)
        warnings.filterwarnings("ignore")
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class DcpSave(_Dcp):
    def save(self, place: Path) -> None:
        dcp.save(self._training.state(), checkpoint_id=place)


class DcpAsync(_Dcp):
    _writing: Future[Any] | None = None

    def save(self, place: Path) -> None:
        if self._writing is not None:
            self._writing.result()
        future: Any = dcp.async_save(self._training.state(), checkpoint_id=place)
        self._writing = future

    def finish(self) -> None:
        if self._writing is not None:
            self._writing.result()
        super().finish()


class Everstep:
    def __init__(self, training: Training, folder: Path, every_s: float) -> None:
        self._reports = folder / "reports"
        self._reports.mkdir()
        os.environ[handshake.ENV_REPORT_DIR] = str(self._reports)
        self._run = train.attach(
            dir=folder / "saves", every=every_s, keep=_KEEP, model=training.model, optimizer=training.optimizer
        )
        self.stalls: list[float] = []

    def boundary(self) -> None:
        self._run.step_done()

    def finish(self) -> None:
        facts = (self._reports / "facts-0.jsonl").read_text().splitlines()
        self.stalls = [fact["stall_s"] for fact in map(json.loads, facts) if fact["kind"] == handshake.FACT_SAVED]
        self._run.finish()


WAYS: dict[str, Callable[[Training, Path, float], Way]] = {
    "no saves": Nothing,
    "torch.save": TorchSave,
    "dcp.save": DcpSave,
    "dcp.async_save": DcpAsync,
    "everstep": Everstep,
}
