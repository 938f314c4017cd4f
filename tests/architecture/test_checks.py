"""Each home-made check catches what it is for, and lets pass what it should."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_floor, check_names, check_purity, check_sizes
from tests.architecture.planted import plant


def texts(check, root: Path) -> list[str]:
    return [finding.text for finding in check(root)]


# --- purity -----------------------------------------------------------------------------------------------------

IMPURE = {
    "clock": ("brain/a.py", "import time\n", "may not import time of the standard library"),
    "uuid": ("brain/a.py", "from uuid import uuid4\n", "may not import uuid of the standard library"),
    "io inside a function": ("brain/a.py", "def f():\n    import os\n", "may not import os of"),
    "io for types only": (
        "brain/a.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\n",
        "os of",
    ),
    "package": ("brain/a.py", "import pandas\n", "may not import the package pandas"),
    "folder above": ("brain/a.py", "from everstep.control import loop\n", "may not import everstep.control.loop"),
    "folder above, relative": ("brain/b/a.py", "from ...store import memory\n", "may not import everstep.store.memory"),
    "now": ("brain/a.py", "from datetime import datetime\nx = datetime.now()\n", "reads the clock"),
    "now, by alias": ("brain/a.py", "import datetime as d\nx = d.datetime.utcnow\n", "reads the clock"),
    "today": ("brain/a.py", "from datetime import date\nx = date.today()\n", "reads the clock"),
    "global random": ("brain/a.py", "import random\nx = random.random()\n", "is global randomness"),
    "global random, by name": ("brain/a.py", "from random import shuffle as s\ns([])\n", "is global randomness"),
    "unseeded generator": ("brain/a.py", "import random\nx = random.Random()\n", "without a seed"),
    "numpy random": ("brain/a.py", "import numpy as np\nx = np.random.normal()\n", "is global randomness"),
    "unseeded numpy": ("brain/a.py", "import numpy as np\nx = np.random.default_rng()\n", "without a seed"),
    "text hash": ("brain/a.py", "x = hash('a')\n", "differs between processes"),
    "file": ("brain/a.py", "x = open('a')\n", "does IO"),
    "hidden import": ("brain/a.py", "x = __import__('os')\n", "hides an import"),
    "model: package": ("model/a.py", "import numpy\n", "may not import the package numpy"),
    "model: clock": ("model/a.py", "import time\n", "may not import time"),
    "model: above": ("model/a.py", "from everstep import ports\n", "may not import everstep.ports"),
    "handshake: sibling": (
        "model/handshake.py",
        "from everstep.model import ids\n",
        "may not import everstep.model.ids",
    ),
    "pacing: sibling": ("model/pacing.py", "from .ids import JobId\n", "may not import everstep.model.ids"),
    "ports: package": ("ports.py", "import httpx\n", "may not import the package httpx"),
    "agent: package": ("agent/a.py", "import psutil\n", "may not import the package psutil"),
    "agent: model": ("agent/a.py", "from everstep.model import ids\n", "may not import everstep.model.ids"),
    "agent: root": ("agent/a.py", "from everstep import __version__\n", "may not import everstep.__version__"),
    "train: package": ("train/a.py", "import numpy\n", "may not import the package numpy"),
    "train: brain": ("train/a.py", "import everstep.brain.plan\n", "may not import everstep.brain.plan"),
}

PURE = {
    "brain/a.py": (
        "import random\nfrom datetime import timedelta\nimport numpy as np\nfrom scipy import stats\n"
        "from everstep import ports\nfrom everstep.model.ids import JobId\nfrom . import b\n"
        "def f(rng: random.Random, seed: int):\n"
        "    return rng.random(), random.Random(seed), np.random.default_rng(seed), np.linalg.norm([1])\n"
    ),
    "brain/b.py": "def hash(x):\n    return x\n",
    "model/ids.py": "import hashlib, base64\n",
    "model/handshake.py": "import json\n",
    "agent/a.py": "import os, time\nfrom everstep.model import handshake\nfrom everstep.model.handshake import A\n",
    "train/a.py": "import torch, time, random\nfrom everstep.model import handshake, pacing\nx = random.random()\n",
    "control/a.py": "import time, httpx, random\nx = random.random()\nfrom everstep.brain import a\n",
}


@pytest.mark.parametrize("case", IMPURE)
def test_impurity_is_caught(tmp_path: Path, case: str) -> None:
    name, text, expected = IMPURE[case]
    findings = texts(check_purity.check, plant(tmp_path, {name: text}))
    assert len(findings) == 1, findings
    assert expected in findings[0]


def test_purity_passes_what_is_allowed(tmp_path: Path) -> None:
    assert texts(check_purity.check, plant(tmp_path, PURE)) == []


def test_a_finding_names_file_and_line(tmp_path: Path) -> None:
    (finding,) = check_purity.check(plant(tmp_path, {"brain/a.py": "\n\nimport os\n"}))
    assert str(finding).startswith("src/everstep/brain/a.py:3: ")


# --- ceilings ---------------------------------------------------------------------------------------------------


def function(lines: int) -> str:
    return "def f():\n" + "    x = 1\n" * (lines - 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x = 1\n" * 501, "file has 501 lines"),
        (function(61), "f() has 61 lines"),
        ("class C:\n    async def g(self):\n" + "        x = 1\n" * 60, "g() has 61 lines"),
        ("def f(a, b, c, d, e, f): ...\n", "takes 6 positional"),
        ("def f(a, b, c, /, d, e, f=1): ...\n", "takes 6 positional"),
        ("class C:\n    def f(self, a, b, c, d, e, f): ...\n", "takes 6 positional"),
        ("class C:\n    @staticmethod\n    def f(a, b, c, d, e, f): ...\n", "takes 6 positional"),
        ("class C:\n    def g(self):\n        def f(a, b, c, d, e, f): ...\n", "takes 6 positional"),
    ],
)
def test_a_ceiling_is_kept(tmp_path: Path, text: str, expected: str) -> None:
    findings = texts(check_sizes.check, plant(tmp_path, {"cli/a.py": text}))
    assert len(findings) == 1, findings
    assert expected in findings[0]


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n" * 500,
        function(60),
        "def f(a, b, c, d, e, *, g, h): ...\n",
        "class C:\n    def f(self, a, b, c, d, e, *args): ...\n",
        "class C:\n    @classmethod\n    def f(cls, a, b, c, d, e): ...\n",
    ],
)
def test_below_a_ceiling_all_is_well(tmp_path: Path, text: str) -> None:
    assert texts(check_sizes.check, plant(tmp_path, {"cli/a.py": text})) == []


# --- names ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["utils/a.py", "cli/common/a.py", "brain/helpers.py", "core/a.py", "store/manager.py"])
def test_an_empty_word_is_no_name(tmp_path: Path, name: str) -> None:
    assert any("names nothing" in text for text in texts(check_names.check, plant(tmp_path, {name: ""})))


def test_names_of_the_domain_pass(tmp_path: Path) -> None:
    assert texts(check_names.check, plant(tmp_path, {"brain/baseline.py": "", "cli/main.py": ""})) == []


# --- oldest Pythons ---------------------------------------------------------------------------------------------

NEWER = "def f(x):\n    match x:\n        case 1:\n            return 2\n"


@pytest.mark.parametrize(
    ("files", "where"),
    [
        ({"agent/a.py": NEWER}, "agent/a.py"),
        ({"model/handshake.py": "from enum import StrEnum\n"}, "model/handshake.py"),
        ({"train/a.py": "import tomllib\n"}, "train/a.py"),
        ({"model/pacing.py": "from enum import StrEnum\n"}, "model/pacing.py"),
        (
            {"agent/a.py": "import everstep.model.handshake\n", "model/handshake.py": "", "model/__init__.py": NEWER},
            "model/__init__.py",
        ),
        ({"agent/a.py": "from everstep.agent import b\n", "agent/b.py": NEWER}, "agent/b.py"),
        ({"agent/a.py": "", "__init__.py": NEWER}, "everstep/__init__.py"),
    ],
)
def test_too_new_for_the_floor(tmp_path: Path, files: dict[str, str], where: str) -> None:
    findings = check_floor.check(plant(tmp_path, files))
    assert findings
    assert all(finding.path.endswith(where) for finding in findings), findings


def test_newer_python_is_fine_elsewhere(tmp_path: Path) -> None:
    files = {
        "train/a.py": NEWER,
        "agent/a.py": "",
        "control/a.py": "import tomllib\n",
        "model/causes.py": "from enum import StrEnum\n",
    }
    assert check_floor.check(plant(tmp_path, files)) == []


# --- this repository --------------------------------------------------------------------------------------------


# `make check` runs each of them as well.
@pytest.mark.expensive(family="own checks")
@pytest.mark.parametrize("check", [check_purity, check_sizes, check_names, check_floor], ids=lambda c: c.__name__)
def test_this_repository_passes(repository: Path, check) -> None:
    assert [str(finding) for finding in check.check(repository)] == []
