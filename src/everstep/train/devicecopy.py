"""Copies from a GPU to pinned host memory on a stream of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_Piece = tuple[torch.UntypedStorage, int]
"""A storage on the device, and where it begins in the buffer."""


class DeviceCopy:
    """Begins at once. The stream that trains waits only for what may change at any time; the rest is copied beside it.

    Args:
        device: the GPU.
        buffer: pinned host memory, uint8.
        now: what may change as soon as training goes on.
        later: what stands still until `hold_back`.
    """

    def __init__(
        self, device: torch.device, buffer: torch.Tensor, now: Sequence[_Piece], later: Sequence[_Piece]
    ) -> None:
        # The storages are held until the copy is over: the allocator must not give their memory away before.
        self._held = [*now, *later]
        self._device = device
        training = torch.cuda.current_stream(device)
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(training)
        with torch.cuda.stream(self._stream):
            _enqueue(buffer, now)
            volatile = torch.cuda.Event()  # type: ignore[no-untyped-call]
            volatile.record(self._stream)
            _enqueue(buffer, later)
            self._complete = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._complete.record(self._stream)
        training.wait_event(volatile)

    def hold_back(self) -> None:
        """What is enqueued for training from now on runs when the copy is complete. The host does not wait."""
        torch.cuda.current_stream(self._device).wait_event(self._complete)

    def wait(self) -> None:
        """Wait on the host until the copy is complete."""
        self._complete.synchronize()
        self._held = []


def _enqueue(buffer: torch.Tensor, pieces: Sequence[_Piece]) -> None:
    for storage, start in pieces:
        source = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        buffer[start : start + storage.nbytes()].copy_(source, non_blocking=True)
