"""A short text for what a loop handed out: equal for equal items, in any process."""

from __future__ import annotations

import sys
import zlib
from typing import Any

import torch

_DEEPEST = 6
_ATOMS = (int, float, complex, str, bytes, bool, type(None))


def checksum(item: Any) -> str:
    """Covers numbers, texts, tensors, arrays and containers of these; of anything else only the type."""
    with torch._C.DisableTorchFunction():  # a mode of the script's must not see this
        return f"{_crc(item, 0, _DEEPEST):08x}"


def _crc(item: Any, crc: int, depth: int) -> int:
    if isinstance(item, _ATOMS):
        return zlib.crc32(repr(item).encode(), crc)
    if isinstance(item, torch.Tensor):
        return _tensor(item, crc)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(item, numpy.ndarray | numpy.generic):
        crc = zlib.crc32(f"{item.dtype}{item.shape}".encode(), crc)
        return crc if item.dtype.hasobject else zlib.crc32(item.tobytes(), crc)
    crc = zlib.crc32(f"{type(item).__module__}.{type(item).__qualname__}".encode(), crc)
    if depth == 0:
        return crc
    if isinstance(item, dict):
        parts: Any = [*item.items()]
    elif isinstance(item, list | tuple):
        parts = item
    else:
        parts = ()
    for part in parts:
        crc = _crc(part, crc, depth - 1)
    return crc


def _tensor(tensor: torch.Tensor, crc: int) -> int:
    crc = zlib.crc32(f"{tensor.dtype}{tuple(tensor.shape)}{tensor.layout}".encode(), crc)
    if tensor.layout is not torch.strided or tensor.numel() == 0 or tensor.is_meta:
        return crc
    plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return zlib.crc32(plain.numpy().data, crc)
