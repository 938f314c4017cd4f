"""State that no variable of the script's reaches: it comes back, or is no place for a save, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.script.drill import Drill, survives
from tests.train.script.scripts_for_session import HEAD
from tests.train.zygote import Zygote

pytestmark = pytest.mark.xdist_group("script")

COMES_BACK = {
    "what a function given to map keeps": """
def scaled(values):
    count = [0]
    total = 0.0

    def scale(value):
        nonlocal total
        count[0] += 1
        total += value
        return value * count[0] + total / 10

    return map(scale, values)

for x in scaled([0.1 * i for i in range(12)]):
    print(step(x + 1))
print(weights())
""",
    "an object whose method is mapped, and one in a partial": """
import functools

class Counting:
    def __init__(self):
        self.seen = 0

    def __call__(self, value):
        self.seen += 1
        return value + self.seen / 10

    def add(self, value):
        return self(value)

def gather(held, value):
    held.append(value)
    return sum(held) / 10

for x, y, z in zip(
    map(Counting().add, range(12)),
    filter(Counting(), range(12)),
    map(functools.partial(gather, []), range(12)),
):
    print(step(x + y / 10 + z))
print(weights())
""",
    "a stream that nobody holds": """
import sys

class Numbered:
    def __init__(self, inner):
        self.inner = inner
        self.lines = 0

    def write(self, text):
        self.lines += text.count("\\n")
        return self.inner.write(text.replace("\\n", f" [{self.lines}]\\n"))

    def flush(self):
        self.inner.flush()

sys.stdout = Numbered(sys.stdout)
for i in range(12):
    print(step())
print(weights())
""",
    "a stream that a pass puts there, and one that it takes away": """
import sys

class Upper:
    def __init__(self, inner):
        self.inner, self.lines = inner, 0

    def write(self, text):
        self.lines += 1
        return self.inner.write(f"{self.lines} {text}" if text.strip() else text)

    def flush(self):
        self.inner.flush()

sys.stderr = Upper(sys.stderr)
for i in range(12):
    print(step())
    if i == 1:
        sys.stdout = Upper(sys.stdout)
        sys.stderr = sys.__stderr__
print(weights(), type(sys.stderr).__name__)
""",
    "warnings, shown once": """
import logging, warnings
logging.captureWarnings(True)
logging.captureWarnings(False)
warnings.showwarning = lambda message, *_: print("warned:", message)

class Mine(UserWarning):
    pass

def noisy(i):
    warnings.warn("slow path")
    warnings.warn(f"{i % 4}", Mine)

for i in range(12):
    print(step())
    noisy(i)
    if i == 8:
        warnings.simplefilter("once")
print(weights())
""",
    "captured warnings": """
import logging, warnings
logging.captureWarnings(True)
for i in range(12):
    print(step())
    warnings.warn("slow path")
print(weights())
""",
    "autocast without a cache": """
with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
    for i in range(12):
        print(step())
print(weights())
""",
    "autocast around the model": """
for epoch in range(4):
    for i in range(3):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(6, 4)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item())
print(weights())
""",
    "a lock file, and a file object over a number": """
import fcntl, os, tempfile
lock = os.open("lock", os.O_CREAT | os.O_RDWR)
fcntl.flock(lock, fcntl.LOCK_EX)
for i in range(12):
    with os.fdopen(os.open(f"out-{i}", os.O_CREAT | os.O_WRONLY), "w") as out:
        out.write(str(step()))
    with tempfile.NamedTemporaryFile("w") as passing:
        passing.write("x")
        step()
print(weights(), open("out-3").read())
""",
}

NO_SAVE = {
    "a file by number": (
        """
import os
log = os.open("log", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
for i in range(12):
    os.write(log, f"{step()}\\n".encode())
os.close(log)
print(open("log").read())
""",
        "while a file opened by number is in use: train.py:",
    ),
    "a temporary file by number": (
        """
import os, tempfile
log, path = tempfile.mkstemp()
for i in range(12):
    os.write(log, f"{step()}\\n".encode())
os.close(log)
print(open(path).read())
os.remove(path)
""",
        "while a file opened by number is in use: train.py:",
    ),
    "autocast around steps": (
        """
with torch.autocast("cpu", dtype=torch.bfloat16):
    for i in range(12):
        step()
print(weights())
""",
        "inside of `torch.autocast`",
    ),
    "counters of a cache": (
        """
import functools

@functools.lru_cache
def doubled(i):
    return 2 * i

for i in range(12):
    step(1 + doubled(i % 3) / 10)
print(weights(), doubled.cache_info())
""",
        "looks at the counters of a cache: train.py:",
    ),
}

REFUSED = {
    "bytes under a tensor": (
        """
held = []
for i in range(12):
    if i == 0:
        held.append(bytearray(8))
        held.append(torch.frombuffer(held[0], dtype=torch.float32))
    held[1].add_(step())
    print(i, bytes(held[0]) == held[1].numpy().tobytes())
""",
        "it shares its memory with a tensor or an array",
    ),
    "an array of ctypes under a tensor": (
        """
import ctypes
held = []
for i in range(12):
    if i == 0:
        held.append((ctypes.c_float * 2)())
        held.append(torch.frombuffer(held[0], dtype=torch.float32))
    held[1].add_(step())
    print(i, held[0][0])
""",
        "it shares its memory with a tensor or an array",
    ),
    "a class that a pass registers": (
        """
import abc

class Shape(abc.ABC):
    pass

class Square:
    pass

for i in range(12):
    if i == 0:
        Shape.register(Square)
    print(step() if isinstance(Square(), Shape) else 0)
""",
        "other switches (classes registered with an abstract one",
    ),
}


@pytest.fixture
def drill(scripts: Zygote, tmp_path: Path) -> Drill:
    return Drill(scripts, tmp_path)


def write(drill: Drill, body: str) -> None:
    (drill.place / "train.py").write_text(HEAD + body)


@pytest.mark.expensive(family="left behind")
@pytest.mark.parametrize("case", COMES_BACK)
def test_it_comes_back(drill: Drill, case: str) -> None:
    write(drill, COMES_BACK[case])
    survives(drill, 5, 4)


@pytest.mark.expensive(family="left behind, not saved")
@pytest.mark.parametrize("case", NO_SAVE)
def test_nothing_is_saved_there(drill: Drill, case: str) -> None:
    body, text = NO_SAVE[case]
    write(drill, body)
    rc, plain = drill.plain()
    assert drill.launch(5) == -9
    assert f"no save can be made {text}" in drill.said() or text in drill.said()
    assert drill.launch() == rc, drill.said()
    assert not drill.resumed()
    assert drill.log() == plain


def test_standard_output_by_its_number_is_told(drill: Drill) -> None:
    write(
        drill,
        """
import sys
sys.stdout = open(1, "w", buffering=1, closefd=False)
for i in range(8):
    print(i, step())
""",
    )
    assert drill.launch() == 0
    assert "what is printed through this is not in the log of all launches" in drill.said()


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(drill: Drill, case: str) -> None:
    body, text = REFUSED[case]
    write(drill, body)
    assert drill.launch(5) == -9
    assert drill.launch() == 76, drill.said()
    assert text in drill.said()
