from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.planted import lint_imports, plant

# Every folder the rules speak of, in a tree that keeps them.
CLEAN = {
    "model/__init__.py": "",
    "model/handshake.py": "NAME = 1\n",
    "ports.py": "from everstep.model import handshake\n",
    "brain/select/rotate.py": "import numpy\nfrom everstep.model import handshake\n",
    "brain/forecast/age.py": "",
    "brain/perf/step.py": "",
    "brain/plan.py": "from everstep.brain.select import rotate\n",
    "blobs/folder.py": "from everstep import ports\n",
    "market/prices.py": "from everstep.blobs import folder\n",
    "train/save.py": "from everstep.model import handshake\n",
    "agent/main.py": "import os\nfrom everstep.model import handshake\n",
    "providers/local.py": "from everstep.market import prices\n",
    "store/memory.py": "",
    "profiler/stalls.py": "",
    "control/loop.py": "from everstep.brain import plan\nfrom everstep.providers import local\n",
    "sim/engine.py": "from everstep.brain import plan\n",
    "sim/world/markets.py": "from everstep.brain import select\n",
    "client/sdk.py": "from everstep.model import handshake\n",
    "server/app.py": "from everstep.control import loop\n",
    "testing/fakes.py": "from everstep import ports\n",
    "cli/main.py": "from everstep.client import sdk\n",
}

LAYERS = "imports point down BROKEN"
ISLANDS = "islands BROKEN"
PURE = "no input or output BROKEN"

VIOLATIONS = {
    "up: model to ports": ({"model/offers.py": "from everstep import ports\n"}, LAYERS),
    "up: brain to control": ({"brain/wake.py": "from everstep.control import loop\n"}, LAYERS),
    "up: control to server": ({"control/loop.py": "from everstep.server import app\n"}, LAYERS),
    "up: blobs to train": ({"blobs/folder.py": "from everstep.train import save\n"}, LAYERS),
    "up: blobs to market": ({"blobs/folder.py": "from everstep.market import prices\n"}, LAYERS),
    "up: client to testing": ({"client/sdk.py": "from everstep.testing import fakes\n"}, LAYERS),
    "siblings: market to train": ({"market/prices.py": "from everstep.train import save\n"}, LAYERS),
    "siblings: client to sim": ({"client/sdk.py": "from everstep.sim import engine\n"}, LAYERS),
    "siblings: store to providers": ({"store/memory.py": "from everstep.providers import local\n"}, LAYERS),
    "siblings: agent to profiler": ({"agent/main.py": "from everstep.profiler import stalls\n"}, LAYERS),
    "a folder without a place": ({"scratch/notes.py": ""}, LAYERS),
    "islands: train to brain": ({"train/save.py": "from everstep.brain import plan\n"}, ISLANDS),
    "islands: agent to train": ({"agent/main.py": "from everstep.train import save\n"}, ISLANDS),
    "io: brain to socket": ({"brain/plan.py": "import socket\n"}, PURE),
    "io: brain to httpx": ({"brain/plan.py": "import httpx\n"}, PURE),
    "io: model to subprocess": ({"model/offers.py": "import subprocess\n"}, PURE),
    "io: ports to asyncio": ({"ports.py": "import asyncio\n"}, PURE),
    "cycle in brain": (
        {
            "brain/forecast/age.py": "from everstep.brain import perf\n",
            "brain/perf/__init__.py": "import everstep.brain.forecast.age\n",
        },
        "no cycles inside brain BROKEN",
    ),
    "beliefs in the world: forecast": (
        {"sim/world/markets.py": "from everstep.brain.forecast import age\n"},
        "does not share our beliefs BROKEN",
    ),
    "beliefs in the world: perf": (
        {"sim/world/markets.py": "from everstep.brain import perf\n"},
        "does not share our beliefs BROKEN",
    ),
}


def test_a_tree_with_every_folder_keeps_the_contracts(tmp_path: Path) -> None:
    kept, output = lint_imports(plant(tmp_path, CLEAN))
    assert kept, output
    assert "5 kept, 0 broken" in output


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_a_planted_import_breaks_its_contract(tmp_path: Path, violation: str) -> None:
    files, verdict = VIOLATIONS[violation]
    kept, output = lint_imports(plant(tmp_path, {**CLEAN, **files}))
    assert not kept
    assert verdict in output, output


def test_folders_may_be_missing(tmp_path: Path) -> None:
    kept, output = lint_imports(plant(tmp_path, {"model/ids.py": ""}))
    assert kept, output
