"""A whole script that goes on in another folder: absolute paths in its variables, its handlers and its open files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.script.drill import Drill
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")

SCRIPT = """
import logging
import os
import socket
from pathlib import Path

import torch

unused = socket.socket()
torch.manual_seed(3)
here = os.getcwd()
runs = Path("runs").resolve()
runs.mkdir()
table = open("table.csv", "w")
logging.basicConfig(filename=os.path.join(here, "log.txt"), format="%(message)s", level=logging.INFO)
model = torch.nn.Linear(300, 1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    if epoch == 1:
        os.chdir(runs)
    for i in range(5):
        loss = model(torch.randn(4, 300)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, i, loss.item())
        print(epoch, i, loss.item(), sep=",", file=table)
        logging.info("step %d of epoch %d", i, epoch)
        with open(f"{here}/grows", "ab") as grows:
            grows.write(bytes([i]) * 700_000)
    torch.save(model.state_dict(), runs / "best.pt")
    assert not epoch or len((runs / "history").read_text().split()) == epoch
    with open(runs / "history", "a") as history:
        print(epoch, file=history)
table.close()
"""


class Machines:
    """Folders of several machines, with a checkpoint folder that all of them see."""

    def __init__(self, scripts: Zygote, folder: Path) -> None:
        self._scripts = scripts
        self._folder = folder
        (folder / "saves").mkdir()

    def drill(self, name: str) -> Drill:
        """The script on one machine; it is new, and empty, at the first call."""
        place = self._folder / name
        if not place.exists():
            place.mkdir()
            (place / "train.py").write_text(SCRIPT)
            (place / "saves").symlink_to(self._folder / "saves")
        return Drill(self._scripts, place)

    def written(self, name: str) -> dict[str, bytes]:
        """What the script wrote there."""
        found = [path for path in (self._folder / name).rglob("*") if path.is_file()]
        ours = ("saves", "train.py", "plain.log", "launch")
        by_name = {str(path.relative_to(self._folder / name)): path for path in found}
        return {name: path.read_bytes() for name, path in by_name.items() if not name.startswith(ours)}


@pytest.fixture
def machines(scripts: Zygote, tmp_path: Path) -> Machines:
    return Machines(scripts, tmp_path)


def test_from_machine_to_machine_and_back(machines: Machines) -> None:
    code, output = machines.drill("plain").plain()
    for name, stop_at in (("a", 8), ("b", 7), ("a", 4)):
        drill = machines.drill(name)
        assert drill.launch(stop_at) == -9, drill.said()
        assert "__main__: unused (" in drill.said(), "on stderr, and not in the script's log"
    last = machines.drill("c")
    assert last.launch() == code == 0, last.said()
    assert last.log() == output
    assert machines.written("c") == machines.written("plain")


def test_an_older_checkpoint_is_taken_where_files_of_the_newest_are_damaged(machines: Machines, tmp_path: Path) -> None:
    code, output = machines.drill("plain").plain()
    assert machines.drill("a").launch(11) == -9
    older, newest = (set(json.loads(path.read_text())) for path in sorted(tmp_path.glob("saves/*/*/files-0.json"))[-2:])
    damaged = tmp_path / "saves/files/0" / min(newest - older)
    damaged.write_bytes(damaged.read_bytes()[1:])
    other = machines.drill("b")
    assert other.launch() == code == 0, other.said()
    assert "checkpoint 1:9 is skipped" in other.said()
    assert f"{damaged.name} is damaged" in other.said()
    assert '"step": 6' in (tmp_path / "saves/attempts/000002.json").read_text()
    assert other.log() == output
    assert machines.written("b") == machines.written("plain")
