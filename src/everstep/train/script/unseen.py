"""Our own operations of torch, which the modes of a script (``TorchFunctionMode`` and the like) must not see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch.utils import _python_dispatch


@contextlib.contextmanager
def unseen() -> Iterator[None]:
    """No mode, and no class of the script's, is asked what an operation does."""
    with torch._C.DisableTorchFunction():
        if not torch._C._len_torch_dispatch_stack():
            yield
            return
        with _python_dispatch._disable_current_modes():
            yield
