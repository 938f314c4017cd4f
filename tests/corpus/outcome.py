"""What a run leaves behind, and the first thing in which two of them differ."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

_IGNORED = {"__pycache__", ".everstep"}
_CONTEXT = 40


@dataclass(frozen=True)
class Outcome:
    """Exit code, everything on stdout, every file of the working folder (a link is its target)."""

    exit_code: int
    stdout: bytes
    files: dict[str, bytes] = field(default_factory=dict)


def read_files(folder: Path) -> dict[str, bytes]:
    """Path below `folder` -> content, of all files in it and in its folders."""
    found = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in _IGNORED]
        for path in (Path(parent) / name for name in [*names, *folders]):
            shown = str(path.relative_to(folder))
            if path.is_symlink():
                found[shown] = b"-> " + os.readlink(path).encode()
            elif path.is_file():
                found[shown] = path.read_bytes()
    return found


def difference(plain: Outcome, other: Outcome) -> str | None:
    """The first thing in which `other` is not what the plain run left; None when there is nothing."""
    if plain.exit_code != other.exit_code:
        return f"exit code {other.exit_code} instead of {plain.exit_code}"
    for name in sorted(plain.files.keys() | other.files.keys()):
        if name not in other.files:
            return f"{name} is missing"
        if name not in plain.files:
            return f"{name} should not be there"
        found = _file_difference(name, plain.files[name], other.files[name])
        if found:
            return f"{name}: {found}"
    if plain.stdout != other.stdout:
        return f"stdout: {_bytes_difference(plain.stdout, other.stdout)}"
    return None


def _file_difference(name: str, plain: bytes, other: bytes) -> str | None:
    if plain == other:
        return None
    read = _READERS.get(Path(name).suffix)
    if read is None:
        return _bytes_difference(plain, other)
    try:
        values = read(plain), read(other)
    except Exception as error:  # whatever a torn file makes the reader raise
        return f"cannot be read back: {type(error).__name__}: {error}"
    # The same values may be written differently: a pickle says which equal strings were one object.
    return value_difference(*values, where="")


def _read_torch(content: bytes) -> object:
    return torch.load(io.BytesIO(content), weights_only=False)


_READERS: dict[str, Callable[[bytes], object]] = {".pt": _read_torch, ".pkl": pickle.loads}


def value_difference(plain: Any, other: Any, where: str) -> str | None:
    """The first place, below `where`, in which two loaded values differ; tensors and floats by their bits."""
    if type(plain) is not type(other):
        return f"{where or 'value'} is a {type(other).__name__} instead of a {type(plain).__name__}"
    if isinstance(plain, torch.Tensor):
        return _tensor_difference(plain, other, where)
    if isinstance(plain, dict):
        if list(plain) != list(other):
            return f"{where or 'value'} has the keys {list(other)} instead of {list(plain)}"
        pairs = [(f"{where}[{key!r}]", plain[key], other[key]) for key in plain]
    elif isinstance(plain, list | tuple):
        if len(plain) != len(other):
            return f"{where or 'value'} has {len(other)} items instead of {len(plain)}"
        pairs = [(f"{where}[{i}]", a, b) for i, (a, b) in enumerate(zip(plain, other, strict=True))]
    else:
        return None if repr(plain) == repr(other) else f"{where or 'value'} is {other!r} instead of {plain!r}"
    return next((found for place, a, b in pairs if (found := value_difference(a, b, place))), None)


def _tensor_difference(plain: torch.Tensor, other: torch.Tensor, where: str) -> str | None:
    def form(tensor: torch.Tensor) -> tuple[object, ...]:
        return tensor.dtype, tuple(tensor.shape), tensor.requires_grad

    if form(plain) != form(other):
        return f"{where or 'tensor'} is {form(other)} instead of {form(plain)}"

    def raw(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().contiguous().reshape(-1).view(torch.uint8) if tensor.numel() else tensor.detach()

    if torch.equal(raw(plain), raw(other)):
        return None
    largest = (plain.detach() - other.detach()).abs().max().item() if plain.dtype != torch.bool else 1
    return f"{where or 'tensor'} differs by up to {largest:.3g}"


def _bytes_difference(plain: bytes, other: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(plain, other, strict=False)) if a != b), min(len(plain), len(other)))
    there, here = other[at : at + _CONTEXT], plain[at : at + _CONTEXT]
    return f"{len(other)} bytes instead of {len(plain)}; at {at}: {there!r} instead of {here!r}"
