"""With ``checkpoint.mode: off`` the library trains and saves nothing."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from everstep import train
from everstep.model import handshake


@pytest.mark.parametrize(("mode", "saves"), [(handshake.MODE_OFF, False), (handshake.MODE_LIBRARY, True)])
def test_off_saves_nothing_and_any_other_mode_does(
    mode: str, saves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(handshake.ENV_CHECKPOINT_MODE, mode)
    run = train.attach(dir=tmp_path, every=0, model=torch.nn.Linear(1, 1))
    assert [step for step, _ in run.steps(range(3), total=3)] == [1, 2, 3]
    assert bool(list(tmp_path.rglob("manifest.json"))) is saves
    assert run.save() is saves


def test_asked_to_stop_it_says_that_nothing_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(handshake.ENV_CHECKPOINT_MODE, handshake.MODE_OFF)
    run = train.attach(dir=tmp_path, model=torch.nn.Linear(1, 1))
    steps = run.steps(range(3), total=3)
    next(steps)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(SystemExit) as caught:
        next(steps)
    assert caught.value.code == "everstep: asked to stop, and nothing is saved: checkpoint.mode is off"
    assert list(tmp_path.rglob("manifest.json")) == []
