"""Two runs of one script compared, object by object."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from everstep.client.check.evidence import Ending
from everstep.client.check.workfolder import sha256

_NUMBER = re.compile(rb"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_SHOWN = 60
_READ = 64 << 20


class Part(StrEnum):
    """What an object belongs to; the order is that of interest."""

    EXIT = "exit code"
    STEPS = "steps"
    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    OPTIMIZER = "optimizer state"
    GROUPS = "optimizer settings"
    RANDOM = "random state"
    STDOUT = "stdout"
    FILE = "file"


#: What a training is about. The rest may carry times and names that are new in every run.
STATE = frozenset({Part.EXIT, Part.STEPS, Part.PARAMETERS, Part.BUFFERS, Part.OPTIMIZER, Part.GROUPS})


@dataclass(frozen=True, slots=True)
class Difference:
    """One object that is not the same in two runs.

    Attributes:
        part: what it belongs to.
        name: the object: ``parameter 'fc.weight' of AdamW``, ``file log.csv``.
        what: how it differs.
        size: largest relative difference of sampled numbers; None where there are none.
    """

    part: Part
    name: str
    what: str
    size: float | None = None


@dataclass(frozen=True, slots=True)
class Aside:
    """What differs between two plain runs and so says nothing about a resumed one.

    Attributes:
        names: of differences.
        numbers_only: those of them in which only numbers differ (times); their texts still count.
        way: whether their parameters differ after some step, and are the same at the end.
    """

    names: frozenset[str] = frozenset()
    numbers_only: frozenset[str] = frozenset()
    way: bool = False


def differences(plain: Ending, other: Ending, aside: Aside | None = None) -> list[Difference]:
    """All differences of ``other`` from ``plain``, in the order of `Part`; ``aside`` is left out."""
    left_out = aside or Aside()
    found = [*_endings(plain, other)]
    for rank in range(len(plain.finals)):
        found += _rank(plain, other, rank)
    found += _outputs(plain, other, left_out)
    order = list(Part)
    kept = [d for d in found if d.name not in left_out.names - left_out.numbers_only]
    return sorted(kept, key=lambda difference: order.index(difference.part))


def set_aside(plain: Ending, again: Ending, found: Sequence[Difference]) -> Aside:
    """What of ``found`` between two plain runs does not make the training itself another one."""
    names = frozenset(d.name for d in found if d.part not in STATE)
    texts, others = _texts(plain), _texts(again)
    same = (n for n in names if n in texts and n in others and _masked(texts[n]) == _masked(others[n]))
    return Aside(names, frozenset(same))


def weights_sha256(plain: Ending, other: Ending) -> tuple[str | None, str | None]:
    """One digest for each run of the parameters that both trained; None: none were seen.

    Those are the parameters of optimizers, or, where none stepped, the tensors among the script's globals.
    """
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for mine, theirs in zip(plain.finals, other.finals, strict=False):
        if mine is None or theirs is None:
            return None, None
        trained = _paired(mine["optimizers"], theirs["optimizers"])
        pairs += [(left["parameters"], right["parameters"]) for left, right in trained] or [
            (mine["globals"], theirs["globals"])
        ]
    if not any(left for left, _ in pairs):
        return None, None
    return _combined([left for left, _ in pairs]), _combined([right for _, right in pairs])


def _combined(parts: Sequence[Mapping[str, Mapping[str, Any]]]) -> str:
    total = hashlib.sha256()
    for part in parts:
        for name, entry in part.items():
            total.update(f"{name} {_identity(entry)}\n".encode())
    return total.hexdigest()


# --- the end as a whole -----------------------------------------------------------------------------------------------


def _endings(plain: Ending, other: Ending) -> Iterator[Difference]:
    if plain.exit_code != other.exit_code:
        yield Difference(Part.EXIT, "exit code", f"{other.exit_code} instead of {plain.exit_code}")
    if plain.steps is not None and other.steps is not None and plain.steps != other.steps:
        yield Difference(Part.STEPS, "number of steps", f"{other.steps} instead of {plain.steps}")
    for rank, (mine, theirs) in enumerate(zip(plain.finals, other.finals, strict=False)):
        if (mine is None) != (theirs is None):
            missing = "the resumed" if theirs is None else "the plain"
            yield Difference(Part.EXIT, f"end of rank {rank}", f"{missing} process did not come to Python's own end")


# --- what was in memory -----------------------------------------------------------------------------------------------


def _rank(plain: Ending, other: Ending, rank: int) -> Iterator[Difference]:
    mine, theirs = plain.finals[rank], other.finals[rank] if rank < len(other.finals) else None
    if mine is None or theirs is None:
        return
    where = f" on rank {rank}" if len(plain.finals) > 1 else ""
    for left, right in _paired(mine["optimizers"], theirs["optimizers"]):
        of = f" of {left['kind']}{where}"
        yield from _entries(Part.PARAMETERS, "parameter", of, left["parameters"], right["parameters"])
        yield from _entries(Part.BUFFERS, "buffer", where, left["buffers"], right["buffers"])
        yield from _entries(Part.OPTIMIZER, "state", of, left["state"], right["state"])
        yield from _entries(Part.GROUPS, "setting", of, left["groups"], right["groups"])
    if not mine["optimizers"]:
        # They are seen where no optimizer stepped: also in a process that found all steps done.
        yield from _entries(Part.PARAMETERS, "global", where, mine["globals"], theirs["globals"])
    # What nobody drew from while training need not come back; a relaunch begins with another state on purpose.
    unused = mine.get("random_at_first_step", {})
    for name, digest in mine["random"].items():
        if digest != unused.get(name) and theirs["random"].get(name, digest) != digest:
            yield Difference(Part.RANDOM, f"random state of {name}{where}", "differs")


def _paired(
    mine: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Optimizers of the same kind and shapes, from the newest back: a resumed process lacks the first ones."""
    left = list(mine)
    pairs = []
    for right in reversed(theirs):
        fitting = [
            at for at, one in enumerate(left) if (one["kind"], one["shapes"]) == (right["kind"], right["shapes"])
        ]
        if fitting:
            pairs.append((left[fitting[-1]], right))
            del left[fitting[-1] :]
    return pairs[::-1]


def _entries(
    part: Part, noun: str, of: str, mine: Mapping[str, dict[str, Any]], theirs: Mapping[str, dict[str, Any]]
) -> Iterator[Difference]:
    for name in [*mine, *(name for name in theirs if name not in mine)]:
        left, right = mine.get(name), theirs.get(name)
        if left is None or right is None:
            yield Difference(part, f"{noun} '{name}'{of}", "is missing" if right is None else "was not there")
        elif _identity(left) != _identity(right):
            yield Difference(part, f"{noun} '{name}'{of}", *_how(left, right))


def _identity(entry: Mapping[str, Any]) -> Any:
    return entry.get("sha256", entry.get("value")), entry.get("kind")


def _how(left: Mapping[str, Any], right: Mapping[str, Any]) -> tuple[str, float | None]:
    if "value" in left or "value" in right:
        shown = [str(entry.get("value", entry.get("kind")))[:_SHOWN] for entry in (right, left)]
        return f"{shown[0]} instead of {shown[1]}", None
    if left["kind"] != right["kind"]:
        return f"{right['kind']} instead of {left['kind']}", None
    pairs = list(zip(left["sample"], right["sample"], strict=False))
    scale = max((abs(a) for a, _ in pairs), default=0.0) or 1.0
    size = max((abs(a - b) / scale for a, b in pairs), default=None)
    if not size:
        return f"{left['kind']} differs, though not in the values sampled", size
    return f"{left['kind']} differs by up to {size:.1e} of its largest value", size


# --- what was written -------------------------------------------------------------------------------------------------


def _outputs(plain: Ending, other: Ending, aside: Aside) -> Iterator[Difference]:
    for rank, (mine, theirs) in enumerate(zip(plain.stdout, other.stdout, strict=False)):
        name = _stdout_name(rank, len(plain.stdout))
        yield from _file(Part.STDOUT, name, mine, theirs, aside)
    for name in [*plain.files, *(name for name in other.files if name not in plain.files)]:
        left, right = plain.files.get(name), other.files.get(name)
        if left is None or right is None:
            yield Difference(Part.FILE, f"file {name}", "is missing" if right is None else "was not there")
        elif not _same_torch_file(plain, other, name):
            yield from _file(Part.FILE, f"file {name}", left, right, aside)
    for name in plain.deleted:
        if name not in other.deleted:
            yield Difference(Part.FILE, f"file {name}", "was to be deleted and is still there")


def _stdout_name(rank: int, ranks: int) -> str:
    return f"stdout of rank {rank}" if ranks > 1 else "stdout"


def _same_torch_file(plain: Ending, other: Ending, name: str) -> bool:
    digests = [(end.finals[0] or {}).get("torch_files", {}).get(name) if end.finals else None for end in (plain, other)]
    return digests[0] is not None and digests[0] == digests[1]


def _file(part: Part, name: str, left: Path, right: Path, aside: Aside) -> Iterator[Difference]:
    if not left.exists() or not right.exists():
        if left.exists() != right.exists():
            yield Difference(part, name, "is missing" if left.exists() else "was not there")
        return
    if sha256(left) == sha256(right):
        return
    mine, theirs = _content(left), _content(right)
    if name in aside.numbers_only and _masked(mine) == _masked(theirs):
        return
    yield Difference(part, name, _first_line(mine, theirs))


def _first_line(mine: bytes, theirs: bytes) -> str:
    if b"\0" in mine[:4096]:
        return f"{len(theirs)} bytes instead of {len(mine)}" if len(mine) != len(theirs) else "its bytes differ"
    left, right = mine.splitlines(), theirs.splitlines()
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    counted = f"{len(right)} lines instead of {len(left)}, " if len(left) != len(right) else ""
    shown = [lines[at].decode(errors="replace")[:_SHOWN] if at < len(lines) else "its end" for lines in (right, left)]
    return f"{counted}line {at + 1} is {shown[0]!r} instead of {shown[1]!r}"


def _texts(ending: Ending) -> dict[str, bytes]:
    texts = {f"file {name}": _content(path) for name, path in ending.files.items()}
    for rank, path in enumerate(ending.stdout):
        if path.exists():
            texts[_stdout_name(rank, len(ending.stdout))] = _content(path)
    return texts


def _content(path: Path) -> bytes:
    """The beginning of a file: all of a log, enough of anything larger."""
    with path.open("rb") as file:
        return file.read(_READ)


def _masked(text: bytes) -> bytes:
    return _NUMBER.sub(b"#", text)
