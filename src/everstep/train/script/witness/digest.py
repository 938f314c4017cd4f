"""Values as digests by name: equal where, and only where, the values are equal bit for bit."""

from __future__ import annotations

import ctypes
import enum
import hashlib
import sys
from typing import Any

Digests = dict[str, dict[str, Any]]
"""Name -> ``{"value": text}`` of a small value, or ``{"sha256", "kind", "sample"}`` of an array; ``sample``: up to 64
of its numbers, evenly spread, to tell a rounding error from another result."""

_SAMPLE = 64
_DEEPEST = 200


def flatten(value: Any, name: str, into: Digests) -> None:
    """Put ``value`` and all it contains into ``into``, below ``name``."""
    _Walk(into).walk(value, name, 0)


def combined(digests: Digests) -> str:
    """One SHA-256 over many."""
    total = hashlib.sha256()
    for name, entry in digests.items():
        total.update(f"{name}={entry.get('sha256', entry.get('value'))}\n".encode())
    return total.hexdigest()


def tensor(value: Any) -> dict[str, Any]:
    """The digest of a tensor."""
    torch = sys.modules["torch"]
    kind = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    plain = value.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    if plain.is_quantized:
        kind, plain = f"{kind} {value.qscheme()}", plain.int_repr()
    plain = plain.cpu().resolve_conj().resolve_neg().contiguous()
    return {"sha256": _sha256_of_memory(plain), "kind": kind, "sample": _sample(plain)}


def _sha256_of_memory(plain: Any) -> str:
    size = plain.numel() * plain.element_size()
    if size == 0:
        return hashlib.sha256().hexdigest()
    return hashlib.sha256((ctypes.c_char * size).from_address(plain.data_ptr())).hexdigest()


def _sample(plain: Any) -> list[float]:
    flat = plain.reshape(-1)
    if flat.is_complex() or flat.numel() == 0:
        return []
    return [float(number) for number in flat[:: max(1, flat.numel() // _SAMPLE)][:_SAMPLE].tolist()]


class _Walk:
    """Depth first, in the order that the containers have."""

    def __init__(self, into: Digests) -> None:
        self._into = into
        self._open: dict[int, str] = {}

    def walk(self, value: Any, name: str, depth: int) -> None:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, enum.Enum)):
            self._into[name] = {"value": repr(value)[:2000]}
        elif torch is not None and isinstance(value, torch.Tensor):
            self._into[name] = tensor(value)
        elif numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
            self._array(value, name)
        elif id(value) in self._open or depth > _DEEPEST:
            self._into[name] = {"value": f"again {self._open.get(id(value), 'deeper')}"}
        else:
            self._open[id(value)] = name
            self._inside(value, name, depth)
            del self._open[id(value)]

    def _array(self, value: Any, name: str) -> None:
        if value.dtype.hasobject:
            self.walk(value.tolist(), name, 1)
            return
        kind = f"{value.dtype} {list(value.shape)}"
        numbers = value.reshape(-1) if value.dtype.kind in "biuf" else value.reshape(-1)[:0]
        sample = [float(number) for number in numbers[:: max(1, numbers.size // _SAMPLE)][:_SAMPLE]]
        self._into[name] = {"sha256": hashlib.sha256(value.tobytes()).hexdigest(), "kind": kind, "sample": sample}

    def _inside(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                self.walk(inner, f"{name}.{key}", depth + 1)
        elif isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
            for at, inner in enumerate(value):
                self.walk(inner, f"{name}.{at}", depth + 1)
        elif isinstance(value, (set, frozenset)):
            self._into[name] = {"value": repr(sorted(map(repr, value)))[:2000]}
        elif callable(value) and hasattr(value, "__qualname__"):
            self._into[name] = {"value": f"{getattr(value, '__module__', '')}.{value.__qualname__}"}
        else:
            self._into[name] = {"value": type(value).__name__}
            for key, inner in sorted(getattr(value, "__dict__", {}).items()):
                self.walk(inner, f"{name}.{key}", depth + 1)
